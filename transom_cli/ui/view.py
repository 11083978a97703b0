"""One pure view of a run, for every way of showing it: from the operator's state and the beats to plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.beats.table import NodeTable
from transom_cli.core.decided import UNDECIDED
from transom_cli.core.state import Exclusion, Incident, State
from transom_cli.health.gpu.shown import NodeGpus

FRESH = 15.0  # seconds: what was written later than this tells how things are now
STALE = 60.0  # seconds: what nodes have told before this is not shown as how they are


@dataclass(frozen=True)
class NodeView:
    """A node of the attempt.

    role: ranks, spare, or out (a spare has taken its place). state: ok, slow, silent, suspect, probing, isolated, or
    waiting (nothing was heard of it yet). step: the last that all of its ranks have done, -1: none. beat_age: seconds
    since the slowest of them has done a step. alive: of its ranks, those whose process lives. note: what is odd, in
    words. gpus: what it shows of its GPUs; None where it has none, or nothing of them is known. gpus_age: by how many
    seconds that is older than the newest word of any node.
    """

    node: str
    role: str
    state: str
    step: int = -1
    beat_age: float | None = None
    ranks: int = 0
    alive: int = 0
    phase: str = ""
    note: str = ""
    gpus: NodeGpus | None = None
    gpus_age: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether it belongs among the nodes that are listed: something is odd about it, or about its GPUs."""
        if self.state not in ("ok", "waiting") or self.gpus is None:
            return self.state not in ("ok", "waiting")
        level = self.gpus.level  # of a moderate heat there may be a thousand
        return level == "fault" or (level in ("heavy", "throttled") and not self.gpus.old(self.gpus_age))


@dataclass(frozen=True)
class Ahead:
    """What happens next. at: when (seconds of the wall clock), where that is known. then: and what follows on it."""

    words: str
    at: float | None = None
    then: str = ""


@dataclass(frozen=True)
class SaveAhead:
    """A save that comes. at: when, as far as the step time tells (seconds of the wall clock)."""

    step: int
    at: float | None = None


@dataclass(frozen=True)
class Underway:
    """What takes its time. what: saving, copying or restoring. step: -1: not known. done, total: of `unit`, bytes or
    ranks; total 0: not known. began: seconds of the wall clock."""

    what: str
    step: int
    words: str
    began: float | None
    done: int
    total: int
    unit: str


@dataclass(frozen=True)
class IncidentView:
    id: str
    began: float
    words: str
    result: str  # open, recovered, stopped, ...
    lasted: float | None  # seconds to the first new step, or to its end
    marks: tuple[tuple[float, str, str], ...]  # at, what, words
    category: str = ""  # of the diagnosis, as in `diagnose.clue.Category`
    rule: str = ""  # of the policy, that decided
    action: str = ""
    fingerprint: str = ""
    nodes: tuple[str, ...] = ()  # to blame, as far as it is known
    isolated: tuple[tuple[str, str], ...] = ()  # node, and how: drained or excluded


@dataclass(frozen=True)
class RunView:
    """What a person wants to know. Times are seconds; `now` is when the view was made.

    Further fields may be added, each with a default: `transom status --json` has them all (ui/schema/status.json).
    """

    run_id: str
    now: float
    phase: str
    over: bool
    since: float
    job_id: int
    restarts: int
    starts: int
    step: int
    durable: int
    loss: float | None
    nodes: tuple[str, ...]  # that carry ranks, or will
    spares: tuple[str, ...]  # that stand by
    excluded: tuple[tuple[str, str, str], ...]  # node, how, reason
    slurm_state: str
    slurm_reason: str
    slurm_lost: str
    operator: bool  # a live one holds the lease
    verdict: str
    exit_code: int | None
    incidents: tuple[IncidentView, ...]  # newest first
    memory: int = -1  # the newest step in the nodes' memory
    memory_age: float | None = None  # seconds since it was committed
    memory_protection: str = ""  # in words
    rhythm: str = ""  # when it saves and why, in words
    reports: tuple[str, ...] = ()  # what is odd about the training and nobody acts on, in words
    phases: dict[str, object] | None = None  # what its steps are spent on, by rank (diagnose.slow.words.document)
    phase_lines: tuple[str, ...] = ()  # the same as text
    path: str = ""  # the run directory
    checkpoints: str = ""  # the directory of its checkpoints
    submitted: float | None = None  # when
    steps: int | None = None  # that the training makes, where a setting tells
    step_time: float | None = None  # seconds, lately
    durable_age: float | None = None  # seconds since the newest checkpoint on disk was seen
    node_views: tuple[NodeView, ...] = ()  # of the attempt that runs; () where no node has told anything
    until: tuple[tuple[str, float | None], ...] = ()  # of `excluded`: node, and when that ends (None: not by itself)
    ahead: tuple[Ahead, ...] = ()
    no_progress: int = 0  # restarts in a row without progress
    max_without_progress: int = 0
    operator_host: str = ""
    operator_at: float | None = None  # the newest sign of life of an operator
    nodes_at: float | None = None  # the newest table of a node of this attempt
    slurm_asked: float | None = None  # when Slurm was asked for this view; None: it was not
    slurm_error: str = ""  # why it gave no answer then
    slurm_start: float | None = None  # when it expects to start a pending job
    goodput: float | None = None  # share of its time since submission that made new steps
    goodput_words: str = ""  # that, and what the rest was lost to
    wants: str = ""  # of its nodes, beyond their number, in words: reservation and constraint
    cluster: str = ""  # of several, the one that has the job; "": the one that Slurm's commands speak to
    operator_job: int = 0  # the Slurm job that was last submitted to be its operator; 0: it is none
    operator_state: str = ""  # what Slurm says of that job, where it was asked: while no operator is alive
    operator_reason: str = ""  # why that job waits, in Slurm's word
    next_save: SaveAhead | None = None
    next_durable: SaveAhead | None = None  # the next that goes to disk as well
    under_way: tuple[Underway, ...] = ()  # saves and restores that are, and have been for longer than a moment

    @property
    def known(self) -> bool:
        """Whether something that is told now stands behind the phase: operator, nodes, or Slurm itself."""
        told = self.nodes_at is not None and self.now - self.nodes_at < FRESH
        waits = self.phase in ("pending", "submitting") and self.slurm_state == "PENDING"
        asked = self.slurm_asked is not None and not self.slurm_error and waits
        comes = self.phase == "submitting" and self.operator_comes
        return self.over or self.phase == "held" or (self.operator and not self.slurm_lost) or told or asked or comes

    @property
    def operator_comes(self) -> bool:
        """Whether Slurm has just said of the operator's job that it waits, or has begun."""
        return not self.operator and self.operator_state in ("PENDING", "RUNNING")

    @property
    def nodes_known(self) -> bool:
        """Whether the nodes' own words are recent enough to say how each of them is."""
        return self.nodes_at is not None and self.now - self.nodes_at < STALE

    @property
    def word(self) -> str:
        """The answer to "is my run all right?": the phase, or unknown."""
        return self.phase if self.known else "unknown"

    @property
    def standing(self) -> str:
        """done, failed, stopped, held, unknown, degraded (something is wrong, and the run lives) or healthy.

        A run without an operator is unknown, though its nodes may tell that it trains: nobody would see what comes.
        """
        if self.over or self.phase == "held":
            return self.phase
        if not self.operator or self.slurm_lost:
            return "unknown"
        odd = any(one.role == "ranks" and one.state not in ("ok", "waiting") for one in self.node_views)
        return "degraded" if self.phase == "recovering" or odd or self.reports else "healthy"


def incident_view(incident: Incident, exclusions: tuple[Exclusion, ...] = ()) -> IncidentView:
    words = incident.diagnosis.words if incident.diagnosis else (incident.marks[0].words if incident.marks else "")
    lasted = incident.ended_at - incident.began if incident.ended_at is not None else None
    marks = tuple((m.at, m.what, m.words) for m in incident.marks)
    result = incident.result or incident.stage.value
    told = incident.diagnosis.decided if incident.diagnosis else UNDECIDED
    by = (told.category, told.rule, told.action, told.fingerprint)
    nodes = incident.diagnosis.nodes if incident.diagnosis else incident.quiet_nodes
    isolated = tuple((x.node, x.how) for x in exclusions if x.incident == incident.id)
    return IncidentView(incident.id, incident.began, words, result, lasted, marks, *by, nodes, isolated)


def view_of(run_id: str, state: State, tables: Mapping[str, NodeTable], now: float, *, operator: bool) -> RunView:
    told = [r for table in tables.values() for r in table.ranks]
    launch = max((r.launch for r in told), default=0)
    ranks = [r for r in told if r.launch == launch]  # a node that was given up goes on telling of a former one
    looked_at = {x.node for x in state.idle_looks}
    step = max(state.step, min((r.step for r in ranks), default=-1))
    loss = next((r.loss for r in sorted(ranks, key=lambda r: r.rank) if r.loss is not None), None)
    open_ones = (state.incident,) if state.incident is not None else ()
    return RunView(
        run_id=run_id,
        now=now,
        phase=state.phase.value,
        over=state.phase.over,
        since=state.since,
        job_id=state.job_id,
        restarts=state.restarts,
        starts=state.starts,
        step=step,
        durable=state.durable,
        loss=loss,
        nodes=tuple(n for n in state.nodes if n not in state.idle),
        spares=tuple(n for n in state.idle if n not in looked_at),
        excluded=tuple((x.node, x.how, x.reason) for x in state.exclusions),
        slurm_state=state.slurm_state,
        slurm_reason=state.slurm_reason,
        slurm_lost=state.slurm_lost,
        operator=operator,
        verdict=" ".join(state.verdict.split()),  # what Slurm says may be of several lines
        exit_code=state.exit_code,
        incidents=tuple(incident_view(i, state.exclusions) for i in (*open_ones, *reversed(state.incidents))),
        until=tuple((x.node, x.until) for x in state.exclusions),
        no_progress=state.no_progress,
        max_without_progress=state.policy.max_without_progress,
    )

"""The read model of a run: plain values that every screen, document and report is drawn from. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from transom_cli.core.bad_loss import BadLoss, BadResume
from transom_cli.core.crash_loop import CrashLoop, crash_loop, reached
from transom_cli.core.events import UNDECIDED
from transom_cli.core.fault import NOTHING, Fault, failed_again, fault_of, outcome
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.state import Exclusion, Phase, SavesFail, State, UserRequest, WouldHave
from transom_cli.core.progress import OwnCheckpoint, newest_step
from transom_cli.health.gpu.status import NodeGpus
from transom_cli.heartbeat import table
from transom_cli.plural import several, some, times, was
from transom_cli.slurm.port import cluster_command
from transom_cli.view.slurm_reasons import pending_reason
from transom_cli.view.text import made_at, span

_LEAVING = {
    "time_limit": "the time limit is near",
    "maintenance": "a node is being drained",
    "stop_request": "the launcher received SIGTERM",
    "grow": "nodes have come back",
    "reported": "a rule restarts a training with an anomaly",
}  # by `core.launcher.state.Reason`
_STOPPED = 130  # exit code of a run that a person stops
_ENDED = ("FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
_LIVE = ("pending", "starting", "training", "recovering")
FRESH = 15.0  # seconds: a file newer than this describes the present
PAUSED = (5.0, 10.0)  # seconds, and times a step: a run that trains, and makes no step for longer, is shown as paused
SLOW_ANSWER = 20.0  # seconds for which a Slurm that does not answer may only be slow
UNHEARD = 30.0  # seconds without a heartbeat of any node, beside a live operator: then no run is healthy
MAX_REQUESTS = 4  # of people, on the screen and in JSON
RECENT = 3600.0  # seconds after a restart in a new job for which screens name the job before
STALE = 60.0  # seconds: node states from older files are not shown as current


@dataclass(frozen=True)
class NodeView:
    """A node of the current attempt."""

    node: str
    role: str  # ranks, spare, or out (a spare has replaced it, or the run continues without it)
    state: str  # ok, slow, silent, suspect, probing, isolated, or waiting (for its agent, or the next start)
    step: int = -1  # the last step that all of its ranks have finished; -1 if there is none
    beat_age: float | None = None  # seconds since the slowest of its ranks finished a step
    ranks: int = 0
    alive: int = 0  # the number of its ranks whose process is alive
    phase: str = ""
    note: str = ""  # what is unusual about it
    gpus: NodeGpus | None = None  # readings of its GPUs; None if there are none
    gpus_age: float = 0.0  # seconds between the GPU readings and the newest heartbeat table of any node

    @property
    def differs(self) -> bool:
        """Whether the node is listed by default: the node or one of its GPUs needs attention."""
        if self.state not in ("ok", "waiting") or self.gpus is None:
            return self.state not in ("ok", "waiting")
        level = self.gpus.level  # moderate heat does not count: a thousand nodes may have it
        return level == "fault" or (level in ("heavy", "throttled") and not self.gpus.old(self.gpus_age))


@dataclass(frozen=True)
class NextStep:
    """What transom does next. at: when (Unix time), if known. then: what follows."""

    message: str
    at: float | None = None
    then: str = ""


@dataclass(frozen=True)
class PlannedSave:
    """A save to come. at: expected time (Unix time), if the step time is known."""

    step: int
    at: float | None = None


@dataclass(frozen=True)
class Operation:
    """A save or restore in progress."""

    what: str  # saving, copying or restoring
    step: int  # the checkpoint's step; -1 if unknown
    message: str
    began: float | None  # Unix time
    done: int  # units finished, of `total`; total is 0 if unknown
    total: int
    unit: str  # bytes or ranks


@dataclass(frozen=True)
class IncidentView:
    """An incident in brief."""

    id: str
    began: float
    message: str
    result: str  # open, recovered, stopped, ...
    duration: float | None  # seconds to the next step, or to the incident's end; None while it is open
    marks: tuple[tuple[float, str, str], ...]  # (Unix time, kind, message) of each thing seen or done
    category: str = ""  # of the diagnosis, as in `diagnose.clue.Category`
    rule: str = ""  # the policy rule that decided
    action: str = ""
    fingerprint: str = ""
    nodes: tuple[str, ...] = ()  # the nodes at fault, as far as known
    isolated: tuple[tuple[str, str], ...] = ()  # (node, drained or excluded)
    fault: Fault = NOTHING  # the same as every screen words it
    planned: bool = False  # no fault: a time limit, a preemption, a node to be drained, or a person's request

    def outcome(self, now: float) -> str:
        """Return what was done, and how it ended: `relaunched, back in 6.2 s`."""
        done = f"{self.fault.done}, " if self.fault.done else ""
        if self.duration is None:
            return f"{done}{outcome(self.result)}, {span(now - self.began)} so far"
        return f"{done}{outcome(self.result)} {span(self.duration)}"


@dataclass(frozen=True)
class Preflight:
    """Nodes are being checked before the ranks start."""

    since: float  # Unix time
    checked: int  # nodes that have answered, of `of`
    of: int
    probes: bool = False  # all have answered, and the probe computes and communicates on them


@dataclass(frozen=True)
class Standbys:
    """Standbys that are ready for the next launch (`launch.standby`)."""

    launch: int
    ranks: int  # number of standbys, with those on spares
    nodes: dict[str, int]  # number of ready ones by node
    words: str  # the same for a person, with where they wait


@dataclass(frozen=True)
class Leaving:
    """The ranks save and end, and the run continues in its next attempt."""

    since: float
    message: str
    why: str = ""  # as in `core.launcher.state.Reason`
    until: float | None = None  # the end of the attempt, if known


@dataclass(frozen=True)
class RunView:
    """Everything that a screen shows of a run. Moments are Unix time, durations seconds; `now` is when it was read.

    New fields need a default. `transom status --json` prints them all (view/schema/status.json).
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
    loss: float | None = None
    nodes: tuple[str, ...] = ()  # nodes with ranks
    spares: tuple[str, ...] = ()
    excluded: tuple[tuple[str, str, str], ...] = ()  # node, drained or excluded, reason
    slurm_state: str = ""
    slurm_reason: str = ""
    slurm_lost: str = ""
    slurm_silent_since: float | None = None  # while Slurm answers neither the operator nor this user's commands
    operator: bool = False  # a live operator holds the lease
    verdict: str = ""
    exit_code: int | None = None
    incidents: tuple[IncidentView, ...] = ()  # newest first
    memory: int = -1  # newest step in node memory
    memory_age: float | None = None  # since it was committed
    memory_protection: str = ""
    save_schedule: str = ""  # when the training saves, and why then
    reports: tuple[str, ...] = ()  # unusual behaviour of the training that transom does not act on
    step_breakdown: dict[str, object] | None = None  # time per part of a step, by rank (slowness.heatmap)
    step_breakdown_lines: tuple[str, ...] = ()  # the same as text
    path: str = ""  # run directory
    checkpoints: str = ""  # checkpoint directory
    submitted: float | None = None
    steps: int | None = None  # length of the training, from the settings
    step_time: float | None = None  # seconds per step, recently
    durable_age: float | None = None  # since the newest checkpoint on disk was seen
    node_views: tuple[NodeView, ...] = ()  # of the current attempt; () until a node has reported
    former_job: int = 0  # for an hour after a restart in a new job: the one before; 0: none
    job_step: str = ""  # of the user's own script: its name, or its number
    steps_since_start: bool = False  # `step` counts from the start of the processes, not of the training
    excluded_until: tuple[tuple[str, float | None], ...] = ()  # node, end of its exclusion (None: until lifted)
    next_steps: tuple[NextStep, ...] = ()
    restarts_without_progress: int = 0  # in a row
    max_without_progress: int = 0
    operator_host: str = ""
    operator_at: float | None = None  # last sign of life of an operator
    nodes_at: float | None = None  # newest heartbeat table of this attempt
    slurm_queried_at: float | None = None  # None: Slurm was not asked for this view
    slurm_error: str = ""  # why that query failed
    slurm_start: float | None = None  # Slurm's estimate for a pending job
    jobs_ahead: int = 0  # pending jobs of its partition with a higher priority, as far as Slurm shows them
    goodput: float | None = None  # productive share of the time since submission
    goodput_summary: str = ""  # the same as text, with the largest losses
    requirements: str = ""  # on nodes, besides their number: reservation, constraint, node names
    switches: str = ""  # Slurm's limit on switches and how long it waits for it, as 1@00:05:00
    cluster: str = ""  # cluster of the job, if not the one of the Slurm commands
    operator_job: int = 0  # the Slurm job last submitted to be the operator; 0: none
    operator_state: str = ""  # Slurm's state of that job, queried only while no operator is alive
    operator_reason: str = ""  # Slurm's reason why that job waits
    next_save: PlannedSave | None = None
    next_durable: PlannedSave | None = None  # next save that also goes to disk
    requests: tuple[UserRequest, ...] = ()  # of people, newest last
    saves_fail: SavesFail | None = None  # saves fail, and none has succeeded since
    disk_full: bool = False  # that of the run directory
    blind: str = ""  # nodes that send no heartbeats, and why
    owner: str = ""  # owner of the run, if not the current user
    operations: tuple[Operation, ...] = ()  # saves and restores that take longer than a moment
    observed: bool = False  # transom reports what it would do, and does nothing
    withheld: tuple[WouldHave, ...] = ()  # what it would have done, oldest first
    missing_files: tuple[str, ...] = ()  # without which no further job of the run can be submitted
    bad_loss: BadLoss | None = None  # of a run that is over: its loss was NaN or infinite to the end
    bad_resume: BadResume | None = None  # then: its newest checkpoint may be of that state
    root_line: str = ""  # of a failed run: file and line of the trainer that failed, or of its log
    crash_loop: CrashLoop | None = None  # the run fails again and again at the same step
    starved: str = ""  # why the job cannot start: too few usable nodes
    to_lift: tuple[str, ...] = ()  # then: the nodes that transom keeps away
    top_up_nodes: tuple[str, ...] = ()  # of `nodes`, those that a top-up job brought
    top_up: str = ""  # the newest about a job that asks Slurm for the nodes that the run lacks
    older: str = ""  # the launch continues from before the newest checkpoint on disk
    late: str = ""  # the launch has made no step in its time, and may hang
    wanted_nodes: int = 0  # that carry ranks when none is lost; 0: unknown
    requested_nodes: int = 0  # that the job asks for; 0: unknown
    leaving: Leaving | None = None
    preflight: Preflight | None = None
    own_checkpoint: OwnCheckpoint | None = None  # the trainer's own newest, if the Checkpointer makes none
    framework: str = ""  # as the trainer's log shows it; also the next three, up to a minute old
    epoch: float | None = None
    learning_rate: float | None = None
    nccl: tuple[str, ...] = ()  # which ranks the others wait for, by two readings of NCCL's RAS
    speed: str = ""  # such as 3,432 tokens/s
    standbys: Standbys | None = None

    @property
    def counted(self) -> str:
        """What follows the step if it is none of the training's own; ""."""
        if not self.steps_since_start:
            return ""
        return " of the last start" if self.phase == "recovering" else " since this start"

    @property
    def lacks_files(self) -> str:
        """Return which files of a live run are missing, and what to do; "" if none."""
        if self.over or not self.missing_files:
            return ""
        gone = f"{some(self.missing_files)} {was(len(self.missing_files), 'is', 'are')} missing"
        if self.operator:
            return f"{gone}: its operator writes {was(len(self.missing_files), 'it', 'them')} again within 5 minutes"
        if "run.toml" not in self.missing_files:
            return f"{gone}, so no further job can be submitted: restore from a copy"
        scancel = cluster_command(f"scancel {self.job_id}", self.cluster)
        end = f", or end its job: {scancel}" if self.job_id else ""
        return f"{gone}, so no operator can start: restore from a copy{end}"

    @property
    def young(self) -> bool:
        """Whether the run was made seconds ago, so that its operator or launcher may not have written yet."""
        return self.phase in ("submitting", "pending") and self.now - made_at(self.run_id) < FRESH

    @property
    def fresh(self) -> bool:
        """Whether a recent source (operator, nodes or Slurm) confirms the phase."""
        nodes = self.nodes_at is not None and self.now - self.nodes_at < FRESH
        pending = self.phase in ("pending", "submitting") and self.slurm_state == "PENDING"
        slurm = self.slurm_queried_at is not None and not self.slurm_error and pending
        starting = self.young or (self.phase == "submitting" and self.operator_pending)
        operator = self.operator and not self.slurm_lost
        return self.over or self.phase == "held" or operator or nodes or slurm or starting

    @property
    def slurm_silent(self) -> float:
        """Seconds since Slurm began not to answer; 0 for the first, unless the operator has noticed: it may be slow."""
        silent = self.now - self.slurm_silent_since if self.slurm_silent_since is not None else 0.0
        return max(silent, 0.1) if self.slurm_lost else silent if silent >= SLOW_ANSWER else 0.0

    @property
    def unheard(self) -> float | None:
        """Seconds since the last heartbeat of any node, if a run that trains has none; None if all is well or unknown.

        Both moments are by the file system's clock: the operator renews its lease on it.
        """
        at, seen = self.nodes_at, self.operator_at
        if self.confirmed != "training" or self.leaving is not None or at is None or seen is None:
            return None
        return seen - at if self.operator and seen - at > UNHEARD else None

    @property
    def no_step_for(self) -> float | None:
        """Seconds since any node finished a step, if far more than a step takes: it evaluates, or hangs."""
        ages = [one.beat_age for one in self.node_views if one.role == "ranks" and one.beat_age is not None]
        if self.confirmed != "training" or self.leaving or self.operations or not (ages and self.step_time):
            return None
        return min(ages) if min(ages) > max(PAUSED[0], PAUSED[1] * self.step_time) else None

    @property
    def operator_pending(self) -> bool:
        """Whether Slurm reports that the operator's job waits or has begun."""
        return not self.operator and self.operator_state in ("PENDING", "RUNNING")

    @property
    def nodes_fresh(self) -> bool:
        """Whether node reports are recent enough to show the state of each node."""
        return self.nodes_at is not None and self.now - self.nodes_at < STALE

    @property
    def confirmed(self) -> str:
        """The phase, or unknown if no recent source confirms it."""
        return self.phase if self.fresh else "unknown"

    @property
    def status(self) -> str:
        """What the first line says: the phase, or more precisely what the run does."""
        phase = self.confirmed
        if self.crash_loop is not None and phase in _LIVE:
            return "crash loop"
        if self.failing and phase == "stopping":
            return "failing"
        if self.starved and phase in ("pending", "recovering"):
            return "starved"
        if self.leaving is not None and phase in ("starting", "training", "recovering"):
            return "leaving"
        if self.preflight is not None and phase in ("starting", "recovering"):
            return "preflight"
        if phase == "recovering" and self._continues:
            phase = "pending"
        if phase == "pending" and self.slurm_state == "RUNNING":  # the operator asks Slurm less often
            return "starting"
        return phase

    @property
    def failing(self) -> bool:
        """Whether transom has ended the run as failed, and Slurm still removes the job's processes."""
        return self.phase == "stopping" and self.exit_code not in (None, _STOPPED)

    @property
    def no_operator(self) -> bool:
        """Whether nobody handles the next fault of a run whose present state is known."""
        alone = not (self.operator or self.young or self.over)
        return alone and self.status not in ("unknown", "held", "submitting", "failing")

    @property
    def _continues(self) -> bool:
        """Whether a planned end of an attempt is all that the run recovers from."""
        newest = self.incidents[0] if self.incidents else None
        return newest is not None and newest.duration is None and newest.planned

    @property
    def condition(self) -> str:
        """The rest of the first line: what `status` means for this run; "" for a phase."""
        loop, status = self.crash_loop, self.status
        if status == "crash loop" and loop is not None:
            ends, requeues = loop.ends_at - loop.count, self.max_without_progress - self.restarts_without_progress
            end = "stops in place of the next requeue"  # the restart budget ends what no rule ends
            end = f"stops after {several(requeues, 'more requeue')} without progress" if requeues > 0 else end
            end = f"stops after {ends} more" if ends > 0 else end
            end = f"; {end}" if not self.observed else ""
            where = f" on {several(loop.nodes, 'node')}" if loop.nodes else ""
            return f"{loop.line}, {times(loop.count)}{where}, never past step {loop.step:,}{end}"
        if status == "leaving" and self.leaving is not None:
            return self.leaving.message
        if status == "preflight" and self.preflight is not None:
            probe = ", the probe tests GPUs and links" if self.preflight.probes else ""
            return f"{self.preflight.checked:,} of {several(self.preflight.of, 'node')} checked{probe}"
        return self.starved if status == "starved" else ""

    @property
    def lacking(self) -> int:
        """How many nodes fewer than usual carry ranks, in a run that may shrink."""
        runs = self.slurm_state == "RUNNING" and bool(self.nodes) and not self.over
        return max(0, self.wanted_nodes - len(self.nodes)) if runs else 0

    @property
    def shrunk(self) -> str:
        """For a run that continues on fewer nodes than usual; "" for any other."""
        if not self.lacking:
            return ""
        out = tuple(one.node for one in self.node_views if one.role == "out")
        without = f", without {some(out)}" if out else ""
        top_up = f"; top-up: {self.top_up}" if self.top_up else ""
        return f"on {len(self.nodes)} of {several(self.wanted_nodes, 'node')}{without}{top_up}"

    @property
    def concern(self) -> str:
        """What keeps a run that trains, waits or is done from being healthy, for the first line; "" if nothing does."""
        if self.bad_loss is not None and self.over:
            return f"loss {self.bad_loss.kind}"
        if self.never_starts:
            return "will not start"
        if self.ended_in_slurm:
            return f"Slurm says {self.slurm_state}"
        if self.disk_full:
            return "disk full"
        if self.no_operator:
            return "no operator"
        if self.late and self.status == "starting":
            return "no step"
        if self.health != "degraded" or self.status not in ("training", "done"):
            return ""
        if self.unheard is not None:
            return "no heartbeats"
        if self.saves_fail is not None:
            return "saves fail"
        newest = self.incidents[0] if self.incidents else None
        if newest is not None and newest.duration is None:
            return "fault suspected"
        states = {one.state for one in self.node_views if one.role == "ranks"} - {"ok", "waiting"}
        return "slow" if states == {"slow"} else "degraded"

    @property
    def headline(self) -> str:
        """The state with its concern, in capitals: `TRAINING, SAVES FAIL`."""
        found = f"{self.status}, {self.concern}" if self.concern else self.status
        return found.upper().replace("LOSS NAN", "LOSS NaN")

    @property
    def ended_in_slurm(self) -> bool:
        """Whether Slurm, asked just now, says that a job which waits or trains has ended. The operator sees it soon."""
        asked = self.slurm_queried_at is not None and not self.slurm_error and self.leaving is None
        return asked and self.confirmed in ("pending", "starting", "training") and self.slurm_state in _ENDED

    @property
    def never_starts(self) -> bool:
        """Whether Slurm will never start the job as it was submitted. Exclusions are the operator's to change."""
        pending = self.status in ("pending", "recovering") and not self.excluded
        return pending and "will not start" in pending_reason(self)

    @property
    def health(self) -> str:
        """done, failed, stopped, held, starved, crash loop, unknown, degraded (the run lives with a fault) or healthy.

        A run without an operator is unknown even if its nodes report training: nobody handles the next fault.
        A finished run whose last saves failed is degraded: its result was not saved.
        """
        if self.phase == "done" and self.saves_fail is not None:
            return "degraded"
        if self.over or self.phase == "held":
            return self.phase
        if self.failing:
            return "failed"
        if (not self.operator and not self.young) or self.slurm_lost:
            return "unknown"
        if self.status in ("crash loop", "starved"):
            return self.status
        if self.never_starts:
            return "starved"
        ends = self.leaving is not None or self.phase in ("stopping", "finishing")  # so its ranks are gone
        ranks = (one for one in self.node_views if one.role == "ranks")
        odd = not ends and (self.blind or any(one.state not in ("ok", "waiting") for one in ranks))
        recovers = self.phase == "recovering" and self.leaving is None and not self._continues
        fails = self.saves_fail or self.disk_full or self.late or self.ended_in_slurm
        troubled = recovers or odd or self.reports or fails
        return "degraded" if troubled else "healthy"


def incident_view(incident: Incident, exclusions: tuple[Exclusion, ...] = (), *, held: bool = False) -> IncidentView:
    """Summarise an incident. held: its job may not start."""
    diagnosis = incident.diagnosis
    decided = diagnosis.decided if diagnosis else UNDECIDED
    return IncidentView(
        id=incident.id,
        began=incident.began,
        message=diagnosis.words if diagnosis else (incident.marks[0].words if incident.marks else ""),
        fault=fault_of(incident, exclusions),
        result=incident.result or ("held" if held and incident.stage is Stage.STARTING else incident.stage.value),
        duration=incident.ended_at - incident.began if incident.ended_at is not None else None,
        marks=tuple((m.at, m.what, m.words) for m in incident.marks),
        category=decided.category,
        rule=decided.rule,
        action=decided.action,
        fingerprint=decided.fingerprint,
        nodes=diagnosis.nodes if diagnosis else incident.suspect_nodes,
        isolated=tuple((x.node, x.how) for x in exclusions if x.incident == incident.id),
        planned=diagnosis is not None and diagnosis.planned,
    )


def build_view(
    run_id: str, state: State, tables: Mapping[str, table.NodeTable], now: float, *, operator: bool
) -> RunView:
    """Build a view from the operator's state and the nodes' heartbeat tables."""
    every = [r for one in tables.values() for r in one.ranks]
    launch = max((r.launch for r in every), default=0)
    ranks = [r for r in every if r.launch == launch]  # a replaced node still reports its former launch
    replaced = {x.node for x in state.idle.probes}
    step, since_start = newest_step((state.progress.step, state.progress.since_start), table.reached(ranks))
    of_start = step
    if state.phase is Phase.RECOVERING and state.incident is not None:  # exit records know more than heartbeats
        step, since_start = newest_step((step, since_start), reached(state.incident))
    known = state.progress.max_step
    if state.incident is not None and not state.incident.since_start:
        known = max(known, state.incident.step)
    if known >= 0 and not state.progress.since_start:
        known = max(known, state.progress.durable)  # the save before a planned end is newer than the last report
    if step < 0 or (state.phase is Phase.RECOVERING and step < known):  # show how far the run had come
        begins = state.progress.since_start and state.phase in (Phase.SUBMITTING, Phase.PENDING, Phase.STARTING)
        step, since_start = -1 if begins else known, state.progress.since_start
    loss = next((r.loss for r in sorted(ranks, key=lambda r: r.rank) if r.loss is not None), None)
    rules = state.policy.rules
    loop = None if state.phase.over else crash_loop((*state.counting, state.incident), of_start, rules)
    open_ones = (state.incident,) if state.incident is not None else ()
    return RunView(
        run_id=run_id,
        now=now,
        phase=(Phase.FINISHING if state.ends else state.phase).value,
        over=state.phase.over,
        since=state.since,
        job_id=state.job.id,
        restarts=state.job.restarts,
        starts=state.job.starts,
        former_job=_former_job(state, now),
        step=step,
        job_step=state.job_step,
        steps_since_start=since_start and step >= 0,
        durable=state.progress.durable,
        loss=loss,
        nodes=state.carrying,
        top_up_nodes=state.launch.extra,
        top_up=state.launch.top_up,
        older="" if state.phase.over else state.launch.older,
        late=state.launch.late if state.phase is Phase.STARTING else "",
        spares=tuple(n for n in state.idle.nodes if n in state.job.nodes and n not in replaced),
        excluded=tuple((x.node, x.how, x.reason) for x in state.avoided),
        slurm_state="COMPLETING" if state.job.completing and state.phase is Phase.STOPPING else state.job.state,
        slurm_reason=state.job.reason,
        slurm_lost=state.slurm_error,
        slurm_silent_since=state.slurm_lost_at if state.slurm_error else None,
        operator=operator,
        verdict=" ".join(state.verdict.split()),  # Slurm's messages may have several lines
        exit_code=state.exit_code,
        incidents=_incidents(
            (*open_ones, *reversed(state.incidents)),
            state.isolation.exclusions,
            looping=loop is not None,
            held=state.phase is Phase.HELD,
        ),
        excluded_until=tuple((x.node, x.until) for x in state.avoided),
        restarts_without_progress=0 if state.progress.further() else state.budget.no_progress,
        max_without_progress=state.policy.max_without_progress,
        requests=state.requests[-MAX_REQUESTS:],
        saves_fail=state.saves_fail,
        observed=state.policy.observe,
        withheld=state.withheld,
        wanted_nodes=max(0, state.request.num_nodes - state.request.spares),
        requested_nodes=state.request.num_nodes,
        crash_loop=loop,
        leaving=_leaving(state),
    )


def _former_job(state: State, now: float) -> int:
    incident = state.incident or next(iter(state.incidents[-1:]), None)
    if incident is None or incident.job_id == state.job.id:
        return 0
    recent = incident.ended_at is None or now - incident.ended_at < RECENT
    return incident.job_id if recent and not state.phase.over else 0


def _leaving(state: State) -> Leaving | None:
    found, incident = state.launch.leaving, state.incident
    if state.phase.over:
        return None
    if found is None and state.restarting and incident is not None and incident.diagnosis is not None:
        planned = incident.diagnosis.planned  # requested by a person: the launcher hears of it from Slurm
        return Leaving(incident.began, incident.diagnosis.words, incident.diagnosis.cause) if planned else None
    if found is None:
        return None
    return Leaving(found.at, f"{_LEAVING.get(found.why, found.why)}: {found.words}", found.why)


def _incidents(
    incidents: tuple[Incident, ...], exclusions: tuple[Exclusion, ...], *, looping: bool, held: bool
) -> tuple[IncidentView, ...]:
    """Summarise incidents, newest first. One is recovered only if the run got past the step at which it failed.

    Args:
        looping: The run has not got past the step of the newest one.
    """
    again = failed_again(incidents[::-1])
    views = [incident_view(one, exclusions, held=held) for one in incidents]
    found = [replace(view, result="failed again") if view.id in again else view for view in views]
    if looping and found and found[0].result == "recovered":
        found[0] = replace(found[0], result="starting", duration=None)
    return tuple(found)

"""The state of each node of the attempt. Pure.

The strongest applies: isolated, probing, silent, suspect, slow, ok.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from transom_cli.core.incident import Stage
from transom_cli.core.operator.actions import Probe
from transom_cli.core.operator.state import Phase, State
from transom_cli.health.gpu.status import NodeGpus
from transom_cli.heartbeat.table import NodeTable, RankBeat, reached
from transom_cli.view.model import NodeView
from transom_cli.view.text import some, span

LETTERS = {"ok": ".", "slow": "s", "silent": "!", "suspect": "?", "probing": "p", "isolated": "x", "waiting": "-"}
_BAD = ("suspect", "fail")  # verdicts of findings, as in `health.finding`
_GONE = {"X": "is gone", "Z": "is dead", "T": "is stopped"}  # by /proc state letter
_HEARTBEATS = "host:heartbeats"  # the agent's finding that the node has no place for heartbeats
BLIND_AFTER = 60.0  # seconds from a launch's start, as in `supervise.launcher.monitor`
_LOGS = "log:"  # prefix of findings in a rank's log, which count for one launch only


@dataclass(frozen=True)
class Found:
    """A line of `nodes/<node>.jsonl`. verdict: as in `health.finding`."""

    kind: str
    verdict: str
    words: str
    launch: int


@dataclass(frozen=True)
class NodeSight:
    """The content of one node's files. behind, gpus_behind: seconds that they lag behind the newest table."""

    table: NodeTable | None = None
    behind: float = 0.0
    found: tuple[Found, ...] = ()
    gpus: NodeGpus | None = None
    gpus_behind: float = 0.0


class NodeViews:
    """Judges nodes repeatedly, and keeps the views of those that have not changed."""

    def __init__(self) -> None:
        self._about: tuple[object, ...] = ()
        self._made: dict[str, tuple[NodeSight, NodeView]] = {}

    def of(
        self, state: State, sights: Mapping[str, NodeSight], slow: Mapping[str, str], silent_after: float
    ) -> tuple[NodeView, ...]:
        """Return views in Slurm's order, spares last; () if there is no table.

        slow: By node, why it is slow. silent_after: Seconds without a table after which a node is silent.
        """
        tables = [sight.table for sight in sights.values() if sight.table is not None]
        if not tables:
            return ()
        launch = max((table.ranks[0].launch for table in tables if table.ranks), default=-1)
        about = (state, tuple(sorted(slow.items())), launch, silent_after)
        if self._about[1:] != about[1:] or self._about[0] is not state:
            self._about, self._made = about, {}
        known = _Known(state, launch, slow, silent_after)
        none = NodeSight()
        nodes = (*state.job.nodes, *state.launch.extra) or sorted(sights)  # unknown to a run without an operator
        for node in nodes:
            sight = sights.get(node, none)
            if node not in self._made or self._made[node][0] is not sight:
                self._made[node] = sight, known.view(node, sight)
        views = [self._made[node][1] for node in nodes]
        return (*(v for v in views if v.role != "spare"), *(v for v in views if v.role == "spare"))


class _Known:
    """What the state says about all nodes."""

    def __init__(self, state: State, launch: int, slow: Mapping[str, str], silent_after: float) -> None:
        incident = state.incident
        active = incident is not None and incident.stage not in (Stage.STARTING, Stage.CLOSED)
        self._launch, self._slow, self._silent_after = launch, slow, silent_after
        self._counts = state.progress.since_start or state.progress.step < 0  # steps since the processes' start
        self._idle = {*state.idle.nodes}
        self._out = {x.node for x in state.idle.probes}
        self._isolated = {x.node: f"{x.how}: {x.reason}" for x in state.avoided}
        self._probed = {a.node: f"probe {a.key.rpartition('/')[2]}" for a in state.pending if isinstance(a, Probe)}
        self._quiet = set(incident.silent_nodes) if incident is not None and active else set()
        diagnosis = incident.diagnosis if incident is not None and active else None
        self._blamed = dict.fromkeys(diagnosis.nodes, diagnosis.words) if diagnosis is not None else {}
        faults = (*state.idle.faults, *(incident.faults if incident is not None and active else ()))
        self._faults = {fault.node: fault.words for fault in reversed(faults)}

    def role(self, node: str) -> str:
        return "ranks" if node not in self._idle else "out" if node in self._out else "spare"

    def view(self, node: str, sight: NodeSight) -> NodeView:
        role, table = self.role(node), sight.table
        ranks = [r for r in table.ranks if r.launch == self._launch] if table is not None and role == "ranks" else []
        beating = [r for r in ranks if r.count]  # in many trainers only rank 0 reports
        dead = [r for r in ranks if r.proc in _GONE and r.phase != "done"]
        state, note = self._judge(node, sight, dead)
        return NodeView(
            node,
            role,
            state,
            step=min((r.step for r in beating if self._counts or not r.since_start), default=-1),
            beat_age=sight.behind + max(r.age for r in beating) if beating else None,
            ranks=len(ranks),
            alive=len(ranks) - sum(r.proc in "XZ" for r in dead),
            phase=_phase(ranks),
            note=note,
            gpus=sight.gpus,
            gpus_age=sight.gpus_behind,
        )

    def _judge(self, node: str, sight: NodeSight, dead: list[RankBeat]) -> tuple[str, str]:
        table, closed = sight.table, sight.table is not None and sight.table.closed
        if node in self._isolated:
            return "isolated", self._isolated[node]
        if node in self._probed:
            return "probing", f"{self._probed[node]} of the node"
        if node in self._out:  # it was given up, and need not report
            return "waiting", ""
        if sight.behind > self._silent_after and not closed:
            return "silent", f"no heartbeat for {span(sight.behind)}"
        if node in self._quiet:
            return "silent", "its ranks make no progress"
        if table is None:
            return "waiting", "its agent has not reported yet"
        if node in self._faults:
            return "suspect", self._faults[node]
        if node in self._blamed:
            return "suspect", self._blamed[node]
        if dead and (self._blamed or self._quiet):  # they fell with the node at fault
            return "waiting", "its ranks have ended, for the fault of another node"
        if dead:
            more = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
            return "suspect", f"rank {dead[0].rank} {_GONE[dead[0].proc]}{more}"
        worst = _worst(sight.found, self._launch)
        if worst is not None:
            return "suspect", worst.words
        return ("slow", self._slow[node]) if node in self._slow else ("ok", "")


def seen_by_nodes(state: State, sights: Mapping[str, NodeSight]) -> State:
    """Return the state of a run whose job waits or starts, with what its nodes show already: it runs, and steps.

    The operator learns of it later, or never, if the run has none.
    """
    tables = [one.table for one in sights.values() if one.table is not None and not one.table.closed]
    if not tables or state.phase not in (Phase.PENDING, Phase.STARTING) or state.incident is not None:
        return state
    ranks = [rank for one in tables for rank in one.ranks]
    launch = max((rank.launch for rank in ranks), default=0)
    steps = reached(rank for rank in ranks if rank.launch == launch)[0] >= 0
    state = replace(state, launch=replace(state.launch, started=True)) if ranks and not state.launch.started else state
    phase = Phase.TRAINING if steps else Phase.STARTING
    return state if phase is state.phase else state.in_phase(phase, 0.0)


def blind_nodes(state: State, sights: Mapping[str, NodeSight], launched: float | None, now: float) -> str:
    """Name the nodes whose ranks nobody can see a minute after their launch, and why; "" if there are none."""
    if launched is None or now - launched < BLIND_AFTER or state.phase.over or state.job.state != "RUNNING":
        return ""
    blind: dict[str, str] = {}
    for node in (*state.job.nodes, *state.launch.extra):
        sight = sights.get(node)
        last = next((f for f in reversed(sight.found) if f.kind == _HEARTBEATS), None) if sight is not None else None
        if last is not None and last.verdict in _BAD:
            blind[node] = last.words
        elif (sight is None or sight.table is None) and node not in state.idle.nodes:
            blind[node] = "no table from the agent, see the attempt's agents.log"
    return f"{some(tuple(blind))}: {next(iter(blind.values()))}" if blind else ""


def _worst(found: tuple[Found, ...], launch: int) -> Found | None:
    """Return the worst finding: the last of each check counts, and findings in the logs of this launch."""
    last = {one.kind: one for one in found if one.launch == launch or not one.kind.startswith(_LOGS)}
    return max((f for f in last.values() if f.verdict in _BAD), key=lambda f: f.verdict == "fail", default=None)


def _phase(ranks: list[RankBeat]) -> str:
    """Return the phase that all ranks are in; "" if they differ."""
    phases = {r.phase for r in ranks}
    return phases.pop() if len(phases) == 1 else ""

"""How each node of the attempt is, from all that is known of it. Pure.

What speaks of a node, the stronger word first: it is isolated; it is being probed; nothing is heard of it; something
speaks against it; its ranks are slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.beats.table import NodeTable, RankBeat
from transom_cli.core.actions import Probe
from transom_cli.core.state import Stage, State
from transom_cli.health.gpu.shown import NodeGpus
from transom_cli.ui.view import NodeView
from transom_cli.ui.words import span

LETTERS = {"ok": ".", "slow": "s", "silent": "!", "suspect": "?", "probing": "p", "isolated": "x", "waiting": "-"}
_AGAINST = ("suspect", "fail")  # verdicts of findings, as in `health.finding`
_GONE = {"X": "is gone", "Z": "is dead", "T": "is stopped"}  # /proc state letters
_LOGS = "log:"  # the kind of a finding in a rank's log, which is of one launch


@dataclass(frozen=True)
class Found:
    """A line of `nodes/<node>.jsonl`: verdict as in `health.finding`."""

    kind: str
    verdict: str
    words: str
    launch: int


@dataclass(frozen=True)
class NodeSight:
    """What the files tell of one node. behind: seconds by which its table is older than the newest of all; gpus_behind:
    and by which what it shows of its GPUs is."""

    table: NodeTable | None = None
    behind: float = 0.0
    found: tuple[Found, ...] = ()
    gpus: NodeGpus | None = None
    gpus_behind: float = 0.0


class NodeViews:
    """For whoever looks again and again: of what has not changed the view stands."""

    def __init__(self) -> None:
        self._about: tuple[object, ...] = ()
        self._made: dict[str, tuple[NodeSight, NodeView]] = {}

    def of(
        self, state: State, sights: Mapping[str, NodeSight], slow: Mapping[str, str], silent_after: float
    ) -> tuple[NodeView, ...]:
        """In Slurm's order, spares at the end. slow: nodes whose ranks are, and in what words. () without any table."""
        tables = [sight.table for sight in sights.values() if sight.table is not None]
        if not tables:
            return ()
        launch = max((table.ranks[0].launch for table in tables if table.ranks), default=-1)
        about = (state, tuple(sorted(slow.items())), launch, silent_after)
        if self._about[1:] != about[1:] or self._about[0] is not state:
            self._about, self._made = about, {}
        known = _Known(state, launch, slow, silent_after)
        none = NodeSight()
        for node in state.nodes:
            sight = sights.get(node, none)
            if node not in self._made or self._made[node][0] is not sight:
                self._made[node] = sight, known.view(node, sight)
        views = [self._made[node][1] for node in state.nodes]
        return (*(v for v in views if v.role != "spare"), *(v for v in views if v.role == "spare"))


class _Known:
    """What is known of all nodes together."""

    def __init__(self, state: State, launch: int, slow: Mapping[str, str], silent_after: float) -> None:
        incident = state.incident
        at_it = incident is not None and incident.stage not in (Stage.STARTING, Stage.CLOSED)
        self._launch, self._slow, self._silent_after = launch, slow, silent_after
        self._idle = {*state.idle}
        self._out = {look.node for look in state.idle_looks}
        self._isolated = {x.node: f"{x.how}: {x.reason}" for x in state.exclusions}
        self._probed = {a.node: f"probe {a.key.rpartition('/')[2]}" for a in state.pending if isinstance(a, Probe)}
        self._quiet = {*incident.quiet_nodes, *incident.overdue_nodes} if incident is not None and at_it else set()
        diagnosis = incident.diagnosis if incident is not None and at_it else None
        self._blamed = dict.fromkeys(diagnosis.nodes, diagnosis.words) if diagnosis is not None else {}
        faults = (*state.idle_faults, *(incident.faults if incident is not None and at_it else ()))
        self._faults = {fault.node: fault.words for fault in reversed(faults)}

    def role(self, node: str) -> str:
        return "ranks" if node not in self._idle else "out" if node in self._out else "spare"

    def view(self, node: str, sight: NodeSight) -> NodeView:
        role, table = self.role(node), sight.table
        ranks = [r for r in table.ranks if r.launch == self._launch] if table is not None and role == "ranks" else []
        beating = [r for r in ranks if r.count]  # in many trainers rank 0 alone beats
        dead = [r for r in ranks if r.proc in _GONE and r.phase != "done"]
        state, note = self._judge(node, sight, dead)
        return NodeView(
            node,
            role,
            state,
            step=min((r.step for r in beating), default=-1),
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
            return "probing", f"{self._probed[node]} of its slurmd"
        if sight.behind > self._silent_after and not closed:
            return "silent", f"not heard for {span(sight.behind)}"
        if node in self._quiet:
            return "silent", "its ranks make no step"
        if table is None:
            return "waiting", "nothing heard of it yet"
        if node in self._faults:
            return "suspect", self._faults[node]
        if node in self._blamed:
            return "suspect", self._blamed[node]
        if dead:
            more = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
            return "suspect", f"rank {dead[0].rank} {_GONE[dead[0].proc]}{more}"
        against = _against(sight.found, self._launch)
        if against is not None:
            return "suspect", against.words
        return ("slow", self._slow[node]) if node in self._slow else ("ok", "")


def _against(found: tuple[Found, ...], launch: int) -> Found | None:
    """What speaks against the node, the worst: a check's last word counts, and what the logs of this launch told."""
    last = {one.kind: one for one in found if one.launch == launch or not one.kind.startswith(_LOGS)}
    return max((f for f in last.values() if f.verdict in _AGAINST), key=lambda f: f.verdict == "fail", default=None)


def _phase(ranks: list[RankBeat]) -> str:
    """In which its ranks are, where it is the same for all of them."""
    phases = {r.phase for r in ranks}
    return phases.pop() if len(phases) == 1 else ""

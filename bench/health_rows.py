"""The matrix of faults: each fault, the expected verdict, and the observed one. Pure.

found: the expected check blames the faulty node with the expected verdict; a weaker one would keep a bad node in the
run, a stronger one would drain a good one. named: no other node is bad, and that check names no other node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import from_tests  # noqa: F401
from nvml_stub import State as Gpus

from transom_cli.core.diagnose import NODE_FAULT, PREFLIGHT
from transom_cli.core.incident import Diagnosis
from transom_cli.core.launcher.actions import StartLaunch
from transom_cli.core.launcher.decide import decide
from transom_cli.core.launcher.events import AttemptStarted, NodesChecked
from transom_cli.core.launcher.state import Nodes, Policy, State
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.report import faults

NODES = ("node1", "node2", "node3", "node4")
PLACES = {"first": "node1", "middle": "node3", "last": "node4"}
WELL = (Verdict.PASS, Verdict.UNKNOWN)
_WORST = (Verdict.FAIL, Verdict.SUSPECT, Verdict.MONITOR, Verdict.UNKNOWN, Verdict.PASS)


def neighbour(node: str) -> str:
    """The one at the other end of a link that is at fault; the two meet in the probe's first rounds."""
    return NODES[NODES.index(node) - 1]


@dataclass(frozen=True)
class Fault:
    """One row: what is done to a node, and what must come of it.

    checks: any of these must speak, with this verdict ("room" for "room:/scratch"). codes: or `gpu_xid` must, for each
    of so many codes. pair: the fault is a link's, and both of its ends are named. probe: it shows only where nodes
    compute and send. watch: it shows only in what has changed since a former look. needs: programs.

    gpus: the node's GPUs. log: lines of its kernel. files: of its /sys, None takes a folder away. shell: done on the
    node before it is checked, with $SCRATCH, $RUN, $NODE and $PYTHON. env: of its processes. clock: seconds off.
    site: what the site's own check does there. net: "cut", "lose P", "throttle RATE", "delay MS" of the link or the
    node. when: which phase of the health run it waits for, do: "kill" or "stop" or "slow", whom: "probe" or "worker".
    never: no node worker starts. limits: thresholds of settings. waits: its seconds are a deadline's, so that it may be
    tried beside others.
    """

    name: str
    checks: tuple[str, ...]
    verdict: Verdict
    probe: bool = False
    watch: bool = False
    pair: bool = False
    codes: int = 0
    needs: tuple[str, ...] = ()
    gpus: Callable[[Gpus], Gpus | None] | None = None
    log: tuple[str, ...] = ()
    files: Mapping[str, str | None] = field(default_factory=dict)
    shell: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    clock: float = 0.0
    site: str = ""
    net: str = ""
    when: str = ""
    do: str = ""
    whom: str = "probe"
    never: bool = False
    limits: tuple[tuple[str, float], ...] = ()
    waits: bool = False

    def guilty(self, node: str) -> tuple[str, ...]:
        return (node, neighbour(node)) if self.pair else (node,)


@dataclass(frozen=True)
class Row:
    """verdict, check, words: of the worst finding of the expected checks on the node. others: findings that name an
    innocent node. untried: why the fault could not be made."""

    fault: str
    place: str
    node: str
    found: bool = False
    named: bool = False
    check: str = ""
    verdict: str = ""
    action: str = ""
    seconds: float = 0.0
    words: str = ""
    others: tuple[str, ...] = ()
    untried: str = ""

    @property
    def well(self) -> bool:
        return self.found and self.named

    @property
    def short(self) -> str:
        """The check without its path."""
        return self.check.partition(":")[0]


def judged(fault: Fault, place: str, findings: Sequence[Finding], seconds: float) -> Row:
    node = PLACES[place]
    guilty = fault.guilty(node)
    mine = {n: [f for f in findings if f.node == n and _speaks(fault, f.check)] for n in guilty}
    worst = {n: min(of, key=lambda f: _WORST.index(f.verdict), default=None) for n, of in mine.items()}
    worse = [f for f in findings if f.node in guilty and f.verdict.bad and not fault.verdict.bad]
    first = worse[0] if worse else worst[node]
    found = all(f is not None and f.verdict is fault.verdict for f in worst.values())
    found = found and not worse  # another check must not keep the node out for what is only reported
    if fault.codes:
        found = sum(f.verdict is fault.verdict for f in mine[node]) == len(mine[node]) == fault.codes
    monitored = fault.verdict is Verdict.MONITOR
    others = [
        f for f in findings if f.node not in guilty
        and (f.verdict.bad or (monitored and _speaks(fault, f.check) and f.verdict is Verdict.MONITOR))
    ]  # fmt: skip
    return Row(
        fault.name, place, node, found, not others,
        check=first.check if first else "",
        verdict=first.verdict.value if first else "nothing",
        action=action(node, findings, fault.watch),
        seconds=round(seconds, 1),
        words=first.evidence if first else "",
        others=tuple(f"{f.node}: {f.check} {f.verdict.value}: {f.evidence}" for f in others),
    )  # fmt: skip


def _speaks(fault: Fault, check: str) -> bool:
    return check in fault.checks or check.partition(":")[0] in fault.checks


def action(node: str, findings: Sequence[Finding], watched: bool = False) -> str:
    """Return what the launcher's core does about it, if it wants three nodes of four."""
    found = faults(findings)
    own = [f for f in found if f.node == node]
    if not own:
        worst = min((f.verdict for f in findings if f.node == node), key=_WORST.index, default=Verdict.PASS)
        return "reported" if worst in (Verdict.MONITOR, Verdict.UNKNOWN) else "none"
    isolates = Diagnosis(NODE_FAULT, "", (node,), False, "none", True, faults=found).isolates(node)
    kept = {"drain": "drained", "exclude": "excluded"}.get(isolates, "kept")
    if watched:  # beside a training
        return f"{kept}, launch ended at once" if own[0].proven else "remembered"
    state = State(1, 0, Nodes(NODES, len(NODES) - 1), 1, Policy(preflight=True))
    state, _ = decide(state, AttemptStarted(0.0))
    _, orders = decide(state, NodesChecked(1.0, PREFLIGHT, found, ""))
    launched = next((order.nodes for order in orders if isinstance(order, StartLaunch)), ())
    return (
        f"swapped, {kept}" if launched and node not in launched else f"attempt left, {kept}" if not launched else kept
    )


def counts(rows: Sequence[Row]) -> dict[str, int]:
    tried = [row for row in rows if not row.untried]
    return {
        "rows": len(rows),
        "found": sum(row.found for row in tried),
        "named": sum(row.named for row in tried),
        "missed": sum(not row.found for row in tried),
        "innocent_named": sum(not row.named for row in tried),
        "not_tried": len(rows) - len(tried),
    }


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each fault: at how many of its places it was found, and nobody else named; what is not well, below."""
    lines = [f"{'fault':<34}{'found':<7}{'named':<7}{'verdict':<9} {'check':<18} {'action':<31} seconds"]
    for name in dict.fromkeys(row.fault for row in rows):
        mine = [row for row in rows if row.fault == name]
        tried = [row for row in mine if not row.untried]
        if not tried:
            lines.append(f"{name:<34}not tried: {mine[0].untried}")
            continue
        cells = [f"{sum(r.found for r in tried)}/{len(tried)}", f"{sum(r.named for r in tried)}/{len(tried)}"]
        verdict, check, act = (_all(getattr(r, x) for r in tried) for x in ("verdict", "short", "action"))
        seconds = " ".join(f"{r.seconds:.1f}" for r in tried)
        lines.append(f"{name:<34}{cells[0]:<7}{cells[1]:<7}{verdict:<9} {check:<18} {act:<31} {seconds}")
    for row in rows:
        if not row.untried and not row.well:
            what = "missed" if not row.found else "innocent node named"
            lines.append(
                f"{what}: {row.fault}, {row.place} ({row.node}): {row.verdict} {row.check} {row.words}".rstrip()
            )
            lines += [f"    {words}" for words in row.others]
    return [*lines, last_line(rows)]


def last_line(rows: Sequence[Row]) -> str:
    n = counts(rows)
    tried = n["rows"] - n["not_tried"]
    took = [row.seconds for row in rows if not row.untried]
    middle = f"; median {median(took):.1f} s, worst {max(took):.1f} s" if took else ""
    names = len({row.fault for row in rows if not row.untried})
    return (
        f"{names} faults, {tried} rows: {n['found']} found, {n['named']} with the right node named,"
        f" {n['missed']} missed, {n['innocent_named']} with an innocent node named; {n['not_tried']} not tried{middle}"
    )


def hangs(rows: Sequence[Row], usual: float) -> list[str]:
    """What costs a deadline, compared with a health run of healthy nodes."""
    lines = []
    for name in dict.fromkeys(row.fault for row in rows if "hang" in row.fault and not row.untried):
        took = [row.seconds for row in rows if row.fault == name and not row.untried]
        lines.append(f"{name}: median {median(took):.1f} s, {usual:.1f} s where nothing hangs")
    return lines


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def _all(values: Any) -> str:
    return "/".join(dict.fromkeys(values))

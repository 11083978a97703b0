"""What trouble on one node tells when all nodes are looked at: is it the node's, or what they share? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transom_cli.health.finding import Finding, Remedy, Verdict

_PATHS = ("mount:", "write:", "room:")
_WAITS = ("mount:", "write:", "run_dir")
_OWN = ("/tmp", "/dev/shm")
_ALIKE = (
    "answer", "run_dir", "shm", "memory", "ib_state", "ib_rate",
    "gpu_count", "gpu_lost", "gpu_nvlink", "gpu_fabric", "gpu_clocks", "gpu_heat", "gpu_leftover",
)  # fmt: skip
_ORDER = (Verdict.UNKNOWN, Verdict.PASS, Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL)


def shared_trouble(findings: Mapping[str, Sequence[Finding]]) -> dict[str, tuple[Finding, ...]]:
    """`findings`, by node, with the SUSPECT ones that hold on more than half of the nodes, and on two at least, told
    as MONITOR: a file server, a subnet manager or a setting is at fault then, and no node is to be kept out for it.
    So is a file system that as many nodes again, two at least, had to wait for: its server is slow.

    Only checks of what nodes share or have set up alike. A node on which the check did not work counts for neither
    side. FAIL is proof, and stays.
    """
    before, after = None, {node: tuple(of_node) for node, of_node in findings.items()}
    while after != before:  # what is known of a file system by one of its checks tells of the others
        before, after = after, _once(after)
    return after


def _once(findings: Mapping[str, tuple[Finding, ...]]) -> dict[str, tuple[Finding, ...]]:
    seen: dict[str, list[Verdict]] = {}
    slow: dict[str, set[str]] = {}
    for node, of_node in findings.items():
        worst: dict[str, Verdict] = {}
        for f in of_node:
            if _may_be_shared(f.check):
                worst[f.check] = max(f.verdict, worst.get(f.check, Verdict.UNKNOWN), key=_ORDER.index)
        for name, verdict in worst.items():
            if verdict is not Verdict.UNKNOWN:
                seen.setdefault(name, []).append(verdict)
            if verdict is Verdict.MONITOR and name.startswith(("mount:", "run_dir")):
                slow.setdefault(_path(name), set()).add(node)
    share = {name: (sum(v.bad for v in verdicts), len(verdicts)) for name, verdicts in seen.items()}
    return {node: tuple(_judged(f, share, slow) for f in of_node) for node, of_node in findings.items()}


def _judged(found: Finding, share: Mapping[str, tuple[int, int]], slow: Mapping[str, set[str]]) -> Finding:
    bad, nodes = share.get(found.check, (0, 0))
    own = found.check.endswith(_OWN) or not found.check.startswith((*_PATHS, "run_dir"))
    others = slow.get(_path(found.check), set()) - {found.node}
    waits = 0 if own or not found.check.startswith(_WAITS) else len(others)
    if found.verdict is not Verdict.SUSPECT:
        return found
    if waits >= max(2, bad):
        said = f"{found.evidence} ({waits} other nodes had to wait for it too: the file system's, not the node's)"
    elif bad < 2 or bad * 2 <= nodes:
        return found
    else:
        whose = "what they have in common" if own else "the file system's"
        said = f"{found.evidence} (on {bad} of {nodes} nodes: {whose}, not the node's)"
    return replace(found, verdict=Verdict.MONITOR, remedy=Remedy.SETUP, evidence=said)


def _path(check: str) -> str:
    return check.partition(":")[2] or check


def _may_be_shared(check: str) -> bool:
    return check in _ALIKE or check.startswith(_PATHS)

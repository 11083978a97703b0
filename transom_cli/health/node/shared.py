"""What trouble on one node tells when all nodes are looked at: is it the node's, or what they share? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transom_cli.health.finding import Finding, Remedy, Verdict

_PATHS = ("mount:", "write:", "room:")
_OWN = ("/tmp", "/dev/shm")
_ALIKE = ("run_dir", "shm", "memory", "ib_state", "ib_rate")


def shared_trouble(findings: Mapping[str, Sequence[Finding]]) -> dict[str, tuple[Finding, ...]]:
    """`findings`, by node, with the SUSPECT ones that hold on more than half of the nodes, and on two at least, told
    as MONITOR: a file server, a subnet manager or a setting is at fault then, and no node is to be kept out for it.

    Only checks of what nodes share or have set up alike. A node on which the check did not work counts for neither
    side. FAIL is proof, and stays.
    """
    seen: dict[str, list[Verdict]] = {}
    for of_node in findings.values():
        for name, verdict in {f.check: f.verdict for f in of_node if _may_be_shared(f.check)}.items():
            if verdict is not Verdict.UNKNOWN:
                seen.setdefault(name, []).append(verdict)
    share = {name: (sum(v.bad for v in verdicts), len(verdicts)) for name, verdicts in seen.items()}
    return {node: tuple(_judged(f, share) for f in of_node) for node, of_node in findings.items()}


def _judged(found: Finding, share: Mapping[str, tuple[int, int]]) -> Finding:
    bad, nodes = share.get(found.check, (0, 0))
    if found.verdict is not Verdict.SUSPECT or bad < 2 or bad * 2 <= nodes:
        return found
    own = found.check.endswith(_OWN) or not found.check.startswith((*_PATHS, "run_dir"))
    whose = "what they have in common" if own else "the file system's"
    said = f"{found.evidence} (on {bad} of {nodes} nodes: {whose}, not the node's)"
    return replace(found, verdict=Verdict.MONITOR, remedy=Remedy.SETUP, evidence=said)


def _may_be_shared(check: str) -> bool:
    return check in _ALIKE or check.startswith(_PATHS)

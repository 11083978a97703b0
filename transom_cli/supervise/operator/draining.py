"""Keeps a node away from everybody, where that is allowed, and where nobody else does so already."""

from __future__ import annotations

from pathlib import Path

from transom_cli.errors import printable
from transom_cli.slurm.port import Node, Slurm, SlurmDenied, SlurmRefused
from transom_cli.supervise.operator.sitedrain import ask, run_command

OURS = "transom:"  # how every reason of ours begins
LENGTH = 200  # of a reason, as `sinfo -R` and people can use it
_SLURMS_OWN = "Not responding"  # of a node that slurmctld took down itself: what ours says is more


def reason(why: str, run_id: str) -> str:
    """`transom: <check>: <evidence> (<run id>)`, on one line; what is too long is cut out of the evidence."""
    end = f" ({run_id})"
    body = printable(" ".join(why.split())).replace(" Comment=", " comment=")  # Slurm's next key, when it prints it
    room = LENGTH - len(OURS) - 1 - len(end)
    return f"{OURS} {body if len(body) <= room else body[: max(room - 3, 0)] + '...'}{end}"


def is_ours(node: Node, run_id: str = "") -> bool:
    """Whether the node's reason is ours (of this run)."""
    return node.reason.startswith(OURS) and node.reason.endswith(f"({run_id})" if run_id else ")")


def drain(slurm: Slurm, command: tuple[str, ...], node: str, reason: str, spool: Path | None = None) -> tuple[str, str]:
    """The ladder: scontrol, the site's command, a request in the administrators' spool, exclusion. (how, in words).

    Each rung that says no, is late or answers nonsense is told, and the next one tried. A node that somebody keeps away
    already, with a reason of their own, is left to them: it is drained as it is.
    """
    owner = next((owner_of(x) for x in slurm.nodes([node]) if x.name == node), "")
    if owner:
        return "drained", owner
    try:
        slurm.drain(node, reason)
        return "drained", ""
    except (SlurmDenied, SlurmRefused) as error:
        refused = [f"Slurm refuses the drain: {error.why or error.what}"]
    if command:
        why = run_command(command, node, reason)
        if not why and _drained(slurm, node):
            return "drained", f"by the site's command: {' '.join(command)}"
        refused.append(why or f"{command[0]} ended with 0, but the node is not drained")
    if spool is not None:
        try:
            asked = ask(spool, node, reason)
            return "excluded", "; ".join([f"asked the administrators to drain it: {asked}", *refused])
        except OSError as error:
            refused.append(f"the spool cannot be written: {error}")
    return "excluded", "; ".join(refused)


def _drained(slurm: Slurm, node: str) -> bool:
    return any(x.drain for x in slurm.nodes([node]) if x.name == node)


def owner_of(node: Node) -> str:
    """Who else keeps the node away, and why; empty where it is up, or ours."""
    kept = node.drain or node.state in ("down", "fail")
    if not kept or not node.reason or node.reason.startswith((OURS, _SLURMS_OWN)):
        return ""
    return f"by {node.reason_user or 'somebody'}: {node.reason}"

"""Keeps a node away from everybody, where that is allowed, and where nobody else does so already."""

from __future__ import annotations

import subprocess

from transom_cli.errors import printable
from transom_cli.slurm.port import Node, Slurm, SlurmDenied, SlurmRefused

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


def drain(slurm: Slurm, command: tuple[str, ...], node: str, reason: str) -> tuple[str, str]:
    """The ladder: scontrol, then the site's own command, else exclusion with the command an admin would run.

    A node that somebody keeps away already, with a reason of their own, is left to them: it is drained as it is.
    """
    owner = next((owner_of(x) for x in slurm.nodes([node]) if x.name == node), "")
    if owner:
        return "drained", owner
    try:
        slurm.drain(node, reason)
        return "drained", ""
    except (SlurmDenied, SlurmRefused) as error:
        why = error.why or error.what
    if command:
        try:
            done = subprocess.run(
                [*command, node, reason],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            if done.returncode == 0:
                return "drained", f"by {command[0]}"
            why = f"{why}; {command[0]} ended with {done.returncode}: {done.stderr.strip()[:200]}"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"{why}; {error}"
    return "excluded", f"drain refused by Slurm: {why}"


def owner_of(node: Node) -> str:
    """Who else keeps the node away, and why; empty where it is up, or ours."""
    kept = node.drain or node.state in ("down", "fail")
    if not kept or not node.reason or node.reason.startswith((OURS, _SLURMS_OWN)):
        return ""
    return f"by {node.reason_user or 'somebody'}: {node.reason}"

"""What a check says about a node, and what it asks for. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """PASS: seen to be well. MONITOR: odd, worth watching. SUSPECT: likely at fault, not proven. FAIL: proven.

    SUSPECT keeps a node out of a run for a while, FAIL drains it: neither is for what a person has set up wrongly on
    all nodes alike, nor for what a neighbour's job may do to it. UNKNOWN: the check itself did not work; it says
    nothing about the node and never isolates it.
    """

    PASS = "pass"
    MONITOR = "monitor"
    SUSPECT = "suspect"
    FAIL = "fail"
    UNKNOWN = "unknown"

    @property
    def bad(self) -> bool:
        """Whether the node should carry no rank."""
        return self in (Verdict.SUSPECT, Verdict.FAIL)


class Remedy(enum.Enum):
    """What a finding asks for. Whether it is done is the policy's business."""

    NONE = "none"
    WATCH = "watch"  # look again
    RESTART_APP = "restart_app"  # the program, on the same node
    SETUP = "setup"  # a person is to change a setting
    AVOID = "avoid"  # keep the run off the node for a while
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPAIR = "repair"  # hand the node, or the device, in


@dataclass(frozen=True)
class Finding:
    """check: the check's name ("reach"). evidence: what was seen, in the tool's own words, for a person.

    device, serial: which one of the node's, as its own tools name it (a GPU's UUID, "mlx5_0/1"), where it is about one.
    applies: False where there was nothing to look at (no GPU in the node, and none asked for); the verdict is PASS.
    """

    check: str
    verdict: Verdict
    node: str
    evidence: str
    remedy: Remedy = Remedy.NONE
    device: str = ""
    serial: str = ""
    applies: bool = True


def not_applicable(check: str, node: str, why: str) -> Finding:
    return Finding(check, Verdict.PASS, node, f"not applicable: {why}", applies=False)

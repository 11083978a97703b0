"""Replicas that were equal, and differ at a save: a doubt, which the launcher settles (`core.silent`).

The hardware of one rank may have computed wrong, so a restart is worth trying once. Each rank reports the difference
as a guard does, and waits. The launcher ends the launch, goes back to a step at which all replicas were equal, and
repeats with each rank on another node. If it finds that the software differs, or does not decide, the save raises.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transom_cli.ckpt.ranks import Ranks
from transom_cli.heartbeat import guard_record, paths

PATIENCE = 120.0  # seconds for the launcher's decision
POLL = 0.5
FINAL = ("differs_by_software", "corruption_unexplained")  # verdicts after which nothing is repeated
BY_SAVE = -1  # `repeat` of an event: save the step again, and compare

guards: list[Callable[[], bool]] = []
"""Compare all replicas now and report what differs; return whether something does. A collective."""


@dataclass(frozen=True)
class Doubt:
    """clean: the newest step at which all replicas were equal. ranks: outside the majority, or all if there is none.

    digests: of each rank, over everything that is compared; () if ranks hold different parts.
    """

    step: int
    clean: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    majority: bool
    digests: tuple[str, ...]

    def report(self) -> None:
        """Report it to the node's agent. A guard that sees the difference reports more: what to repeat."""
        seen = [look() for look in guards]
        if any(seen):
            return
        event: dict[str, Any] = {"kind": "replica", "item": self.names[0], "words": self.words, **vars(self)}
        guard_record.update(step=self.step, events=[{**event, "repeat": BY_SAVE, "equal": ()}])

    @property
    def words(self) -> str:
        who = f"rank {', '.join(map(str, self.ranks))}" if self.majority else "some ranks"
        return f"{self.names[0]} of {who} differs from the other replicas at the save of step {self.step}"

    def settled(self, ranks: Ranks) -> None:
        """Wait until the launcher ends this process, or says that a repetition helps nobody. A collective."""
        until = time.monotonic() + PATIENCE
        while ranks.first and time.monotonic() < until:
            state = guard_record.doubt()
            if state.get("judged") == paths.own_launch() and state.get("verdict") in FINAL:
                break
            time.sleep(POLL)
        ranks.from_first(None)


def supervised() -> bool:
    return bool(os.environ.get(paths.BEAT_DIR))


def repeated(step: int, checksum: int) -> None:
    """Report that all replicas are equal at `step`, if that repeats what was doubtful."""
    doubt = guard_record.doubt().get("open") or {}
    if doubt.get("repeat") == BY_SAVE and step >= doubt["step"]:
        digest = f"{checksum:016x}" if step == doubt["step"] else ""
        guard_record.update(repeated={"step": doubt["step"], "digest": digest, "same": [0, 0]})

"""What an attempt's training reached and when, as its launcher sees it: `progress.jsonl`, for the account of a run.

    {"wall": seconds, "launch": number, "step": the last step that every rank has done, "seconds": {phase: sum},
     "loss": number, "since_start": true}

The first step of each launch, then a line after 2, 4, 8, ... s and one a minute while there are new ones, and the last
step before an end or a silence, with the time at which it was first seen to be done. `seconds`: what a rank of rank 0's
node has spent at most, by phase, since its start (beats.spent); absent where nobody tells. loss: the newest that the
rank with the lowest number there has told, if it is a number. since_start: the step counts from the start of the
processes (automatic heartbeats); absent where it is the training's own. An operator need not live for it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence

from transom_cli.heartbeat.step_breakdown import BadStepBreakdown, RankSteps, decode
from transom_cli.layout import AttemptDir
from transom_cli.supervise.launcher.log import say

SOON, EVERY = 2.0, 60.0  # seconds between two lines: as long as the launch has stepped, within these


class Progress:
    """The only writer of one attempt's file. `node`: where rank 0 of the present launch is, if known."""

    def __init__(self, attempt: AttemptDir, node: Callable[[], Sequence[str]]) -> None:
        self._attempt, self._node = attempt, node
        self._launch, self._step, self._wall = -1, -1, 0.0  # the newest step, and when it was first seen
        self._told, self._due = -1, 0.0  # the last one that was written, and when another may be
        self._since_start = False
        self._began = 0.0  # when the launch's first step was seen
        self._refused = False

    def look(self, launch: int, step: int, wall: float, *, since_start: bool = False) -> None:
        """`step`: the last one that every rank of `launch` has done, -1: none; `wall`: seconds since the epoch."""
        if launch != self._launch:
            self.settle()  # of the launch before
            self._launch, self._step, self._told, self._since_start = launch, -1, -1, False
        if self._since_start and not since_start and step >= 0:  # now the training's own step is known
            self._step = self._told = -1
        self._since_start = since_start if step >= 0 else self._since_start
        if step <= self._step:
            return
        self._step, self._wall = step, wall
        if self._told < 0 or wall >= self._due:
            self.settle()

    def settle(self) -> None:
        """Training ends, or is silent: the newest step is worth a line of its own."""
        if self._step <= self._told:
            return
        self._began = self._wall if self._told < 0 else self._began
        self._told, self._due = self._step, self._wall + min(EVERY, max(SOON, self._wall - self._began))
        line: dict[str, object] = {"wall": self._wall, "launch": self._launch, "step": self._step}
        if self._since_start:
            line["since_start"] = True
        ranks = self._ranks()
        if seconds := most(ranks):
            line["seconds"] = seconds
        loss = next((rank.loss for rank in sorted(ranks, key=lambda r: r.rank) if rank.loss is not None), None)
        if loss is not None and math.isfinite(loss):
            line["loss"] = loss
        try:
            with self._attempt.progress.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            if not self._refused:
                say(f"transom: cannot write {self._attempt.progress}: {error}")
            self._refused = True

    def _ranks(self) -> list[RankSteps]:
        for node in self._node():
            with contextlib.suppress(OSError, BadStepBreakdown, UnicodeDecodeError):
                told = decode(self._attempt.spent(node).read_text(encoding="utf-8"))
                return [rank for rank in told.ranks if rank.launch == self._launch]
        return []


def most(ranks: Sequence[RankSteps]) -> dict[str, float]:
    """By phase, what the rank spent that spent most on it."""
    found: dict[str, float] = {}
    for rank in ranks:
        for phase, seconds in rank.seconds.items():
            found[phase] = max(found.get(phase, 0.0), seconds)
    return found

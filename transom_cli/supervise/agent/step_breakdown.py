"""Copies the ranks' step breakdowns to the run directory, `nodes/<node>.spent`, every few seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from transom_cli.files import replace_text
from transom_cli.heartbeat import account
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps, encode
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir

EVERY = 5.0  # seconds; rare, to spare the file system


class StepBreakdown:
    def __init__(self, attempt: AttemptDir, node: str, beats_dir: str) -> None:
        self._attempt, self._node, self._folder = attempt, node, beats_dir
        self._path = attempt.spent(node)
        self._due = 0.0
        self._written: tuple[RankSteps, ...] = ()

    def look(self, now: float, rows: Sequence[RankBeat]) -> None:
        """Write the breakdowns of these ranks, unless nothing has changed."""
        if now < self._due:
            return
        ranks = tuple(spent for row in rows if (spent := self._read(row)) is not None)
        if ranks == self._written:  # do not delay the first change
            return
        self._due = now + EVERY
        try:
            replace_text(self._path, encode(NodeSteps(self._node, self._attempt.name, ranks)))
            self._written = ranks
        except OSError:
            return  # a full or absent file system: the next call retries

    def _read(self, row: RankBeat) -> RankSteps | None:
        try:
            fd = os.open(f"{self._folder}/rank-{row.rank}", os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            found = account.newest(os.pread(fd, account.SIZE, 0))
        except OSError:
            return None
        finally:
            os.close(fd)
        if found is None:
            return None
        return RankSteps(
            rank=row.rank,
            launch=row.launch,
            step=found.step,
            at=found.at / 1e9,
            began=found.began / 1e9,
            seconds={name: ns / 1e9 for name, ns in found.ns.items() if ns},
            loss_step=found.loss_step,
            loss=found.loss,
            grad_norm=found.grad_norm,
            loss_scale=found.scale,
            device=found.device,
        )

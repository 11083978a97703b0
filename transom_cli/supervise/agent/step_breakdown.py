"""Gives the ranks' step breakdowns to the launcher, and writes them to the run directory, `nodes/<node>.spent`.

The file is written every `EVERY` seconds, or every `RARELY` seconds while a launcher fetches them.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from transom_cli.files import replace_text
from transom_cli.heartbeat import account, guard_record, paths
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps, encode
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.heartbeat_feed import HeartbeatFeed
from transom_cli.supervise.agent.trainer_progress import TrainerProgress

EVERY = 5.0  # seconds
RARELY = 60.0  # seconds; the launcher and the screens read the files of a few nodes only then


class StepBreakdown:
    def __init__(
        self,
        attempt: AttemptDir,
        node: str,
        beats_dir: str,
        feed: HeartbeatFeed | None = None,
        progress: TrainerProgress | None = None,
    ) -> None:
        self._progress = progress or TrainerProgress()
        self._attempt, self._node, self._folder, self._feed = attempt, node, beats_dir, feed or HeartbeatFeed()
        self._path = attempt.spent(node)
        self._due = 0.0
        self._ranks: tuple[RankSteps, ...] = ()
        self._to_write, self._written = "", float("-inf")

    def look(self, now: float, rows: Sequence[RankBeat]) -> None:
        """Read the breakdowns of these ranks, and write them unless nothing has changed."""
        if now >= self._due:
            ranks = tuple(spent for row in rows if (spent := self._read(row)) is not None)
            if ranks != self._ranks:  # do not delay the first change
                self._ranks, self._due = ranks, now + EVERY
                self._to_write = self._feed.steps = encode(NodeSteps(self._node, self._attempt.name, ranks))
        if self._to_write and now - self._written >= (RARELY if self._feed.fetched else EVERY):
            self._written = now
            with contextlib.suppress(OSError):  # a full or absent file system: a later call retries
                replace_text(self._path, self._to_write)
                self._to_write = ""

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
            logged=self._progress.of(row.launch).values,
            listens=Path(f"{paths.listen_prefix(self._folder, row.launch)}{row.rank}").exists(),
            guard=guard_record.read(self._folder, row.launch, row.rank),
        )

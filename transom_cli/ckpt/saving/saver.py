"""A Checkpointer's saves: the copy that the trainer waits for, and in the background what makes it count and last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from transom_cli.beats.client import phase
from transom_cli.ckpt.asked import Asked
from transom_cli.ckpt.failures import SaveFailed
from transom_cli.ckpt.memory.persisting import RESERVED as DURABLE
from transom_cli.ckpt.memory.protecting import RESERVED as PROTECTED
from transom_cli.ckpt.memory.protection import NONE
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.pace.coming import Coming
from transom_cli.ckpt.pace.lasting import Lasting, Saving
from transom_cli.ckpt.pace.meeting import Meeting
from transom_cli.ckpt.pace.schedule import Every
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.saving.engine import FAILURES, Writer, Written, describe
from transom_cli.ckpt.saving.image import Snapshot
from transom_cli.ckpt.saving.overlap import Later
from transom_cli.ckpt.saving.snapshots import Snapshots
from transom_cli.ckpt.saving.staging import NOTHING, Stager
from transom_cli.ckpt.saving.streaming import WORTH
from transom_cli.ckpt.state import State
from transom_cli.ckpt.tree import Flat, Paths

_LONG = 0.5  # seconds of waiting that are worth a word


class Saver:
    """For the training's thread. All ranks make the same calls in the same order.

    `saved`: the newest step that counts; `durable`: the newest that is durable. `last_error`: why the last save failed.
    """

    def __init__(
        self, asked: Asked, ranks: Ranks, state: State, schedule: Every, snapshots: Snapshots,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._asked, self._ranks, self._state, self._schedule = asked, ranks, state, schedule
        self._snapshots, self._say = snapshots, say
        self.saved: int | None = None
        self.durable: int | None = None
        self.last_error: SaveFailed | None = None
        self._stager = Stager(snapshots.arena, first=ranks.first)
        if snapshots.lent_bytes >= WORTH:  # to be restored from, most likely
            self._stager.warm()
        self._writer = Writer(schedule.writers(ranks), asked.attempt, self._stager, snapshots)
        self._lasting = Lasting(snapshots, self._ended)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transom-ckpt")
        self._running: Future[None] | None = None
        self._running_step = -1
        self._done = 0  # steps behind, when it was last asked for anything
        self._told_to_wait = False
        self._hook = register_optimizer_step_pre_hook(self._join) if asked.overlapped else None
        schedule.changed = self._replan

    def resumed(self, step: int, *, durable: bool) -> None:
        """The training goes on from `step`, which was restored."""
        self.saved, self.durable = step, step if durable else None
        if not durable:
            self._asked.rule.hurry()

    def wait(self) -> None:
        """Until nothing is being written, and no old checkpoint removed."""
        self.settle()
        self._lasting.wait()
        self._snapshots.tidied()

    def finish(self) -> None:
        """Make the newest snapshot durable if it is not."""
        self.settle()
        if self.saved is not None and self.saved != self.durable:
            self._lasting.wait()
            if self.saved is not None and self.saved != self.durable:
                self._make_durable(Saving(self.saved, asked=True))

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._thread.shutdown()
        self._stager.close()

    @property
    def writing(self) -> bool:
        committing = self._running_step >= 0 and self._running is not None and not self._running.done()
        return committing or self._lasting.busy

    def settle(self) -> None:
        """Wait until the last save counts, or has failed to."""
        self._stager.join()
        if self._running is not None:
            self._running.result()
            self._running = None

    def _join(self, *_: Any) -> None:
        """Before a step of any optimizer."""
        if self._stager.copying:
            with phase("checkpoint"):  # a rank that waits here is not hanging in its own step
                self._stager.join()

    def prepare(self, done: int, *, begins: bool = False) -> None:
        """After restore(), and at the first call of save(), when the optimizers have their state: all ranks make these
        calls alike, with `done` steps behind. The memory is made while training goes on, or first, of one that
        `begins`."""
        self.wait()
        read, to_come = None, 0
        with contextlib.suppress(Exception):  # the save will fail of it, and say so
            read, to_come = self._state.read(), self._state.to_come
        self._snapshots.awaited = begins
        self._done = done
        self._running = self._thread.submit(self._get_ready, read, to_come)
        self._running_step = -1
        if begins:
            self._running.result()
            self._snapshots.awaited = False

    def start(self, step: int, asked: bool) -> Saving | None:
        """`asked`: it is to be durable in any case."""
        with phase("checkpoint"):
            if self._running is not None and not self._told_to_wait and not wait([self._running], _LONG).done:
                self._told_to_wait = True
                what = "its memory is being made"
                if self._running_step >= 0:
                    what = f"{step_name(self._running_step)} and those before it are being written"
                self._say(f"save({step}) waits: {what}")
            self.settle()
            if step == self.saved:
                self._lasting.wait(step)
            if step == self.saved and (step == self.durable or not asked):
                return None
            saving = Saving(step, asked)
            if step == self.saved:
                self._make_durable(saving)
                return saving
            snapshot, trouble = None, ""
            try:
                later = Later(self._state.stepped(), self._asked.prove) if self._hook is not None else NOTHING
                snapshot = self._stager.take(*self._state.read(), later)
            except Exception as error:
                trouble = f"the state could not be copied: {describe(error)}"
            stall = None if trouble else time.monotonic() - saving.began
            meeting = self._schedule.copied(step, stall, self._lasting.busy)
            self._running_step = self._done = step
            self._running = self._thread.submit(self._write, saving, snapshot, trouble, meeting)
        return saving

    def _get_ready(self, read: tuple[Flat, Paths] | None, to_come: int) -> None:
        """In the background thread: until it is done no other uses the stager. `read`: the state; only its shapes are
        looked at."""
        layout, growth = None, 1.0
        with contextlib.suppress(Exception):
            if read is not None:
                layout = self._stager.look(*read)
                growth = 1.0 + to_come / max(1, layout.size)
        self._tell_plan()
        self._writer.prepare(layout, growth)

    def _replan(self) -> None:
        """In the training's thread: the schedule has changed."""
        self._running = self._thread.submit(self._tell_plan)

    def _tell_plan(self) -> None:
        """In the background thread: when the next saves come, for whoever looks. Rank 0's word goes for all."""
        if not self._ranks.first:
            return
        schedule, rule = self._schedule, self._asked.rule
        step, every = schedule.next(self._done), schedule.every
        left, seconds = rule.left(schedule.persist)
        durable = None if left is None else step + (left - 1) * every
        since = time.time() + seconds if left is None else None
        coming = Coming(step, every, rule.every(schedule.persist), durable, since)
        with contextlib.suppress(*FAILURES):  # nothing but a screen waits for it
            self._snapshots.plan("; ".join(filter(None, (schedule.words, rule.words))), coming)

    def _write(self, saving: Saving, snapshot: Snapshot | None, trouble: str, meeting: Meeting | None) -> None:
        """In the background thread: nobody asks for its result before the next save, so it tells failures itself."""
        step = saving.step
        uses = lambda: self._uses(saving)  # noqa: E731
        try:
            written = self._schedule.carry(meeting, lambda: self._writer.write(step, snapshot, trouble, uses=uses))
        except Exception as error:  # whoever waits for this save must hear of it
            written = Written(describe(error))
        if written.trouble:
            self._failed(step, written.trouble)
        else:
            self.saved = step
        self._tell_plan()
        if PROTECTED in written.uses and self._ranks.first:
            with contextlib.suppress(*FAILURES):  # the next one will be
                self._snapshots.protect(step)
        if DURABLE in written.uses:
            self._make_durable(saving)
        else:
            self.last_error = self.last_error if written.trouble else None
            saving.over.set_result(None)
        written.then()

    def _uses(self, saving: Saving) -> frozenset[str]:
        """On rank 0: what is to be done with a snapshot that counts."""
        protect, durable = self._asked.protection != NONE, self._asked.rule.due(saving.asked, self._schedule.persist)
        return frozenset([*[PROTECTED] * protect, *[DURABLE] * durable])

    def _make_durable(self, saving: Saving) -> None:
        trouble = ""
        if self._ranks.first:
            try:
                self._snapshots.persist(saving.step, self._asked.keep)
            except FAILURES as error:
                trouble = describe(error)
        if trouble:
            self._ended(saving, trouble)
            saving.over.set_result(None)
        else:
            self._lasting.follow(saving)

    def _ended(self, saving: Saving, trouble: str) -> None:
        """In a thread of its own: `saving` is durable, or why it is not."""
        if trouble:
            if self.saved == saving.step:
                self.saved = None  # the same step may be saved again
            self._failed(saving.step, trouble)
            return
        self._schedule.wrote(time.monotonic() - saving.began)
        self.durable = max(saving.step, self.durable or 0)
        self.last_error = None

    def _failed(self, step: int, trouble: str) -> None:
        self.last_error = SaveFailed(
            f"{step_name(step)} was not saved",
            trouble,
            f"df -h {self._asked.directory}" if "space" in trouble else f"ls -la {self._asked.directory}",
        )
        self._say(f"{step_name(step)} was not saved: {trouble}; training goes on, and the next save tries again")

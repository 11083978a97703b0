"""A Checkpointer's saves: the copy that the trainer waits for, and in the background what makes it count and last."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from transom_cli.ckpt.asked import Asked
from transom_cli.ckpt.failures import RanksDiffer, SaveFailed
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.alike import Proof, prove, shared
from transom_cli.ckpt.save.engine import FAILURES, Compared, Writer, Written, describe
from transom_cli.ckpt.save.image import Layout, Signature, Snapshot, local_plan
from transom_cli.ckpt.save.overlap import Later
from transom_cli.ckpt.save.pickles import Pickles
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.save.staging import NOTHING, Stager
from transom_cli.ckpt.save.streaming import WORTH
from transom_cli.ckpt.save.telling import IN_MEMORY, ON_DISK, Telling
from transom_cli.ckpt.schedule.coming import Coming
from transom_cli.ckpt.schedule.lasting import Lasting, Saving
from transom_cli.ckpt.schedule.meeting import Meeting
from transom_cli.ckpt.schedule.schedule import Every
from transom_cli.ckpt.snapshot.persist import RESERVED as DURABLE
from transom_cli.ckpt.snapshot.protect import RESERVED as PROTECTED
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.ckpt.state import State
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.heartbeat.client import phase

_LONG = 0.5  # seconds of waiting that are worth a word


class Saver:
    """For the training's thread. All ranks make the same calls in the same order.

    `saved`: the newest step that counts; `durable`: the newest that is durable. `last_error`: why the last save failed.
    """

    def __init__(
        self, asked: Asked, ranks: Ranks, state: State, schedule: Every, snapshots: Snapshots,
        say: Callable[[str], None], pickles: Pickles,
    ) -> None:  # fmt: skip
        self._asked, self._ranks, self._state, self._schedule = asked, ranks, state, schedule
        self._snapshots, self._say = snapshots, say
        self.saved: int | None = None
        self.durable: int | None = None
        self.last_error: SaveFailed | None = None
        self._telling = Telling(asked.directory, first=ranks.first)
        self._stager = Stager(snapshots.arena, pickles, first=ranks.first)
        if snapshots.lent_bytes >= WORTH:  # to be restored from, most likely
            self._stager.warm()
        self._writer = Writer(schedule.writers(ranks), asked.attempt, self._stager, snapshots)
        self._lasting = Lasting(snapshots, self._ended)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transom-ckpt")
        self._running: Future[None] | None = None
        self._running_step = -1
        self._done = 0  # steps behind, when it was last asked for anything
        self._told_to_wait = False
        self._proven: Signature | None = None  # of what the ranks were last found to hold the same
        self._proven_as: Signature | None = None  # the whole signature that it is part of
        self._refusal: RanksDiffer | None = None  # not raised yet
        self._noted: set[str] = set()
        self._hook = register_optimizer_step_pre_hook(self._join) if asked.overlapped else None
        schedule.changed = self._replan

    def resumed(self, step: int, *, durable: bool) -> None:
        """The training goes on from `step`, which was restored."""
        self.saved, self.durable = step, step if durable else None
        self._telling.began(step, durable=durable)
        self._proven, self._proven_as = None, None
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
        self._telling.close()

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
            read, to_come = self._state.shapes(), self._state.to_come
        self._snapshots.awaited = begins
        self._done = done
        self._running = self._thread.submit(self._get_ready, read, to_come)
        self._running_step = -1
        if begins:
            self._running.result()
            self._snapshots.awaited = False

    def start(self, step: int, asked: bool, together: bool = True) -> Saving | None:
        """`asked`: it is to be durable in any case. `together`: all ranks save this step, and not those alone that have
        heard of an order in time. Raises RanksDiffer, on all ranks alike, then or at the next save."""
        with phase("checkpoint"):
            if self._running is not None and not self._told_to_wait and not wait([self._running], _LONG).done:
                self._told_to_wait = True
                what = "its memory is being made"
                if self._running_step >= 0:
                    what = f"{step_name(self._running_step)} and those before it are being written"
                self._say(f"save({step}) waits: {what}")
            self.settle()
            self._raise_refusal()
            if step == self.saved:
                self._lasting.wait(step)
            if step == self.saved and (step == self.durable or not asked):
                return None
            saving = Saving(step, asked)
            if step == self.saved:
                self._make_durable(saving)
                return saving
            snapshot, proof, trouble, proving = None, None, "", 0.0
            try:
                later = Later(self._state.stepped(), self._asked.prove) if self._hook is not None else NOTHING
                read = self._state.to_save()
                snapshot = self._stager.take(*read, later)
                begun = time.monotonic()
                proof = self._proof(read[0], snapshot.layout)
                proving = time.monotonic() - begun
            except Exception as error:
                trouble = f"the state could not be copied: {describe(error)}"
            stall = None if trouble else time.monotonic() - saving.began - proving  # of each save, and not of the first
            meeting = self._schedule.copied(step, stall, self._lasting.busy)
            self._running_step = self._done = step
            self._running = self._thread.submit(self._write, saving, snapshot, trouble, meeting, proof)
            if proof is not None and together:
                saving.compared.result()
                self._raise_refusal()
        return saving

    def _proof(self, flat: Flat, layout: Layout) -> Proof | None:
        """Checksums for the other ranks, where they have not been compared since the state changed its shape."""
        if self._ranks.size == 1 or layout.signature is self._proven_as:
            return None
        about = shared(layout.signature)
        if about == self._proven:
            self._proven_as = layout.signature
            return None
        return prove(flat, layout, about, self._state.broadcast(), self._ranks.size)

    def _compared(self, saving: Saving, proof: Proof | None, found: Compared) -> None:
        """In the background thread."""
        self._refusal = found.refused
        self._proven, self._proven_as = None, None
        if proof is not None and found.whole and found.refused is None:
            self._proven = proof.about
        if found.noted and found.noted not in self._noted:
            self._noted.add(found.noted)
            self._say(found.noted)
        saving.compared.set_result(found.refused)

    def _raise_refusal(self) -> None:
        refused, self._refusal = self._refusal, None
        if refused is not None:
            self.settle()
            if self._ranks.first:  # Python prints nothing for a SystemExit that nobody catches
                sys.stderr.write(f"error: {refused}\n")
                sys.stderr.flush()
            raise refused

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

    def _write(
        self, saving: Saving, snapshot: Snapshot | None, trouble: str, meeting: Meeting | None, proof: Proof | None
    ) -> None:
        """In the background thread: nobody asks for its result before the next save, so it tells failures itself."""
        step = saving.step
        uses = lambda: self._uses(saving)  # noqa: E731
        compared = lambda found: self._compared(saving, proof, found)  # noqa: E731
        write = lambda: self._writer.write(step, snapshot, trouble, uses=uses, proof=proof, compared=compared)  # noqa: E731
        try:
            written = self._schedule.carry(meeting, write)
        except Exception as error:  # whoever waits for this save must hear of it
            written = Written(describe(error))
        if not saving.compared.done():
            saving.compared.set_result(None)
        if written.trouble:
            self._failed(step, written.trouble, IN_MEMORY, said=self._refusal is not None)
        else:
            self.saved = step
            self._telling.good(IN_MEMORY, step)
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
            self._failed(saving.step, trouble, ON_DISK)
            return
        self._telling.good(ON_DISK, saving.step)
        self._schedule.wrote(time.monotonic() - saving.began)
        self.durable = max(saving.step, self.durable or 0)
        self.last_error = None

    def _failed(self, step: int, trouble: str, what: str, *, said: bool = False) -> None:
        """said: the trainer gets an error for it."""
        self.last_error = SaveFailed(
            f"{step_name(step)} was not saved",
            trouble,
            f"df -h {self._asked.directory}" if "space" in trouble else f"ls -la {self._asked.directory}",
        )
        self._telling.failed(what, step, trouble)
        if not said:
            self._say(f"{step_name(step)} was not saved: {trouble}; training goes on, and the next save tries again")


def storable(flat: Flat, paths: Paths) -> None:
    """Raise whatever a save of these values would: nothing is copied."""
    local_plan(flat, paths, first=True)
    pickles = Pickles()
    for key, value in flat.items():
        if not isinstance(value, torch.Tensor):
            pickles.of(key, value)

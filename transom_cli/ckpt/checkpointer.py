"""The calls that a trainer makes. See `Checkpointer`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

from torch.optim.optimizer import register_optimizer_step_pre_hook

from transom_cli.beats.client import beat, phase, resumed
from transom_cli.ckpt import ground, orders, retention, schedule
from transom_cli.ckpt.also import Also
from transom_cli.ckpt.also import check as check_also
from transom_cli.ckpt.collector import uncollected
from transom_cli.ckpt.engine import FAILURES, Writer, Written, describe
from transom_cli.ckpt.failures import SaveFailed
from transom_cli.ckpt.image import Snapshot
from transom_cli.ckpt.lasting import Lasting, Rule, Saving
from transom_cli.ckpt.meeting import Meeting
from transom_cli.ckpt.memory.persisting import RESERVED as DURABLE
from transom_cli.ckpt.memory.protecting import RESERVED as PROTECTED
from transom_cli.ckpt.memory.protection import NONE, parse
from transom_cli.ckpt.names import Here, local_attempt, step_name, valid_attempt
from transom_cli.ckpt.overlap import Later
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.resuming import Resuming
from transom_cli.ckpt.snapshots import Snapshots
from transom_cli.ckpt.staging import NOTHING, Stager
from transom_cli.ckpt.state import State
from transom_cli.ckpt.streaming import WORTH
from transom_cli.errors import UsageError

COPIES = 3600.0  # seconds that close() waits for copies to be written
LEAST_RATE = 1e6  # bytes a second
_LONG = 0.5  # seconds of waiting that are worth a word


class Checkpointer:
    """Asynchronous checkpoints of a training, and the way back to the newest one that is good.

        ck = Checkpointer({"model": model, "optim": optimizer, "data": loader}, every="auto")
        start = ck.restore() or 0
        for step in range(start, steps):
            ...
            ck.step(step + 1, loss)
        ck.close()

    `state`: modules, optimizers, objects with `state_dict`/`load_state_dict`, tensors, plain values; what is kept
    once and what per rank is told in `ckpt.state`. Random numbers (torch, CUDA, numpy, Python) are kept by themselves.
    `directory`: TRANSOM_CHECKPOINT_DIR (set by the launcher) when not given. `reshard`: allow a restore with another
    number of ranks than saved; model and optimizer are then resharded, while random numbers and per-rank objects start
    afresh.

    `every`: steps between saves, or "auto": as many as the measured cost of a save and the rate of failures make best,
    while saves cost no more than `overhead` (a part of the time: 0.01 is 1 %; ckpt.cadence). A save is a snapshot in
    the nodes' memory, which outlives the trainer. `persist`: which of them become durable as well: every n-th,
    the first after so much time ("10m", also "30s", "1h"), or "auto": by what a write costs and how often memory is
    lost (the default with every="auto"; else 1: all of them). Rank 0 tells what is chosen and why, whenever it changes.

    `keep`: how many good checkpoints to keep, at least 1; `keep_every`: besides, those at the multiples of so many
    steps stay for ever. `also`: further directories, with a number n each, {"/archive/my-run": 10}: every n-th durable
    checkpoint is written there too, from the same memory (one snapshot more), and the first one of a launch. What
    fails there is told, and harms nothing. restore() looks there too.

    `protect`: how snapshots survive the loss of nodes, by parity on other ones: "none", "replica", "xor:K", "rs:K+M"
    (memory.protection). `protect_rate`: bytes a second that a node sends for that at most.

    `copy`: "blocking", save() returns when the state is copied; "overlapped", it returns at once, and the next step of
    an optimizer waits for what is left of the copy (`ckpt.overlap`: the trainer must not write to parameters in another
    way meanwhile; a copy in which it did is given up). `prove`: find such writes by checksums; slow, to try a trainer.

    Under transom a checkpoint can also be asked for from outside (a *flush*: before the time limit, on preemption);
    save() then makes it at a step that all ranks agree on (ckpt.orders). So that there is time for it, TERM does not
    end the process at once, unless the trainer handles TERM itself (ckpt.keeper).

    With several ranks every rank makes one, after `init_process_group`, and all make the same calls in the same order.
    After restore() the training continues bit for bit as if it had not been interrupted, provided that it is
    deterministic by itself.
    """

    def __init__(
        self, state: dict[str, Any], directory: str | os.PathLike[str] | None = None, *,
        every: int | Literal["auto"], overhead: float = 0.01, keep: int = 2, keep_every: int | None = None,
        also: Also | None = None, reshard: bool = False,
        copy: Literal["blocking", "overlapped"] = "blocking", prove: bool = False,
        persist: int | str | None = None, protect: str = "none", protect_rate: float | None = None,
    ) -> None:  # fmt: skip
        schedule.check(every, overhead)
        if persist is None:
            persist = schedule.AUTO if every == schedule.AUTO else 1
        rule, protection, keeping = Rule(persist), parse(protect), retention.check(keep, keep_every)
        if protect_rate is not None and protect_rate < LEAST_RATE:
            raise UsageError(f"protect_rate={protect_rate!r} must be bytes a second, at least {LEAST_RATE:g}")
        if copy not in ("blocking", "overlapped"):
            raise UsageError(f'copy={copy!r} must be "blocking" or "overlapped"')
        where = directory if directory is not None else os.environ.get("TRANSOM_CHECKPOINT_DIR")
        if not where:
            raise UsageError(
                "The Checkpointer has no directory",
                "TRANSOM_CHECKPOINT_DIR is not set: this trainer was not started by transom",
                'give one: Checkpointer(state, "checkpoints", every=...)',
            )
        attempt = _attempt()
        if not valid_attempt(attempt):
            raise UsageError(f"TRANSOM_ATTEMPT={attempt!r} cannot be part of a file name")
        self.directory = Path(where).absolute()
        self.last_error: SaveFailed | None = None
        further = check_also(also, self.directory)
        self._keep, self._rule, self._protection = keeping, rule, protection
        self._ranks = Ranks()
        self._state = State(state, self._ranks.rank)
        self._schedule = schedule.make(every, overhead, persist, self._ranks, self._say)
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        here = Here(attempt, socket.gethostname(), _alive)
        ground.prepare(self.directory, self._ranks, here, self._say)
        copies = ground.prepare_also(further, self.directory, self._ranks, here, self._say)
        self._snapshots = Snapshots(self.directory, self._ranks, attempt, self._say, protection, protect_rate, copies)
        places = (self.directory, *copies)
        self._resuming = Resuming(places, self._state, self._ranks, self._snapshots, keeping, reshard, self._say)
        self._stager = Stager(self._snapshots.arena, first=self._ranks.first)
        if self._snapshots.lent_bytes >= WORTH:  # to be restored from, most likely
            self._stager.warm()
        self._writer = Writer(self._schedule.writers(self._ranks), attempt, self._stager, self._snapshots)
        self._lasting = Lasting(self._snapshots, self._ended)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transom-ckpt")
        self._running: Future[None] | None = None
        self._running_step = -1
        self._saving = False  # save() was called
        self._saved: int | None = None  # the newest step that counts
        self._durable: int | None = None  # the newest that is durable
        self._told_to_wait = self._closed = False
        self._orders = orders.attend()
        self._prove = prove
        self._hook = register_optimizer_step_pre_hook(self._join) if copy == "overlapped" else None

    @property
    def every(self) -> int:
        """Steps between saves; with "auto" as it holds now."""
        return self._schedule.every

    def restore(self) -> int | None:
        """Load the newest checkpoint that verifies and fits; return its step: the number of finished steps.

        None when there is no checkpoint at all: start from the beginning. Checkpoints that are passed over are named on
        stderr, with the reason, and left where they are. Raises NoCheckpointRestores (exit code 15) when there are
        some and none restores, and WorldSizeChanged. Bytes are read twice: once for the checksum, then to load. What an
        imported checkpoint lacks on purpose (`transom ckpt import`) is left as it is; that is said too.

        A training that begins here waits for its first snapshot's memory to be made, once: save() need not then.
        """
        with phase("restore"), uncollected():
            self.wait()
            found = self._resuming.restore()
            if found is not None:
                self._saved, self._durable = found.step, found.step if found.durable else None
                resumed(found.step)
                self._schedule.at(found.step)
                if self._orders is not None:
                    self._orders.at(found.step)
                if not found.durable:
                    self._rule.hurry()
            self._prepare()
            if found is None:  # one that goes on from somewhere has lost time enough: its memory is made beside it
                self._settle()
            return None if found is None else found.step

    def step(self, step: int, loss: float | None = None) -> bool:
        """`beat(step, loss)` and `save(step)` in one: step `step` is done. Returns whether a checkpoint was started."""
        beat(step, loss)
        return self.save(step)

    def save(self, step: int, force: bool = False) -> bool:
        """Start a checkpoint of the state after `step` steps, when one is due, or with `force`.

        Due is each multiple of `every`; with "auto" the first one `every` steps after the last that was due.

        Also when a flush was asked for, so call it after every step: a call that saves nothing costs microseconds.
        Returns whether one was started. Blocks for the copy of this rank's state into memory (the first time longer:
        the memory is new); the state may be changed as soon as it returns. A save that is still being written is
        waited for when there is no memory left for another copy: a checkpoint asked for is not dropped. The wait is
        told once; a larger `every` or `persist` avoids it. A failure is told on stderr when it is known, kept in
        `last_error`, and training goes on: the next save tries again. The step last restored or saved is not saved
        again.
        """
        if not self._saving:
            self._saving = True
            self._prepare()
        ordered = self._orders is not None and self._orders.due(step)
        due = self._schedule.due(step)
        saving = self._start(step, asked=force or ordered) if force or ordered or due else None
        if self._orders is not None and ordered:
            self._orders.follow(saving.over if saving is not None else None)
        self._schedule.resume(self._writing)
        return saving is not None

    def wait(self, strict: bool = False) -> None:
        """Wait until nothing is being written. With `strict`, raise SaveFailed if the last save failed."""
        self._settle()
        self._lasting.wait()
        if strict and self.last_error is not None:
            raise self.last_error

    def close(self, strict: bool = False) -> None:
        """Make the newest snapshot durable if it is not, wait, and end what runs in the background.

        Copies that are being written (`also`) are waited for too, an hour at most. Call it before
        `destroy_process_group`. May be called twice. TERM then ends the process at once again, as it does by default.
        """
        copied = False
        try:
            if not self._closed:
                self._settle()
                if self._saved is not None and self._saved != self._durable:
                    self._lasting.wait()
                    if self._saved is not None and self._saved != self._durable:
                        self._make_durable(Saving(self._saved, asked=True))
            self.wait(strict)
            copied = self._closed or self._snapshots.copied(COPIES)
        finally:
            if self._hook is not None:
                self._hook.remove()
            self._thread.shutdown()
            self._stager.close()
            if not self._closed:
                self._closed = True
                self._snapshots.close(durable=copied and self._saved == self._durable)
            if self._orders is not None:
                self._orders.close()

    @property
    def _writing(self) -> bool:
        committing = self._running_step >= 0 and self._running is not None and not self._running.done()
        return committing or self._lasting.busy

    def _settle(self) -> None:
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

    def _prepare(self) -> None:
        """After restore(), and at the first call of save(), when the optimizers have their state: all ranks make these
        calls alike. The memory is made while training goes on."""
        self.wait()
        layout, growth = None, 1.0
        with contextlib.suppress(Exception):  # the save will fail of it, and say so
            layout = self._stager.look(*self._state.read())
            growth = 1.0 + self._state.to_come / max(1, layout.size)
        self._running = self._thread.submit(self._writer.prepare, layout, growth)
        self._running_step = -1

    def _start(self, step: int, asked: bool) -> Saving | None:
        """`asked`: it is to be durable in any case."""
        with phase("checkpoint"):
            if self._running is not None and not self._told_to_wait and not wait([self._running], _LONG).done:
                self._told_to_wait = True
                what = "its memory is being made"
                if self._running_step >= 0:
                    what = f"{step_name(self._running_step)} and those before it are being written"
                self._say(f"save({step}) waits: {what}")
            self._settle()
            if step == self._saved:
                self._lasting.wait(step)
            if step == self._saved and (step == self._durable or not asked):
                return None
            saving = Saving(step, asked)
            if step == self._saved:
                self._make_durable(saving)
                return saving
            snapshot, trouble = None, ""
            try:
                later = Later(self._state.stepped(), self._prove) if self._hook is not None else NOTHING
                snapshot = self._stager.take(*self._state.read(), later)
            except Exception as error:
                trouble = f"the state could not be copied: {describe(error)}"
            stall = None if trouble else time.monotonic() - saving.began
            meeting = self._schedule.copied(step, stall, self._lasting.busy)
            self._running_step = step
            self._running = self._thread.submit(self._write, saving, snapshot, trouble, meeting)
        return saving

    def _write(self, saving: Saving, snapshot: Snapshot | None, trouble: str, meeting: Meeting | None) -> None:
        """In the background thread: nobody asks for its result before the next save, so it tells failures itself."""
        step = saving.step
        self._snapshots.rhythm = "; ".join(filter(None, (self._schedule.words, self._rule.words)))
        uses = lambda: self._uses(saving)  # noqa: E731
        try:
            written = self._schedule.carry(meeting, lambda: self._writer.write(step, snapshot, trouble, uses=uses))
        except Exception as error:  # whoever waits for this save must hear of it
            written = Written(describe(error))
        if written.trouble:
            self._failed(step, written.trouble)
        else:
            self._saved = step
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
        protect, durable = self._protection != NONE, self._rule.due(saving.asked, self._schedule.persist)
        return frozenset([*[PROTECTED] * protect, *[DURABLE] * durable])

    def _make_durable(self, saving: Saving) -> None:
        trouble = ""
        if self._ranks.first:
            try:
                self._snapshots.persist(saving.step, self._keep)
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
            if self._saved == saving.step:
                self._saved = None  # the same step may be saved again
            self._failed(saving.step, trouble)
            return
        self._schedule.wrote(time.monotonic() - saving.began)
        self._durable = max(saving.step, self._durable or 0)
        self.last_error = None

    def _failed(self, step: int, trouble: str) -> None:
        self.last_error = SaveFailed(
            f"{step_name(step)} was not saved",
            trouble,
            f"df -h {self.directory}" if "space" in trouble else f"ls -la {self.directory}",
        )
        self._say(f"{step_name(step)} was not saved: {trouble}; training goes on, and the next save tries again")

    def _say(self, line: str) -> None:
        if self._ranks.first:
            _to_stderr(f"transom: {line}")


def _attempt() -> str:
    """Who writes: the attempt and its launch, under transom; else this process."""
    attempt, launch = os.environ.get("TRANSOM_ATTEMPT"), os.environ.get("TRANSOM_LAUNCH")
    if not attempt:
        return local_attempt(socket.gethostname(), os.getpid())
    return f"{attempt}.{launch}" if launch else attempt


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

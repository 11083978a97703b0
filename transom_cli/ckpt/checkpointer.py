"""The calls that a trainer makes. See `Checkpointer`."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from transom_cli.ckpt import ground
from transom_cli.ckpt.also import Also
from transom_cli.ckpt.asked import asked
from transom_cli.ckpt.failures import SaveFailed
from transom_cli.ckpt.names import Here
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore.resuming import Resuming
from transom_cli.ckpt.save import orders
from transom_cli.ckpt.save.collector import uncollected
from transom_cli.ckpt.save.pickles import Pickles, refuse_code
from transom_cli.ckpt.save.saver import Saver, storable
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.schedule import schedule
from transom_cli.ckpt.state import State
from transom_cli.errors import UsageError
from transom_cli.heartbeat.client import beat, phase, resumed

COPIES = 3600.0  # seconds that close() waits for copies to be written


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
    while saves cost no more than `overhead` (a part of the time: 0.01 is 1 %; ckpt.pace.cadence). A save is a snapshot
    in the nodes' memory, which outlives the trainer. `persist`: which of them become durable as well: every n-th,
    the first after so much time ("10m", also "30s", "1h"), or "auto": by what a write costs and how often memory is
    lost (the default with every="auto"; else 1: all of them). Rank 0 tells what is chosen and why, whenever it changes.

    `keep`: how many good checkpoints to keep, at least 1; `keep_every`: besides, those at the multiples of so many
    steps stay for ever. `also`: further directories, with a number n each, {"/archive/my-run": 10}: every n-th durable
    checkpoint is written there too, from the same memory (one snapshot more), and the first one of a launch. What
    fails there is told, and harms nothing. restore() looks there too.

    `protect`: how snapshots survive the loss of nodes, by parity on other ones: "none", "replica", "xor:K", "rs:K+M"
    (memory.protection). `protect_rate`: bytes a second that a node sends for that at most.

    `per_rank`: names or patterns ("model.experts.*") of values that each rank has its own of, though `state` holds
    them like those that all ranks hold alike. They are kept per rank, and restored by as many ranks only. The first
    save compares what is stored once for all ranks, again when its shapes change and after a restore, and raises
    RanksDiffer on every rank, with the names, where they do not hold the same bits.

    `allow_code`: restore values that need code to be loaded, such as objects of your own classes. Anyone who can write
    into the checkpoints directory can then run programs as you. Without it, tensors and data of Python, numpy and torch
    are restored, and classes given to `torch.serialization.add_safe_globals`; a state with anything else is refused
    here with UsageError.

    `copy`: "blocking", save() returns when the state is copied; "overlapped", it returns at once, and the next step of
    an optimizer waits for what is left of the copy (`ckpt.saving.overlap`: the trainer must not write to parameters in
    another way meanwhile; a copy in which it did is given up). `prove`: find such writes by checksums; slow, to try a
    trainer.

    Under transom a checkpoint can also be asked for from outside (a *flush*: before the time limit, on preemption);
    save() then makes it at a step that all ranks agree on (ckpt.saving.orders). So that there is time for it, TERM
    does not end the process at once, unless the trainer handles TERM itself (ckpt.saving.keeper).

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
        per_rank: Sequence[str] = (), allow_code: bool = False,
    ) -> None:  # fmt: skip
        wish = asked(directory, every, overhead, keep, keep_every, also, copy, prove, persist, protect, protect_rate)
        self.directory = wish.directory
        self._ranks = ranks = Ranks()
        live = self._checked(state, per_rank, allow_code)
        self._schedule = schedule.make(every, overhead, wish.persist, ranks, self._say)
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        here = Here(wish.attempt, socket.gethostname(), _alive)
        ground.prepare(self.directory, ranks, here, self._say)
        copies = ground.prepare_also(wish.also, self.directory, ranks, here, self._say)
        self._snapshots = Snapshots(self.directory, ranks, wish.attempt, self._say, wish.protection, wish.rate, copies)
        places = (self.directory, *copies)
        self._resuming = Resuming(
            places, live, ranks, self._snapshots, wish.keep, reshard, self._say, allow_code=allow_code
        )
        pickles = Pickles(None if allow_code else self._warn_of_code)
        self._saver = Saver(wish, ranks, live, self._schedule, self._snapshots, self._say, pickles)
        self._saving = False  # save() was called
        self._closed = False
        self._orders = orders.attend()

    @property
    def every(self) -> int:
        """Steps between saves; with "auto" as it holds now."""
        return self._schedule.every

    @property
    def durable(self) -> int | None:
        """The newest step that is durable, of those saved or restored by this Checkpointer."""
        return self._saver.durable

    @property
    def last_error(self) -> SaveFailed | None:
        """Why the last save failed; None when it did not."""
        return self._saver.last_error

    def batch(self, step: int) -> int:
        """The batch, counted from 0 in the order of the data, that step `step` (from 1, as save() counts) trains on.

        That is `step - 1` until the policy sets the training back and has it skip the batches of the bad steps; known
        after restore(). `skipped` tells the same to a loader that keeps its own position.
        """
        return self._resuming.batches.of(step)

    @property
    def skipped(self) -> tuple[tuple[int, int], ...]:
        """First and last batch of each stretch that is to be left out, in order."""
        return self._resuming.batches.skipped

    def restore(self, allow_lost: bool = False) -> int | None:
        """Load the newest checkpoint that verifies and fits; return its step: the number of finished steps.

        None when nothing was ever saved: start from the beginning. Checkpoints that are passed over are named on
        stderr, with the reason, and left where they are. Raises NoCheckpointRestores (exit code 15) when there are
        some and none restores, or when all that was saved is lost, and WorldSizeChanged. `allow_lost`: return None
        where nothing is left of what was saved. Bytes are read twice: once for the checksum, then to load. What an
        imported checkpoint lacks on purpose (`transom ckpt import`) is left as it is; that is said too.

        A training that begins here waits for its snapshots' memory to be made, once: save() need not then.
        """
        with phase("restore"), uncollected():
            self.wait()
            found = self._resuming.restore(allow_lost)
            resumed(0 if found is None else found.step)
            if found is not None:
                self._saver.resumed(found.step, durable=found.durable)
                self._schedule.at(found.step)
                if self._orders is not None:
                    self._orders.at(found.step)
            self._saver.prepare(
                0 if found is None else found.step, begins=found is None
            )  # one that goes on from somewhere has lost time enough
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
            self._saver.prepare(step - 1)
        ordered = self._orders is not None and self._orders.due(step)
        due = self._schedule.due(step)
        saving = None
        try:
            if force or ordered or due:
                saving = self._saver.start(step, asked=force or ordered, together=force or due)
        except BaseException:
            if self._orders is not None and ordered:
                self._orders.follow(None)
            raise
        if self._orders is not None and ordered:
            self._orders.follow(saving.over if saving is not None else None)
        self._schedule.resume(self._saver.writing)
        return saving is not None

    def wait(self, strict: bool = False) -> None:
        """Wait until nothing is being written, and no old checkpoint removed. With `strict`, raise SaveFailed if the
        last save failed."""
        self._saver.wait()
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
                self._saver.finish()
            self.wait(strict)
            copied = self._closed or self._snapshots.copied(COPIES)
        finally:
            self._saver.close()
            if not self._closed:
                self._closed = True
                self._snapshots.close(durable=copied and self._saver.saved == self._saver.durable)
            if self._orders is not None:
                self._orders.close()

    def _checked(self, state: dict[str, Any], per_rank: Sequence[str], allow_code: bool) -> State:
        """Raises UsageError, on all ranks if on one: none may wait for another that has given up."""
        trouble: UsageError | None = None
        live = None
        try:
            live = State(state, self._ranks.rank, per_rank)
            live.check(storable)
            if not allow_code:
                refuse_code(live)
        except UsageError as error:
            trouble = error
        told = self._ranks.gather((trouble.what, trouble.why, trouble.hint) if trouble is not None else None)
        if trouble is not None:
            raise trouble
        for rank, theirs in enumerate(told):
            if theirs is not None:
                raise UsageError(f"On rank {rank}: {theirs[0]}", *theirs[1:])
        assert live is not None
        return live

    def _warn_of_code(self, key: str, name: str) -> None:
        self._say(
            f"warning: `{key}` holds {name}, which a restore refuses to load. It is saved; to restore it, pass "
            f"allow_code=True, or declare the class with torch.serialization.add_safe_globals"
        )

    def _say(self, line: str) -> None:
        if self._ranks.first:
            _to_stderr(f"transom: {line}")


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

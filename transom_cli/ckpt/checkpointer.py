"""The calls that a trainer makes. See `Checkpointer`."""

import gc
import os
import socket
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from transom_cli.ckpt import live as live_state
from transom_cli.ckpt.directory import prepare_copies, prepare_directory
from transom_cli.ckpt.failures import SaveFailed
from transom_cli.ckpt.names import Here
from transom_cli.ckpt.options import Also, parse_options
from transom_cli.ckpt.publish import check_keep
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore.resume import Restorer
from transom_cli.ckpt.samples import SampleLog
from transom_cli.ckpt.save import final_checkpoint
from transom_cli.ckpt.save.saver import Saver, check_storable
from transom_cli.ckpt.save.serialize import Serializer, refuse_code
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.state import Declared, State
from transom_cli.ckpt.tiers.marks import usable
from transom_cli.errors import UsageError
from transom_cli.heartbeat import paths, reentry
from transom_cli.heartbeat.client import beat, phase, resumed

COPIES = 3600.0  # seconds that close() waits for copies to be written


class Checkpointer:
    """Asynchronous checkpoints of a training, and the restore of the newest good one.

        ck = Checkpointer({"model": model, "optim": optimizer, "data": loader}, every=100)
        start = ck.restore() or 0
        for step in range(start, steps):
            ...
            ck.step(step + 1, loss)
        ck.close()

    A save copies the state into the node's memory, where it outlives the trainer, and a daemon writes some of these
    snapshots to disk. With several ranks every rank makes a Checkpointer, after `init_process_group`, and all ranks
    make the same calls in the same order. After restore() a deterministic training continues bit for bit as if it had
    not been interrupted.

    Under transom a final checkpoint can be requested from outside: before the time limit, or on preemption. save() then
    makes it at a step that all ranks agree on. To leave time for it, SIGTERM ends the process a few seconds late,
    unless the trainer handles SIGTERM itself (`save.final_checkpoint`).

    Args:
        state: names to modules, optimizers, objects with `state_dict` and `load_state_dict`, tensors and plain values.
            `ckpt.state` says what is stored once and what per rank. The states of random number generators (torch,
            CUDA, numpy, Python) are always included.
        directory: the checkpoints directory. Default: TRANSOM_CHECKPOINT_DIR, which the launcher sets.
        every: steps between saves.
        steps: steps of the whole training. `transom status` then shows the progress and the time to go.
        keep: number of newest good checkpoints to keep, at least 1.
        keep_every: also keep checkpoints at multiples of this many steps.
        keep_best: also keep this many of the best checkpoints, by the metric `monitor` that save() is given. The best
            value is the least with mode="min", and the greatest with mode="max".
        also: further directories, each with a number n: {"/archive/my-run": 10}. Every n-th durable checkpoint, and
            the first of a launch, is copied there from the same memory, which takes one more snapshot. Failures there
            are reported and harm nothing. restore() also looks there. A URL such as "s3://bucket/my-run" is object
            storage (fsspec): the published checkpoint is uploaded in the background, with low priority.
        reshard: names or patterns of per-rank objects (a data loader) that start afresh when another number of ranks
            restores; True: all of them. Such a restore is refused while the state has others. Model and optimizer are
            resharded, and random numbers are derived from the saved ones.
        persist: which saves become durable: n for every n-th, or a time such as "30s", "10m" or "1h" for the first
            after it.
        protect: how snapshots survive the loss of nodes, by copies or parity on others: "none", "replica", "xor:K" or
            "rs:K+M".
        protect_rate: most bytes per second that a node sends for that.
        upload_rate: most bytes per second to object storage.
        full_every: one of this many durable checkpoints is written in full. Of the others, only blocks whose bytes have
            changed are written, and the rest is linked from the checkpoint before (`save.incremental`). For states
            that change sparsely: experts, embeddings. Default: every checkpoint is written in full.
        per_rank: names or patterns ("model.experts.*") of values that differ between ranks, though `state` holds them
            like shared ones. They are stored per rank, and restored only by as many ranks.
        from_rank_0: names or patterns ("model.*.running_mean") of values that may differ between ranks, and of which
            rank 0's are saved, and restored on all ranks. Buffers that DDP broadcasts need not be declared.
        allow_code: restore values that need code to be loaded, such as objects of your own classes. Anyone who can
            write to the checkpoints directory can then run programs as you. Without it, a restore loads tensors, data
            of Python, numpy and torch, and classes given to `torch.serialization.add_safe_globals`.
        unproven: names or patterns of values that may differ from the saved ones after a restore, such as a data loader
            that reports another state than it was given. All others are compared, and a difference raises
            RestoredStateDiffers.
        patience: seconds that save() waits for ranks that have not called it, before it raises RanksMissing.

    Raises:
        UsageError: on all ranks, if an argument or the state cannot be used.
        TakenOver: a newer launch owns the directory.
    """

    def __init__(
        self, state: dict[str, Any], directory: str | os.PathLike[str] | None = None, *,
        every: int, steps: int | None = None, keep: int = 2, keep_every: int | None = None,
        keep_best: int | None = None, monitor: str = "loss", mode: Literal["min", "max"] = "min",
        also: Also | None = None, reshard: bool | Sequence[str] = (),
        persist: int | str = 1, protect: str = "none", protect_rate: float | None = None,
        upload_rate: float | None = None, full_every: int | None = None,
        per_rank: Sequence[str] = (), from_rank_0: Sequence[str] = (), allow_code: bool = False,
        unproven: Sequence[str] = (), patience: float = 120.0,
    ) -> None:  # fmt: skip
        paths.await_rank("making a Checkpointer")
        keeping = check_keep(keep, keep_every, keep_best, monitor, mode)
        fresh = Declared("reshard", reshard if not isinstance(reshard, bool) else ["*"] * reshard)
        options = parse_options(
            directory, every, keeping, also, persist, protect, protect_rate, upload_rate, full_every, steps
        )
        if not patience > 0:
            raise UsageError(f"patience={patience!r} must be a number of seconds above 0")
        self.directory = options.directory
        self._ranks = ranks = Ranks()
        live = self._checked(state, per_rank, from_rank_0, allow_code)
        if reentry.elastic_replicas():
            _refuse_own_values(live, fresh, per_rank)
        self.every, self._steps = options.every, options.steps
        self._check_every()
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        here = Here(options.attempt, socket.gethostname(), _alive)
        self._passed_over = prepare_directory(self.directory, ranks, here, self._say)  # unless restore() is called
        copies = prepare_copies(options.also, self.directory, ranks, here, self._say)
        self._snapshots = Snapshots(
            self.directory, ranks, options.attempt, self._say, options.protection, options.rate, copies,
            options.mirrors, options.upload_rate,
        )  # fmt: skip
        self._restorer = Restorer(
            (self.directory, *copies), live, ranks, self._snapshots, options.keep, fresh, self._say,
            allow_code=allow_code, unproven=unproven, mirrors=tuple(options.mirrors), attempt=options.attempt,
        )  # fmt: skip
        serializer = Serializer(None if allow_code else self._warn_of_code)
        self._saver = Saver(options, ranks, live, self._snapshots, self._say, serializer, patience)
        self._prepared = False  # for the first save
        self._closed = False
        self._samples = SampleLog(state, first=ranks.first)
        self._requests = final_checkpoint.listen()
        self._live = live_state.LiveState(live) if reentry.watched() else None
        self._state = live
        reentry.at_reentry(weakref.WeakMethod(self._abandon))

    @property
    def durable(self) -> int | None:
        """The newest durable step that this Checkpointer saved or restored."""
        return self._saver.durable

    @property
    def last_error(self) -> SaveFailed | None:
        """Why the last save failed; None if it did not."""
        return self._saver.last_error

    def batch(self, step: int) -> int:
        """Return the batch that a step trains on.

        This is `step - 1` until a rollback skips the batches of bad steps; it is known after restore(). A loader that
        keeps its own position can use `skipped` instead.

        Args:
            step: counted from 1, as save() does.

        Returns:
            The batch, counted from 0 in the order of the data.
        """
        return self._restorer.batches.of(step)

    @property
    def skipped(self) -> tuple[tuple[int, int], ...]:
        """First and last batch of each range that is skipped, in order."""
        return self._restorer.batches.skipped

    def restore(
        self, path: str | os.PathLike[str] | None = None, *, step: int | None = None, allow_lost: bool = False
    ) -> int | None:
        """Load the newest checkpoint that verifies and fits this training.

        Checkpoints that do not are named on stderr, with the reason, and kept. Bytes are verified while they are
        loaded. Entries that an imported checkpoint leaves out on purpose (`transom ckpt import`) keep their
        initial state, which is reported. If training starts from the beginning, this waits until the memory for
        snapshots is allocated, so that save() need not.

        Args:
            path: a checkpoint to start from if nothing was saved in this Checkpointer's directory yet: another
                `step-<n>`, or a directory that torch.distributed.checkpoint (DCP) wrote. DCP's is verified as far as
                its archives carry checksums, and a line on stderr says so. Random numbers and per-rank objects then
                start afresh.
            step: the number of finished steps of a DCP directory that is not called `step-<n>`.
            allow_lost: return None if nothing remains of what was saved.

        Returns:
            The number of finished steps, or None if nothing was ever saved: start from the beginning.

        Raises:
            NoCheckpointRestores: there are checkpoints and none restores, or all are lost (exit code 15).
            RestoredStateDiffers: what was loaded is not what was saved, and no older checkpoint restored (exit code
                18). Do not train with this state.
            WorldSizeChanged: the checkpoint has per-rank state for another number of ranks.
            UsageError: `path` is no checkpoint, or nothing says which step it is.
        """
        with phase("restore"), garbage_collection_paused():
            self.wait()
            self._passed_over = ""
            if self._live is not None and path is None and (done := self._continue()) is not None:
                return done
            found = self._restorer.restore(allow_lost)
            if found is None and path is not None:
                found = self._restorer.start_from(Path(path).absolute(), step)
            if found is None and self._live is not None:
                self._refuse_trained()
            step = 0 if found is None else found.step
            resumed(step)
            if found is not None:
                self._saver.resumed(step, durable=found.durable)
                if self._requests is not None:
                    self._requests.at(step)
            # a training that resumes has lost enough time already: its memory is allocated while it runs
            self._saver.prepare(step, begins=found is None)
            if found is not None:
                self._live_at(step, restored=True)
            return None if found is None else step

    def _continue(self) -> int | None:
        """Go on from the live state of the launch before. None: there is none."""
        done = live_state.restore(self.directory, self._state, self._ranks, self._say)
        if done is None:
            return None
        self._restorer.continues()
        self._snapshots.rewind(done)
        resumed(done)
        self._saver.continues(done)
        if self._requests is not None:
            self._requests.at(done)
        self._saver.prepare(done)
        self._live_at(done, restored=True)
        # The save of that step may have been interrupted. With every=1 the next one follows at once, if one is to come.
        more = self.every == 1 and done < self._steps
        if done and done % self.every == 0 and not more:
            self._saver.start(done, requested=False)
        return done

    def _refuse_trained(self) -> None:
        """A training that begins must not begin with parameters that an earlier launch has trained."""
        kept = self._ranks.gather(live_state.keeps_trained(self._state))
        if any(kept):
            why = f"nothing was saved that could be restored, and rank {kept.index(True)} has kept a trained model"
            raise reentry.StartsFromScratch(why)

    def _live_at(self, step: int, *, restored: bool = False) -> None:
        if self._live is not None:
            self._live.mark(step, restored=restored)

    def step(self, step: int, loss: float | None = None, metrics: Mapping[str, float] | None = None) -> bool:
        """Report that `step` is done and save if due: `beat(step, loss)` and `save(step, metrics)` in one.

        The loss is one of the metrics, by the name "loss".

        Returns:
            Whether a checkpoint was started.
        """
        beat(step, loss)
        return self.save(step, metrics={**({} if loss is None else {"loss": float(loss)}), **(metrics or {})})

    def save(self, step: int, force: bool = False, metrics: Mapping[str, float] | None = None) -> bool:
        """Start a checkpoint of the state after `step` finished steps, if one is due or requested.

        Call it after every step: a call that saves nothing takes microseconds. A save is due at each multiple of
        `every`.

        Blocks until this rank's state is copied into memory; the state may change as soon as it returns. If an earlier
        save is not committed in time (20 s, then a small part of the time), this one is dropped and reported. If there
        is no memory for a copy, the state is written to disk, which takes longer. A failure is reported on stderr and
        in `last_error`; training continues, and the next save tries again.

        Args:
            step: finished steps. The step last restored or saved is not saved again.
            force: save even if none is due, and make it durable.
            metrics: of the step, by name; rank 0's are stored with the checkpoint, for `keep_best`.

        Returns:
            Whether a checkpoint was started.

        Raises:
            RanksDiffer: values that are stored once differ between ranks; raised on every rank, with their names. The
                first save compares them, and the first one after a restore or a change of shapes. Each save compares
                buffers, other tensors and plain values, but no parameters (up to 16 MiB); the next call raises then.
                Parameters that were equal at the restore are first repeated on other nodes, if a launcher watches.
            RanksMissing: other ranks have not called save() within `patience`; names them. No save can follow.
        """
        self._live_at(step)
        if not self._prepared:
            self._prepared = True
            self._saver.prepare(step - 1)
            if self._passed_over:
                self._say(
                    f"warning: restore() was not called, and {self._passed_over} is in {self.directory}. A restart "
                    "resumes from the newest step, also if it is of another training, and a step that is there is kept"
                )
        self._samples.done(step)
        requested = self._requests is not None and self._requests.due(step)
        due = step % self.every == 0
        save = None
        try:
            if force or requested or due:
                save = self._saver.start(
                    step, requested=force or requested, together=force or due, metrics=usable(metrics or {})
                )
        finally:
            if self._requests is not None and requested:
                self._requests.follow(save.over if save is not None else None)
        reentry.at_boundary()
        return save is not None

    def wait(self, strict: bool = False) -> None:
        """Wait until nothing is being written, and no old checkpoint is being deleted.

        Args:
            strict: raise SaveFailed if the last save failed.
        """
        self._saver.wait()
        if strict and self.last_error is not None:
            raise self.last_error

    def close(self, strict: bool = False) -> None:
        """Make the newest snapshot durable, wait, and stop all background work.

        Also waits for copies (`also`), at most an hour. Call it before `destroy_process_group`; it may be called
        twice. SIGTERM then ends the process at once again.

        Args:
            strict: raise SaveFailed if the last save failed.
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
            if self._requests is not None:
                self._requests.close()

    def _abandon(self) -> None:
        """Stop without waiting for other ranks: this process leaves its launch.

        Snapshots stay in the node's memory, like those of a rank that was killed.
        """
        if not self._closed:
            self._closed = True
            if self._live is not None:
                live_state.keep(self.directory, self._live.leave())
            self._snapshots.daemon.close()
            self._saver.close()
            self._snapshots.close(durable=False)
            if self._requests is not None:
                self._requests.close()

    def _check_every(self) -> None:
        """Raise UsageError on all ranks if they would save at different steps."""
        by_rank = self._ranks.gather(self.every)
        if len(set(by_rank)) > 1:
            words = ", ".join(f"rank {n} {one}" for n, one in enumerate(by_rank) if one not in by_rank[:n])
            raise UsageError(
                "The ranks would save at different steps", f"of `every` they have: {words}",
                "give every rank the same `every`",
            )  # fmt: skip

    def _checked(
        self, state: dict[str, Any], per_rank: Sequence[str], from_rank_0: Sequence[str], allow_code: bool
    ) -> State:
        """Raise UsageError on all ranks if one refuses its state: no rank may wait for one that has given up."""
        trouble: UsageError | None = None
        live = None
        try:
            live = State(state, self._ranks.rank, per_rank, from_rank_0)
            live.check(check_storable)
            if not allow_code:
                refuse_code(live)
        except UsageError as error:
            trouble = error
        answers = self._ranks.gather((trouble.what, trouble.why, trouble.hint) if trouble is not None else None)
        if trouble is not None:
            raise trouble
        for rank, theirs in enumerate(answers):
            if theirs is not None:
                raise UsageError(f"On rank {rank}: {theirs[0]}", *theirs[1:])
        assert live is not None
        live.exchange_groups(self._ranks)
        return live

    def _warn_of_code(self, key: str, name: str) -> None:
        self._say(
            f"warning: `{key}` holds {name}, which a restore refuses to load. It is saved; to restore it, pass "
            f"allow_code=True, or declare the class with torch.serialization.add_safe_globals"
        )

    def _say(self, line: str) -> None:
        if self._ranks.first:
            sys.stderr.write(f"transom: {line}\n")
            sys.stderr.flush()


def _refuse_own_values(live: State, fresh: Declared, per_rank: Sequence[str]) -> None:
    """Raise UsageError if a rank that joins elastic replicas would lack what only the lost rank had."""
    own = [*per_rank, *(name for name in live.kept_per_rank() if not fresh.matches(name))]
    if own:
        raise UsageError(
            f"Elastic replicas cannot carry over {', '.join(own)}",
            "each rank has its own, and that of a lost rank is gone",
            f"use transom_cli.elastic.GlobalBatches for the data, or let it start afresh: reshard={own!r}",
        )


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause Python's garbage collector.

    Thousands of small short-lived objects would trigger a collection, which looks at everything that torch has made
    (0.15 s) and finds nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

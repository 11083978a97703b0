"""The saves of a Checkpointer: the copy that the trainer waits for, then the commit and the write in the background."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait

import torch

from transom_cli.ckpt.failures import RanksDiffer, RanksMissing, SaveFailed, describe
from transom_cli.ckpt.free_memory import PressureWatch
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.options import Options
from transom_cli.ckpt.ranks import FAILURES, Ranks
from transom_cli.ckpt.save.breaker import Background, Patience
from transom_cli.ckpt.save.commit import DURABLE, PROTECTED, Committed, Committer
from transom_cli.ckpt.save.daemon import GIVE_UP, Outcome
from transom_cli.ckpt.save.layout import lay_out, local_plan
from transom_cli.ckpt.save.replicas import Proof, ReplicaCheck, compare
from transom_cli.ckpt.save.serialize import Serializer
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.save.staging import Snapshot, Stager
from transom_cli.ckpt.save.status import IN_MEMORY, ON_DISK, StatusReporter
from transom_cli.ckpt.save.streamed import Streamed, Streamer
from transom_cli.ckpt.schedule import NEVER, NextSaves
from transom_cli.ckpt.state import State
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.core.log_lines import NOT_SAVED
from transom_cli.heartbeat.client import phase
from transom_cli.rpc.errors import RpcError

_LONG = 0.5  # seconds: a longer wait for the previous save is reported
PATIENCE = 20.0  # seconds that a save waits for the one before it, as while a daemon that died is replaced
REQUESTED = 20.0  # the same, for a save that was requested: a final checkpoint has no next one
PART = 0.02  # of the training time that saves may wait for earlier ones in the long run
BEGIN = 60.0  # seconds for the memory of a starting training


class Save:
    """One save.

    over: set when nothing more happens to it: it is durable, need not be, or has failed. compared: set when the ranks
    have compared their replicas, to the error if they differ.
    """

    def __init__(self, step: int, requested: bool, metrics: Mapping[str, float]) -> None:
        self.step, self.requested, self.metrics = step, requested, metrics
        self.over: Future[None] = Future()
        self.compared: Future[RanksDiffer | None] = Future()


class Saver:
    """Runs saves. Called from the training thread; all ranks make the same calls in the same order.

    saved: step of the newest committed checkpoint. durable: of the newest durable one. last_error: why the last save
    failed.
    """

    def __init__(
        self, options: Options, ranks: Ranks, state: State, snapshots: Snapshots,
        say: Callable[[str], None], serializer: Serializer, patience: float = 120.0,
    ) -> None:  # fmt: skip
        self._options, self._ranks, self._state = options, ranks, state
        self._snapshots, self._say = snapshots, say
        self.saved: int | None = None
        self._metrics: Mapping[str, float] = {}  # of the newest save
        self.durable: int | None = None
        self.last_error: SaveFailed | None = None
        self._status = StatusReporter(options.directory, first=ranks.first)
        self._stager = Stager(snapshots.buffer, serializer, first=ranks.first)
        self._committer = Committer(options, ranks, self._stager, snapshots)
        self._serializer = serializer
        self._streamer = Streamer(options, ranks, self._committer, say)
        self._background = Background(ranks, patience)
        self._running_step = -1
        self._done = 0  # the last finished step that the trainer reported
        self._becoming_durable: list[Save] = []
        self._reported_wait = False
        self._patience = Patience(PATIENCE, PART)
        self._replicas = ReplicaCheck(ranks, state, say)
        self._filling = threading.Lock()  # held while a snapshot is copied in save()
        self._releasing = False
        self._pressure = PressureWatch(self._relieve)

    # Called by the trainer

    def resumed(self, step: int, *, durable: bool) -> None:
        """Training continues from the restored `step`."""
        self.saved, self.durable = step, step if durable else None
        self._status.began(step, durable=durable)
        self._replicas.forget()
        self._replicas.clean = step
        if not durable:
            self._options.rule.hurry()

    def continues(self, step: int) -> None:
        """Training continues from a live state that the ranks have compared, whether `step` is saved or not."""
        self._replicas.forget()
        self._replicas.clean = step
        self._options.rule.hurry()

    def prepare(self, done: int, *, begins: bool = False) -> None:
        """Plan and allocate memory for the next save, after `done` steps: after restore(), and at the first save().

        Args:
            begins: training starts from the beginning. Then wait for the memory now, so that no save has to.
        """
        self.wait()
        read, to_come = None, 0
        with contextlib.suppress(Exception):  # the save will fail for the same reason, and report it
            read, to_come = self._state.shapes(), self._state.to_come
        self._snapshots.awaited = begins
        self._done = done
        self._background.start(self._prepare, read, to_come)
        self._running_step = -1
        if begins:
            self._background.wait(BEGIN)
            self._snapshots.awaited = False
            self._background.raise_lost()

    def start(
        self, step: int, requested: bool, together: bool = True, metrics: Mapping[str, float] | None = None
    ) -> Save | None:
        """Copy the state and start the commit of `step` in the background. None if `step` is saved already.

        None too, and reported, if the save before is not committed in time: training does not wait for a daemon, a
        file system or another rank that is stuck. Ranks need not agree on that (`Committer.call_roll`).

        Args:
            requested: make it durable in any case.
            together: all ranks save this step, not only those that saw a request for a final checkpoint in time.
            metrics: of the step; rank 0's are stored.

        Raises:
            RanksDiffer: on all ranks, in this save or the next one.
        """
        with phase("checkpoint"):
            self._background.raise_lost()
            if not self._settled_soon(step, requested):
                return None
            self._raise_refusal()
            if step == self.saved:
                running = self.wait_durable(step, REQUESTED)
                if running is not None:
                    return running
            if step == self.saved and (step == self.durable or not requested):
                return None
            self._metrics = metrics or (self._metrics if step == self.saved else {})
            save = Save(step, requested, self._metrics)
            if step == self.saved:
                self._make_durable(save)
                return save
            snapshot, streamed, proof, trouble = None, None, None, ""
            self._streamer.note(step)
            with self._filling:
                try:
                    flat, paths = self._state.to_save()
                    try:
                        snapshot = self._stager.take(flat, paths)
                        self._committer.ledger.sample(step, flat, snapshot, self._state.unstored(flat))
                    except (MemoryError, RpcError) as error:
                        trouble = describe(error)
                        if self._streamer.due(step) or requested:
                            layout = self._stager.look(flat, paths)
                            others = self._state.unstored(flat)
                            streamed = self._streamer.write(step, layout, flat, self._serializer, others)
                    if snapshot is not None or streamed is not None:
                        proof = self._replicas.proof(flat, (streamed or snapshot).layout)  # type: ignore[union-attr]
                except Exception as error:
                    trouble = "; ".join(filter(None, (trouble, f"the state could not be copied: {describe(error)}")))
                self._running_step = self._done = step
                self._background.start(self._commit_and_persist, save, (snapshot, streamed), trouble, proof)
            if proof is not None and not proof.partial and together:
                self._background.wait_for(save.compared)
                self._background.raise_lost()
                self._raise_refusal()
        return save

    def finish(self) -> None:
        """Make the newest committed checkpoint durable."""
        self.settle()
        if self.saved is not None and self.saved != self.durable:
            self.wait_durable()
            if self.saved is not None and self.saved != self.durable and not self._durable_pending:
                self._make_durable(Save(self.saved, requested=True, metrics=self._metrics))

    def wait(self) -> None:
        """Wait until nothing is being written, and no old checkpoint is being deleted.

        A write that does not move for GIVE_UP seconds is given up, and is a failed save.
        """
        self.settle()
        self.wait_durable()
        self._snapshots.tidied(GIVE_UP)

    def settle(self) -> None:
        """Wait until the last save is committed or has failed."""
        self._background.wait()

    def wait_durable(self, step: int | None = None, patience: float | None = None) -> Save | None:
        """Wait until nothing, or not `step`, is being made durable. Return what still is after `patience` seconds."""
        for save in list(self._becoming_durable):
            if step in (None, save.step) and wait([save.over], patience).not_done:
                return save
        return None

    def close(self) -> None:
        self._pressure.close()
        self._background.close()
        self._stager.close()
        self._committer.ledger.close()
        self._status.close()

    @property
    def _durable_pending(self) -> bool:
        return any(not save.over.done() for save in self._becoming_durable)

    def _settled_soon(self, step: int, requested: bool) -> bool:
        """Wait for the last save, as long as training may wait. Otherwise report that save(step) is dropped."""
        began = time.monotonic()
        left = REQUESTED if requested else self._patience.left
        done = self._background.wait(min(_LONG, left))
        if not done and not self._reported_wait:
            self._reported_wait = True
            self._say(f"save({step}) waits: {self._waits_for}")
        done = done or self._background.wait(left - _LONG)
        self._patience.spend(time.monotonic() - began)
        if not done:
            self._failed(step, f"training does not wait any longer: {self._waits_for}", IN_MEMORY)
        return done

    @property
    def _waits_for(self) -> str:
        if self._running_step < 0:
            return "the memory for snapshots is being allocated"
        return f"{step_name(self._running_step)} is not committed on all ranks yet"

    def _raise_refusal(self) -> None:
        refused, self._replicas.refusal = self._replicas.refusal, None
        if refused is not None:
            self.settle()
            doubt = self._replicas.doubt
            if doubt is not None:
                if self._ranks.first:
                    self._say(f"{doubt.words}; waiting for the launcher to go back and repeat the steps")
                doubt.report()
                doubt.settled(self._ranks)
            if self._ranks.first:  # Python prints nothing for a SystemExit that nobody catches
                sys.stderr.write(f"error: {refused}\n")
                sys.stderr.flush()
            raise refused

    def _relieve(self) -> None:
        """Memory is short: give back a buffer, in the background thread. Called by the pressure watch."""
        if not self._releasing:
            self._releasing = True
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._background.add(self._release)

    # In the background thread: the result is read at the next save only, so failures are reported here

    def _release(self) -> None:
        """A snapshot that save() has begun to copy keeps its buffer: its commit is next in this thread."""
        try:
            if self._filling.acquire(blocking=False):
                try:
                    if not self._background.busy:
                        self._snapshots.release()
                finally:
                    self._filling.release()
        except Exception as error:
            self._say(f"snapshots could not give memory back: {describe(error)}")
        finally:
            self._releasing = False

    def _prepare(self, read: tuple[Flat, Paths] | None, to_come: int) -> None:
        """Nothing else uses the stager meanwhile. Only the shapes in `read` are used."""
        layout, growth = None, 1.0
        with contextlib.suppress(Exception):
            if read is not None:
                layout = self._stager.look(*read)
                growth = 1.0 + to_come / max(1, layout.size)
        self._publish_plan()
        try:
            self._committer.prepare(layout, growth, self._background.absence)
        except RanksMissing as error:
            self._background.lost = error

    def _commit_and_persist(
        self, save: Save, copies: tuple[Snapshot | None, Streamed | None], trouble: str, proof: Proof | None
    ) -> None:
        snapshot, streamed = copies
        committed = self._commit(save, snapshot, streamed, trouble, proof)
        if not save.compared.done():
            save.compared.set_result(None)
        if committed.trouble:
            self._failed(
                save.step,
                committed.trouble,
                IN_MEMORY,
                reported=proof is not None and not proof.partial and self._replicas.refusal is not None,
            )
        else:
            self.saved = save.step
            self._patience.refill()
            self._status.good(IN_MEMORY, save.step)
        self._publish_plan()
        if PROTECTED in committed.uses and self._ranks.first:
            with contextlib.suppress(*FAILURES):  # the next one will be
                self._snapshots.protect(save.step)
        if DURABLE in committed.uses:
            self._make_durable(save)
        else:
            self.last_error = self.last_error if committed.trouble else None
            save.over.set_result(None)
        if committed.prepare and snapshot is not None:
            self._committer.prepare_next(snapshot, committed.share)

    def _commit(
        self, save: Save, snapshot: Snapshot | None, streamed: Streamed | None, trouble: str, proof: Proof | None
    ) -> Committed:
        """Commit `snapshot`, with the same result on all ranks."""
        try:
            awaited = proof is not None and not proof.partial  # by the trainer
            absence = self._background.absence if awaited else None
            roll = self._committer.call_roll(save.step, snapshot, trouble, proof, absence)
            if not roll.together:
                return Committed(roll.trouble)
            if any(short is not None for short in roll.checksums):
                comparison = compare(self._ranks, proof, roll.checksums)
                self._replicas.compared(save.step, proof, comparison)
                save.compared.set_result(comparison.refused)
                if comparison.trouble:
                    return Committed(comparison.trouble)
            if roll.trouble or snapshot is None:
                trouble = self._streamer.commit(save.step, snapshot, streamed, roll.trouble)
                if not trouble:
                    self._ended(save, "")
                    self._snapshots.note(save.step)
                return Committed(trouble, prepare=True)
            return self._committer.commit(save.step, snapshot, agreed=roll.agreed, requested=save.requested)
        except RanksMissing as error:
            self._background.lost = error
            return Committed(describe(error))
        except FAILURES as error:  # a collective failed: a peer is gone, and training will notice by itself
            return Committed(describe(error))

    def _make_durable(self, save: Save) -> None:
        """Let the daemon of rank 0 write `save`, and watch for the outcome in a thread of its own."""
        if self._ranks.first:
            try:
                self._snapshots.persist(save.step, self._options.keep, save.metrics, requested=save.requested)
            except FAILURES as error:
                self._ended(save, describe(error))
                save.over.set_result(None)
                return
        self._becoming_durable = [former for former in self._becoming_durable if not former.over.done()]
        self._becoming_durable.append(save)
        threading.Thread(target=self._watch, args=(save,), name="transom-durable", daemon=True).start()

    def _watch(self, save: Save) -> None:
        def still(why: str) -> None:
            self._failed(save.step, why, ON_DISK)

        try:
            outcome = self._snapshots.daemon.outcome(save.step, still)
        except Exception as error:  # callers that wait for `over` must hear of it
            outcome = Outcome(f"{type(error).__name__}: {error}")
        try:
            if not outcome.superseded:  # otherwise a newer one is on its way
                self._ended(save, outcome.trouble)
        finally:
            save.over.set_result(None)

    def _ended(self, save: Save, trouble: str) -> None:
        """`save` is durable, or `trouble` says why not."""
        if trouble:
            if self.saved == save.step:
                self.saved = None  # the same step may be saved again
            self._failed(save.step, trouble, ON_DISK)
            return
        self._status.good(ON_DISK, save.step)
        self.durable = max(save.step, self.durable or 0)
        self.last_error = None

    def _failed(self, step: int, trouble: str, what: str, *, reported: bool = False) -> None:
        """reported: the trainer gets an error for it anyway."""
        self.last_error = SaveFailed(
            f"{step_name(step)} was not saved",
            trouble,
            f"df -h {self._options.directory}" if "space" in trouble else f"ls -la {self._options.directory}",
        )
        self._status.failed(what, step, trouble)
        if not reported:
            self._say(f"{step_name(step)} was not saved: {trouble}{NOT_SAVED}")

    def _publish_plan(self) -> None:
        """Tell the daemon when the next saves come, for status displays. Rank 0's plan holds for all ranks."""
        if not self._ranks.first:
            return
        rule, every = self._options.rule, self._options.every
        step = (self._done // every + 1) * every
        left, seconds = rule.left()
        durable = None if left is None or left > NEVER // 2 else step + (left - 1) * every
        durable_from = time.time() + seconds if left is None else None
        saves = NextSaves(
            step, every, rule.every if rule.every != NEVER else None, durable, durable_from, self._options.steps
        )
        with contextlib.suppress(*FAILURES):  # only displays wait for it
            if (mirrored := self._snapshots.mirrored()) is not None:
                self._status.mirrored(mirrored)
            each = "every step" if every == 1 else f"every {every} steps"
            self._snapshots.daemon.plan(f"{each}; {rule.words}", saves)


def check_storable(flat: Flat, paths: Paths) -> None:
    """Raise what a save of these values would raise, without a copy."""
    lay_out((), local_plan(flat, paths, first=True), None)
    serializer = Serializer()
    for key, value in flat.items():
        if not isinstance(value, torch.Tensor):
            serializer.serialize(key, value)

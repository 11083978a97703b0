"""A rank's snapshots in its node's memory: the rank allocates the memory, and the node's snapshot daemon keeps it.

A rank has a few buffers. One holds the newest committed snapshot, another may still be written to disk, and the next
snapshot goes into a third. With protection there are two, and another one if a save finds both in use. Buffers outlive
the rank, so a restart can restore from them.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from transom_cli.ckpt.free_memory import SPARE, free_memory
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import step_name
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.buffer import PAGE, Buffer
from transom_cli.ckpt.save.daemon import DaemonSession
from transom_cli.ckpt.saved_marker import MarkerWriter
from transom_cli.ckpt.snapshot.protection import BUFFERS, NONE, PROTECTED_BUFFERS, Protection
from transom_cli.ckpt.snapshot.record import Record, Share
from transom_cli.ckpt.tiers.mirror import Uploads
from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.rpc import local
from transom_cli.rpc.errors import Failed, RpcError

GROW = 2.0  # seconds to wait for a free buffer before another one is allocated
PATIENCE = 5.0  # seconds that a save waits for a free buffer, or for the restored step to be on disk
_RECORDS = 4  # commits that are replayed to a new daemon


class Snapshots:
    """Making one is a collective. Then for one thread at a time, except `outcome`.

    superseding: a step was restored from memory, and no newer one is committed on all ranks yet. awaited: the trainer
    waits for the memory that is being allocated.
    """

    def __init__(
        self, directory: Path, ranks: Ranks, attempt: str, say: Callable[[str], None],
        protection: Protection = NONE, rate: float | None = None, also: Mapping[Path, int] | None = None,
        mirrors: Mapping[str, int] | None = None, upload_rate: float | None = None,
    ) -> None:  # fmt: skip
        self._directory, self._ranks, self._attempt, self._say = directory, ranks, attempt, say
        self._protection, self._also, self._mirrors = protection, dict(also or {}), dict(mirrors or {})
        self._slots = BUFFERS + (protection != NONE) + bool(self._also)  # one being protected, one copied
        self._most = self._start = self._slots if protection == NONE else PROTECTED_BUFFERS
        self._released = False  # whether buffers were given back because memory was short
        self.superseding = False
        self.awaited = False
        places = {**{str(path): every for path, every in self._also.items()}, **self._mirrors}
        self.daemon = DaemonSession(directory, ranks, attempt, say, protection, rate, places, upload_rate)
        self._buffers, self._shares = self.daemon.buffers, self.daemon.shares
        self._marker = MarkerWriter(directory, attempt, self.daemon.nodes)
        for buffer in self._buffers.values():  # while the trainer prepares itself
            threading.Thread(target=buffer.enter, name="transom-enter", daemon=True).start()

    # A save

    def buffer(self, need: int, size: int) -> Buffer:
        """Memory for the next snapshot: at least `need` bytes, allocated with `size` if no buffer fits.

        Raises MemoryError and HolderGone.
        """
        while True:
            self._make_one_more(size)
            if self.daemon.taken is None:
                self._take()
            taken = self.daemon.taken
            assert taken is not None
            buffer = self._buffers[taken]
            if need <= buffer.size <= 2 * size + 2 * PAGE:
                return buffer
            self.daemon.taken = None
            self._give_back(taken)
            try:
                return self._make(taken, size)
            except MemoryError:  # free more buffers that do not fit, but never the only copy of the restored step
                if self.daemon.restored is None or not (self._buffers or self._secure()):
                    raise

    def ready(self, size: int) -> None:
        """Prepare a buffer for the next save: allocate one more until there are enough, then take a free one.

        A single buffer holds the newest committed snapshot until the next save.
        """
        self._make_one_more(size)
        if self.daemon.taken is None and self._most > 1:
            self._take(ahead=True)

    def complete(self) -> None:
        """Allocate all buffers, as large as the one in use, so that no save waits for memory.

        A training that begins has not allocated its own memory yet. Leave as much free again, or allocate the rest
        later.
        """
        while self.daemon.taken is not None and len(self._buffers) < self._most:
            size = self._buffers[self.daemon.taken].size
            if free_memory() < 2 * size + SPARE:
                return
            self._one_more(size, take=False)

    def release(self) -> None:
        """Memory is short: give back one buffer whose snapshot is not needed. The last one is kept.

        Not while a snapshot is copied.
        """
        if len(self._buffers) < 2:
            return
        index = self.daemon.taken
        if index is None:
            sent = self.daemon.send("take", again=True, patience=0.0, words=False)
            index = sent[0].get("index") if sent else None
            if index is None:
                return  # all are in use
            self._shares.pop(index, None)
        self.daemon.taken = None
        self._give_back(index)
        self._most = len(self._buffers)
        if not self._released:
            self._released = True
            self._say(f"memory is short: snapshots give some back ({self._most} of {self._slots} buffers remain)")

    def hold(self, step: int, entry: FileEntry, segments: list[tuple[int, int]]) -> None:
        """The copy in the buffer that was handed out last is complete."""
        if self.daemon.taken is None:
            raise ValueError("there is no copy")
        self.daemon.hold(self.daemon.taken, Share(step, entry.name, entry.size, entry.xxh3_128, tuple(segments)))

    def commit(self, step: int, record: Record, uses: Iterable[str]) -> None:
        """All ranks' copies of `step` are held, as the record lists. `uses`: what its memory stays reserved for."""
        records = self.daemon.records
        for old in [n for n in sorted({*records, step})[:-_RECORDS] if n not in (self.daemon.restored, step)]:
            del records[old]
        self.daemon.commit(step, record, list(uses))
        if self._ranks.first:
            self._marker.note(step)

    def note(self, step: int) -> None:
        """`step` is saved without a snapshot."""
        if self._ranks.first:
            self._marker.note(step)

    def supersede(self, step: int) -> None:
        """All ranks have committed `step`: the restored step's memory need not be kept any longer."""
        self.superseding = False
        if self._protection == NONE:  # otherwise the daemon waits until `step` is protected too
            self.daemon.restored = None
        self._most = max(self._start, len(self._buffers))  # there may be memory for more now
        self.daemon.send("superseded", step=step)

    def persist(self, step: int, keep: Keep, metrics: Mapping[str, float], *, requested: bool) -> None:
        """Start to make `step` durable, with the metrics of the step. Called by rank 0.

        Args:
            requested: write it even if a newer step is to be written before its turn comes.
        """
        how = {"metrics": dict(metrics), "requested": requested, "attempt": self._attempt, "keep": plain(keep)}
        self.daemon.send("persist", again=True, step=step, **how)

    def protect(self, step: int) -> None:
        """Start to protect `step` on other nodes. Called by rank 0."""
        self.daemon.send("protect", again=True, step=step)

    def copied(self, patience: float) -> bool:
        """Wait until no copy is being written into a further place. False after `patience` seconds."""
        deadline = time.monotonic() + patience
        with suppress(RpcError):  # a daemon that is gone writes nothing
            while (self._also or self._mirrors) and self.daemon.ask("copying", by=self.daemon.by)["busy"]:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.1)
        return True

    def mirrored(self) -> Uploads | None:
        """What became of the uploads to object storage. None if there are none, or that is unknown."""
        with suppress(RpcError, BadRecord):
            if self._mirrors:
                return build(Uploads, self.daemon.ask("mirrored"))
        return None

    def tidied(self, patience: float) -> None:
        """Wait until no old checkpoint is being deleted, if this node's daemon does that."""
        deadline = time.monotonic() + patience
        with suppress(RpcError):
            while self.daemon.by == self.daemon.node and self.daemon.ask("tidying")["busy"]:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.01)

    # A restore

    def lent(self, fd: int) -> Buffer | None:
        """The buffer of that descriptor, if it is one of this rank's."""
        return next((buffer for buffer in self._buffers.values() if buffer.holds(fd)), None)

    def rewind(self, step: int | None, record: Record | None = None) -> None:
        """Training continues from the restored `step`. record: it was restored from memory."""
        self.daemon.taken = self.daemon.restored = None
        if record is not None and step is not None:
            self.daemon.restored = step
            self.daemon.commit(step, record, [], restored=True)
        self.superseding = self.daemon.restored is not None
        self.daemon.send("rewind", again=True, step=step)

    def trust(self, directory: Path, manifest: bytes, keep: Keep) -> None:
        """Tell the daemon that this checkpoint was just read in full and is good."""
        fd = local.parcel(manifest)
        with suppress(RpcError):
            about = {"directory": str(directory), "attempt": self._attempt, "keep": plain(keep)}
            self.daemon.ask("trust", fds=[fd], **about)
        os.close(fd)

    def close(self, *, durable: bool) -> None:
        """With everything `durable`, the memory need not outlive this process."""
        with suppress(RpcError):
            if self._ranks.first:
                self._print(self.daemon.ask("words"))
            if durable:
                self.daemon.ask("bye")
        self.daemon.close()
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()

    # Buffers

    def _make_one_more(self, size: int) -> None:
        if self._released and free_memory() > 2 * (size + SPARE):
            self._most = min(self._slots, len(self._buffers) + 1)
            self._released = self._most < self._slots
        if self.daemon.taken is None:
            self._one_more(size, take=True)

    def _one_more(self, size: int, *, take: bool) -> None:
        while len(self._buffers) < self._most:
            try:
                self._make(next(n for n in range(self._slots) if n not in self._buffers), size, take=take)
                return
            except MemoryError as error:
                if self._buffers:
                    self._most = len(self._buffers)
                    self._say(f"{self._most} snapshot(s) in memory at a time and not {self._slots}: {error}")
                elif not self._secure():
                    raise

    def _make(self, index: int, size: int, *, take: bool = True) -> Buffer:
        buffer = Buffer(size, hurry=self.awaited or not self._buffers)  # the first save waits for the first buffer
        self._buffers[index] = buffer
        try:
            self.daemon.lend(index, buffer, write=take)
        except BaseException:
            del self._buffers[index]
            buffer.close()
            raise
        if take:
            self.daemon.taken = index
        return buffer

    def _take(self, *, ahead: bool = False) -> None:
        """Wait for a buffer whose snapshot is needed no longer; or allocate one more, up to `_slots`.

        ahead: no save waits yet. Allocate no more; the save may find one. Raises MemoryError: none is free in time.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            more = self._protection != NONE and len(self._buffers) == self._most < self._slots
            patience = max(0.0, min(deadline - time.monotonic(), GROW if more else PATIENCE))
            sent = self.daemon.send("take", again=True, patience=patience, words=self._ranks.first)
            answer = sent[0] if sent else {}
            self._print(answer)
            if answer.get("index") is not None:
                self.daemon.taken = int(answer["index"])
                self._shares.pop(self.daemon.taken, None)
                return
            if more and (ahead or self._grow()):
                return
            pinned = answer.get("pinned") is not None
            if (not pinned or not self._secure()) and time.monotonic() >= deadline:
                raise MemoryError(f"there is no memory for the next snapshot: {answer.get('busy')}")
            if pinned:
                time.sleep(0.1)

    def _grow(self) -> bool:
        """Allocate one more buffer, and take it. If there is no memory for it, saves wait from now on."""
        self._most += 1
        size = max(buffer.size for buffer in self._buffers.values())
        self._one_more(size, take=True)
        if self.daemon.taken is None:
            self._slots = self._most = len(self._buffers)
        return self.daemon.taken is not None

    def _secure(self) -> bool:
        """Make the restored step durable, so that its memory can be used: the next save has no other.

        Returns:
            False if nothing is kept for a restore.

        Raises:
            MemoryError: the step cannot be made durable. Its memory is kept.
        """
        step = self.daemon.restored
        if step is None:
            return False
        try:
            answer = self.daemon.send("secure", again=True, step=step, by=self.daemon.by, attempt=self._attempt)
            if answer is None or not answer[0].get("kept"):
                self.daemon.restored = None  # a newer step is committed by now: there may be memory
                return True
            why = "there is no memory for a second one"
            self._say(f"step {step}, restored from memory, is written to disk: {why}")
            trouble = self.daemon.outcome(step, patience=PATIENCE).trouble
            if not trouble and not self.daemon.on_disk(step):
                trouble = f"{step_name(step)} is not in {self._directory}"
        except Failed as error:
            trouble = error.what
        if trouble:
            raise MemoryError(f"no memory is free beside that of step {step}, which cannot be made durable: {trouble}")
        self.daemon.restored = None
        self.daemon.send("durable", again=True, step=step)
        return True

    def _give_back(self, index: int) -> None:
        self._buffers.pop(index).close()
        self.daemon.send("drop", index=index)

    def _print(self, answer: Mapping[str, Any]) -> None:
        for line in answer.get("words", ()):
            self._say(str(line))

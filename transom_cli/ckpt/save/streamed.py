"""Save to disk without a snapshot, for a node that has no memory for one, or whose daemon does not answer.

Each rank without a snapshot writes its data file straight from its live state, in save(): training waits for it, as
with `torch.save`. The other ranks write theirs from their snapshots, in the background. Then rank 0 publishes the
checkpoint. The data file is the same as a snapshot's bytes. So that training waits at most a tenth of the time, rank 0
says from which step on the next one may be written. The digests are computed from the live state in a thread beside the
write, which takes longer.
"""

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import DCP_METADATA, data_name, tmp_name
from transom_cli.ckpt.options import Options
from transom_cli.ckpt.proof_save import Sums
from transom_cli.ckpt.publish import Retention, publish, tidy
from transom_cli.ckpt.ranks import FAILURES, Ranks
from transom_cli.ckpt.save.commit import Committer
from transom_cli.ckpt.save.layout import Layout, Place, data_file, places_of
from transom_cli.ckpt.save.serialize import Serializer
from transom_cli.ckpt.save.staging import Snapshot, pack
from transom_cli.ckpt.tree import Flat
from transom_cli.files import make_private

STILL = 10.0  # seconds without a byte written, after which training does not wait any longer
PART = 0.1  # of the training time that may be spent on this
_FLUSH = 64 << 20  # bytes after which the page cache is emptied: there is no memory for it either


@dataclass(frozen=True)
class Streamed:
    """A rank's data file, complete and synced, in a working directory of its own."""

    work: Path
    layout: Layout
    places: tuple[Place, ...]
    entry: FileEntry
    sums: Sums


class Abandoned(OSError):
    """The trainer has gone on, so that the state may have changed."""


class Streamer:
    def __init__(self, options: Options, ranks: Ranks, committer: Committer, say: Callable[[str], None]) -> None:
        self._options, self._ranks, self._committer, self._say = options, ranks, committer, say
        self._writing: threading.Thread | None = None
        self._not_before = 0  # the step from which on the next one may be written; the same on all ranks
        self._last: tuple[int, float] | None = None  # the last save, and when it was
        self._step_seconds = 0.0
        self._took = 0.0
        self._reported = False
        self._retention = Retention(options.directory, options.keep, options.attempt)

    def note(self, step: int) -> None:
        """save(step) begins."""
        now = time.monotonic()
        if self._last is not None and step > self._last[0]:
            self._step_seconds = (now - self._last[1]) / (step - self._last[0])
        self._last = step, now

    def due(self, step: int) -> bool:
        return step >= self._not_before

    @torch.no_grad()
    def write(self, step: int, layout: Layout, flat: Flat, serializer: Serializer, unstored: Flat) -> Streamed:
        """Write this rank's data file. Raises OSError, also if the file system does not respond.

        unstored: see `Ledger.sample`.
        """
        if self._writing is not None and self._writing.is_alive():
            raise OSError("the file system has not responded since an earlier save")
        began = time.monotonic()
        objects = [(index, serializer.serialize(index.fqn, flat[index.fqn])) for index in layout.objects]
        places = places_of(layout, objects)
        work = self._options.directory / tmp_name(step, self._options.attempt, secrets.token_hex(4))
        writer = _Writer(work, data_name(self._ranks.rank), data_file(layout, flat, [data for _, data in objects]))
        self._writing = thread = threading.Thread(target=writer.run, name="transom-stream", daemon=True)
        digests = self._committer.ledger.live(step, layout, flat, objects, unstored)
        thread.start()
        while thread.is_alive() and time.monotonic() - writer.moved < STILL:
            thread.join(0.1 if time.monotonic() - began > 0.1 else 0.005)
        entry = writer.finish()
        try:
            sums = digests.result()
        except BaseException:
            files.delete_tree(work)
            raise
        self._took = time.monotonic() - began
        return Streamed(work, layout, tuple(places), entry, sums)

    def commit(self, step: int, snapshot: Snapshot | None, streamed: Streamed | None, trouble: str) -> str:
        """Publish the checkpoint if a rank has streamed its part. A collective. Returns the trouble, or ""."""
        layout = streamed.layout if streamed is not None else snapshot.layout if snapshot is not None else None
        answers = self._ranks.gather((streamed is not None, layout is not None))
        try:
            if layout is None or not any(one for one, _ in answers) or not all(known for _, known in answers):
                return trouble
            return self._publish(step, layout, snapshot, streamed, trouble)
        finally:
            if streamed is not None:
                files.delete_tree(streamed.work)

    def _publish(
        self, step: int, layout: Layout, snapshot: Snapshot | None, streamed: Streamed | None, why: str
    ) -> str:
        share = self._committer.plan(layout)
        if share.trouble:
            return share.trouble
        directory, attempt = self._options.directory, self._options.attempt
        work = directory / str(self._ranks.from_first(tmp_name(step, attempt, secrets.token_hex(4))))
        trouble = ""
        entries: list[FileEntry] = []
        places: list[Place] = []
        try:
            if self._ranks.first:
                make_private(work)
        except OSError as error:
            trouble = describe(error)
        trouble = self._ranks.from_first(trouble)
        if trouble:
            return trouble
        try:
            entry, places = self._place(work, snapshot, streamed, share.now)
            entries = [entry]
        except FAILURES as error:
            trouble = describe(error)
        doubt, sums = self._committer.sums()
        answers = self._ranks.to_first((trouble or doubt, entries, places))
        if answers is not None:
            trouble = next((answer[0] for answer in answers if answer[0]), "")
            try:
                if not trouble:
                    entries = [one for answer in answers for one in answer[1]]
                    record, trouble = self._committer.record(step, entries, [answer[2] for answer in answers], sums)
                if not trouble:
                    files.write_new(work / DCP_METADATA, record.metadata)
                    publish(directory, work, record.read, attempt, self._retention)
                    tidy(directory, step, attempt, self._retention, self._say)
            except FAILURES as error:
                trouble = describe(error)
            if trouble:
                files.delete_tree(work)
            elif not self._reported:
                self._reported = True
                self._say(f"checkpoints are written while training waits, without a snapshot in memory: {why}")
        wait = math.ceil(self._took / PART / self._step_seconds) if self._step_seconds > 0 else 0
        trouble, self._not_before = self._ranks.from_first((trouble, step + wait))
        return str(trouble)

    def _place(
        self, work: Path, snapshot: Snapshot | None, streamed: Streamed | None, wanted: frozenset[object]
    ) -> tuple[FileEntry, list[Place]]:
        path = work / data_name(self._ranks.rank)
        if streamed is not None:
            (streamed.work / path.name).rename(path)
            places = [place for place in streamed.places if place[0] in wanted]
            self._committer.ledger.begin_live(streamed.sums, places)
            return streamed.entry, places
        assert snapshot is not None
        segments, places = pack(snapshot, wanted)  # type: ignore[arg-type]
        self._committer.ledger.begin(snapshot, places)
        return files.write_segments(path, snapshot.buffer.view(0, snapshot.buffer.size), segments), places


class _Writer:
    """Writes one file in a thread of its own. moved: when the file system last took a piece."""

    def __init__(self, work: Path, name: str, pieces: Iterator[memoryview | bytes]) -> None:
        self._work, self._name, self._pieces = work, name, pieces
        self.moved = time.monotonic()
        self._entry: FileEntry | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._abandoned = False

    def finish(self) -> FileEntry:
        """Raises OSError if the file is not complete. It is then deleted, as soon as the file system responds."""
        with self._lock:
            if self._entry is not None:
                return self._entry
            self._abandoned = True
        if self._error is not None:
            raise self._error
        raise OSError(f"nothing was written to {self._work.parent} for {STILL:.0f} s: the file system does not respond")

    def run(self) -> None:
        try:
            make_private(self._work)
            entry = self._write()
            with self._lock:
                if self._abandoned:
                    raise Abandoned("abandoned")
                self._entry = entry
        except BaseException as error:
            self._error = error
            files.delete_tree(self._work)

    def _write(self) -> FileEntry:
        hasher, size, flushed = xxhash.xxh3_128(), 0, 0
        fd = os.open(self._work / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for piece in self._pieces:
                if self._abandoned:
                    raise Abandoned("abandoned")
                hasher.update(piece)
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                size += len(piece)
                self.moved = time.monotonic()
                if size - flushed >= _FLUSH:
                    flushed = size
                    os.fdatasync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.fsync(fd)
        finally:
            os.close(fd)
        return FileEntry(self._name, size, hasher.hexdigest())

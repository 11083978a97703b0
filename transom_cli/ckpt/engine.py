"""Turning a snapshot into a checkpoint, in the background: write, make durable, publish, retire old ones.

All ranks call `Writer.write` for the same step, and all get the same answer. Order on disk: data files, fsync,
manifest, fsync, rename, fsync of the parent. A crash at any point leaves the checkpoints before it untouched, and a
working directory that no reader looks at. A writer whose attempt was replaced cannot harm its successor: it
writes under its own name, a step that is there and good is never replaced, and once a newer launch has started it
publishes nothing more (ckpt.fence).
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from transom_cli.ckpt import direct, fence, files
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.image import Layout, Place, Snapshot, pack
from transom_cli.ckpt.inventory import Candidate, verify
from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST, step_name, tmp_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.retention import Retention
from transom_cli.ckpt.sharing import Share, Sharing
from transom_cli.ckpt.staging import Stager

FAILURES = (Exception, CheckpointException)  # DCP's own is a bare BaseException


class Writer:
    def __init__(
        self, directory: Path, ranks: Ranks, attempt: str, retention: Retention, stager: Stager,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._directory = directory
        self._say = say
        self._ranks = ranks
        self._attempt = attempt
        self._retention = retention
        self._stager = stager
        self._sharing = Sharing(ranks)

    def prepare(self, layout: Layout | None) -> None:
        """Before the first save: share out who writes what, and make the memory. What fails here fails in the save."""
        try:
            answers = self._ranks.gather((layout is not None, layout is not None and self._stager.agreed_on(layout)))
            if layout is not None and all(there for there, _ in answers) and not all(agreed for _, agreed in answers):
                self._settle(layout, self._sharing.agree(layout))
        except FAILURES:
            pass

    def write(self, step: int, snapshot: Snapshot | None, trouble: str = "") -> str:
        """Publish `snapshot` as `step`. Returns "" or, on all ranks alike, why there is no such checkpoint.

        `snapshot` is None, with the `trouble`, where a rank could not take its copy: the others must learn of it here,
        or they would wait for it.
        """
        work = self._directory / tmp_name(step, self._attempt, secrets.token_hex(4))
        try:
            if self._ranks.first and not trouble:
                trouble = _attempted(lambda: work.mkdir(parents=True, mode=0o700))
            name, agreed, trouble = self._meet(step, trouble, work.name, snapshot is not None and snapshot.agreed)
            work = self._directory / name
            if not trouble and snapshot is not None:
                share = None if agreed else self._sharing.agree(snapshot.layout)
                trouble = (share.trouble if share else "") or self._write_all(step, snapshot, share, work)
                if share:
                    self._settle(snapshot.layout, share)
        except FAILURES as error:  # a collective failed: a peer is gone. Training will notice by itself
            trouble = describe(error)
        if trouble and self._ranks.first:
            files.delete_tree(work)
        return trouble

    def _meet(self, step: int, trouble: str, name: str, agreed: bool) -> tuple[str, bool, str]:
        """Name of the working directory, whether the shares stand, and first trouble, on all ranks alike, once all of
        them come with `step`.

        They may come with different ones: a flush that not all ranks were told of in time. Those that are behind give
        theirs up and those ahead ask again, so that no checkpoint is made of two steps, and the next one that all
        ranks save is saved. Until then the background thread of a rank that is ahead waits here.
        """
        while True:
            answers = self._ranks.gather((step, trouble, name, agreed))
            ahead = max(answer[0] for answer in answers)
            if step < ahead:
                return name, agreed, f"not all ranks save this step: others are at {step_name(ahead)}"
            if all(answer[0] == step for answer in answers):
                stand = all(answer[3] for answer in answers)
                return answers[0][2], stand, _first_trouble([answer[1] for answer in answers])

    def _settle(self, layout: Layout, share: Share) -> None:
        """Get ready for the next save. No memory for it: that save will say so."""
        if share.trouble:
            self._stager.forget()
            return
        with contextlib.suppress(MemoryError, OSError):
            self._stager.settle(layout, share.later)

    def _write_all(self, step: int, snapshot: Snapshot, share: Share | None, work: Path) -> str:
        """`share`: None when the snapshot is of just what this rank is to write."""
        written: list[FileEntry] = []
        places: list[Place] = []

        def write_mine() -> None:
            if snapshot.copying is not None:
                snapshot.copying.settle()
            segments, found = pack(snapshot, share.now if share else None)
            memory = snapshot.arena.view(0, snapshot.arena.size)
            written.append(direct.write(work / _data_file(self._ranks.rank), memory, segments))
            places.extend(found)

        trouble = _attempted(write_mine)
        answers = self._ranks.to_first((trouble, written, places))
        if answers is not None:
            trouble = _first_trouble([answer[0] for answer in answers])
            if not trouble:
                entries = [entry for answer in answers for entry in answer[1]]
                trouble = _attempted(lambda: self._publish(step, work, entries, [answer[2] for answer in answers]))
        return str(self._ranks.from_first(trouble))

    def _publish(self, step: int, work: Path, entries: list[FileEntry], places: list[list[Place]]) -> None:
        assert self._sharing.metadata is not None
        _write_metadata(work, self._sharing.metadata, places)
        entries = [files.seal(work / DCP_METADATA), *entries]
        manifest = Manifest(
            step=step,
            world_size=self._ranks.size,
            attempt=self._attempt,
            torch=str(torch.__version__),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            files=tuple(sorted(entries, key=lambda entry: entry.name)),
        )
        files.write_new(work / MANIFEST, encode(manifest))
        final = self._directory / step_name(step)
        taken = final.exists()
        if taken and verify(Candidate(step, final)).good:
            files.delete_tree(work)  # an earlier attempt published this very step
            return
        fence.check(self._directory, self._attempt)
        if taken:
            files.set_aside(final)
        files.publish(work, final)
        self._retention.trust(manifest)
        trouble = _attempted(lambda: self._retire(step))
        if trouble:  # the new checkpoint is there all the same
            self._say(f"old checkpoints could not be removed: {trouble}")

    def _retire(self, step: int) -> None:
        fence.check(self._directory, self._attempt)
        self._retention.apply(step, secrets.token_hex(4))


def _data_file(rank: int) -> str:
    return f"__{rank}_0.distcp"  # as DCP calls it


def _write_metadata(work: Path, metadata: Metadata, places: list[list[Place]]) -> None:
    """DCP's own file, by DCP itself: what there is, and where. `places`: by rank."""
    results = [
        [WriteResult(index, size, _StorageInfo(_data_file(rank), start, size)) for index, start, size in of_rank]
        for rank, of_rank in enumerate(places)
    ]
    FileSystemWriter(work, sync_files=False).finish(metadata, results)


def describe(error: BaseException) -> str:
    """One line for an exception; DCP's collective ones name the rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, failure = min(error.failures.items())
        return f"rank {rank}: {describe(failure[0])}"
    if isinstance(error, TakenOver):
        return error.what
    if isinstance(error.__context__, OSError) and not isinstance(error, OSError):
        return describe(error.__context__)  # the system's own words, which torch's serializer covers with its own
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _attempted(act: Any) -> str:
    try:
        act()
    except FAILURES as error:
        return describe(error)
    return ""


def _first_trouble(troubles: list[str]) -> str:
    return next((trouble for trouble in troubles if trouble), "")

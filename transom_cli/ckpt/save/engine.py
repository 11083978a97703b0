"""Turning a snapshot into one that counts, in the background: all ranks' copies are held, and a record says so.

All ranks call `Writer.write` for the same step, and all get the same answer. The record is the checkpoint's manifest,
with every share's checksum, made by rank 0 when all shares are held in the memory of their nodes, and kept by every
node's holder. What is to be durable the holders write from there (memory.persisting).
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from transom_cli.ckpt.failures import RanksDiffer
from transom_cli.ckpt.manifest import FileEntry, Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA, data_name, step_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save import direct
from transom_cli.ckpt.save.alike import Proof, Short, differing, of_broadcast, refusal
from transom_cli.ckpt.save.image import Layout, Place, Snapshot, pack
from transom_cli.ckpt.save.publishing import words
from transom_cli.ckpt.save.sharing import Share, Sharing
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.save.staging import Stager, size_for
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.rpc.errors import RpcError

_NEXT_TIME = (MemoryError, OSError, RpcError)  # what hinders the next save is told there
Uses = frozenset[str]  # memory.persisting.RESERVED, memory.protecting.RESERVED
FAILURES = (Exception, CheckpointException)  # DCP's own is a bare BaseException


class Writer:
    def __init__(self, ranks: Ranks, attempt: str, stager: Stager, snapshots: Snapshots) -> None:
        self._ranks = ranks
        self._attempt = attempt
        self._stager = stager
        self._snapshots = snapshots
        self._sharing = Sharing(ranks)

    def prepare(self, layout: Layout | None, growth: float) -> None:
        """Before the first save: share out who writes what, and make the memory, for a state that is to be so many
        times as large. What fails here fails in the save."""
        try:
            answers = self._ranks.gather((layout is not None, layout is not None and self._stager.agreed_on(layout)))
            if layout is not None and all(there for there, _ in answers) and not all(agreed for _, agreed in answers):
                self._settle(layout, self._sharing.agree(layout), growth)
                if self._snapshots.awaited:
                    self._snapshots.complete()
        except RpcError:
            pass

    def write(
        self, step: int, snapshot: Snapshot | None, trouble: str = "", *, uses: Callable[[], Uses],
        proof: Proof | None = None, compared: Callable[[Compared], None] = lambda _: None,
    ) -> Written:  # fmt: skip
        """Let `snapshot` count as `step`. On all ranks alike: why it does not, or what else is to be done with it, for
        which rank 0 asks `uses`.

        `snapshot` is None, with the `trouble`, where a rank could not take its copy: the others must learn of it here,
        or they would wait for it. `proof`: checksums to be compared with those of the other ranks first; `compared` is
        told what comes of it, before anything is written.
        """
        written = Written(trouble)
        try:
            agreed, written.trouble, shorts = self._meet(
                step, trouble, snapshot is not None and snapshot.agreed, proof.short if proof is not None else None
            )
            if not written.trouble and any(short is not None for short in shorts):
                found = differing(self._ranks, proof, shorts)
                refused = refusal(found) if found else None
                noted = of_broadcast(proof, shorts) if proof is not None and not found else ""
                compared(Compared(refused, noted, whole=all(short is not None for short in shorts)))
                written.trouble = f"{refused.what}: {found[0].words}" if refused is not None else ""
            if not written.trouble and snapshot is not None:
                share = None if agreed else self._sharing.agree(snapshot.layout)
                written.trouble = share.trouble if share else ""
                if not written.trouble:
                    written = self._commit(step, snapshot, share, uses)
                written.then = lambda: self._get_ready(snapshot, share)
        except RpcError as error:  # a collective failed: a peer is gone. Training will notice by itself
            written.trouble = describe(error)
        return written

    def _meet(self, step: int, trouble: str, agreed: bool, short: Short | None) -> tuple[bool, str, list[Short | None]]:
        """Whether the shares stand, first trouble, and the ranks' checksums, on all ranks alike, once all of them come
        with `step`.

        They may come with different ones: a flush that not all ranks were told of in time. Those that are behind give
        theirs up and those ahead ask again, so that no checkpoint is made of two steps, and the next one that all
        ranks save is saved. Until then the background thread of a rank that is ahead waits here.
        """
        while True:
            answers = self._ranks.gather((step, trouble, agreed, short))
            ahead = max(answer[0] for answer in answers)
            if step < ahead:
                return agreed, f"not all ranks save this step: others are at {step_name(ahead)}", []
            if all(answer[0] == step for answer in answers):
                first = _first_trouble([answer[1] for answer in answers])
                return all(answer[2] for answer in answers), first, [answer[3] for answer in answers]

    def _get_ready(self, snapshot: Snapshot, share: Share | None) -> None:
        if share is not None:
            self._settle(snapshot.layout, share)
        else:
            with contextlib.suppress(*_NEXT_TIME):
                self._snapshots.ready(size_for(snapshot.layout, snapshot.size - snapshot.layout.size))

    def _settle(self, layout: Layout, share: Share, growth: float = 1.0) -> None:
        """Get ready for the next save. No memory for it: that save will say so."""
        if share.trouble:
            self._stager.forget()
            return
        with contextlib.suppress(*_NEXT_TIME):
            self._stager.settle(layout, share.later, growth)

    def _commit(self, step: int, snapshot: Snapshot, share: Share | None, uses: Callable[[], Uses]) -> Written:
        """`share`: None when the snapshot is of just what this rank is to write."""
        held: list[FileEntry] = []
        places: list[Place] = []

        def hold_mine() -> None:
            if snapshot.copying is not None:
                snapshot.copying.settle()
            segments, found = pack(snapshot, share.now if share else None)
            size = sum(length for _, length in segments)
            total = direct.digest(snapshot.arena.view(0, snapshot.arena.size), segments)
            held.append(FileEntry(data_name(self._ranks.rank), size, total))
            self._snapshots.hold(step, held[0], segments)
            places.extend(found)

        trouble = _attempted(hold_mine)
        answers = self._ranks.to_first((trouble, held, places))
        made: tuple[str, Uses, Record | None] = ("", frozenset(), None)
        if answers is not None:
            trouble = _first_trouble([answer[0] for answer in answers])
            if not trouble:
                try:
                    entries = [entry for answer in answers for entry in answer[1]]
                    made = "", uses(), self._record(step, entries, [answer[2] for answer in answers])
                except RpcError as error:
                    trouble = describe(error)
            if trouble:
                made = trouble, frozenset(), None
        trouble, chosen, record = self._ranks.from_first(made)
        if record is not None:
            self._commit_everywhere(step, record, chosen)
        return Written(trouble, chosen)

    def _commit_everywhere(self, step: int, record: Record, uses: Uses) -> None:
        """After a restore from memory, once all ranks have committed a newer step, each holder hears that."""
        failed: Exception | None = None
        try:
            self._snapshots.commit(step, record, uses)
        except Exception as error:  # the others wait in the collective below
            failed = error
        if self._snapshots.superseding and all(self._ranks.gather(failed is None)):
            self._snapshots.supersede(step)
        if failed is not None:
            raise failed

    def _record(self, step: int, entries: list[FileEntry], places: list[list[Place]]) -> Record:
        assert self._sharing.metadata is not None
        metadata = _metadata(self._sharing.metadata, places)
        own = FileEntry(DCP_METADATA, len(metadata), xxhash.xxh3_128_hexdigest(metadata))
        manifest = Manifest(
            step=step,
            world_size=self._ranks.size,
            attempt=self._attempt,
            torch=str(torch.__version__),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            files=tuple(sorted([own, *entries], key=lambda entry: entry.name)),
        )
        return Record(encode(manifest), metadata)


@dataclass(frozen=True)
class Compared:
    """What came of the ranks' checksums: why nothing is written, or what is to be said. whole: all ranks had some."""

    refused: RanksDiffer | None = None
    noted: str = ""
    whole: bool = False


@dataclass
class Written:
    """What came of a save: "" or why it does not count, and for what its memory is reserved. `then`: gets ready for
    the next one, when that has been asked for: it may wait for it."""

    trouble: str
    uses: Uses = frozenset()
    then: Callable[[], None] = lambda: None


def _metadata(metadata: Metadata, places: list[list[Place]]) -> bytes:
    """DCP's own file, by DCP itself: what there is, and where. `places`: by rank."""
    results = [
        [WriteResult(index, size, _StorageInfo(data_name(rank), start, size)) for index, start, size in of_rank]
        for rank, of_rank in enumerate(places)
    ]
    with tempfile.TemporaryDirectory(prefix="transom-") as folder:
        FileSystemWriter(folder, sync_files=False).finish(metadata, results)
        return (Path(folder) / DCP_METADATA).read_bytes()


def describe(error: BaseException) -> str:
    """One line for an exception; DCP's collective ones name the rank that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, failure = min(error.failures.items())
        return f"rank {rank}: {describe(failure[0])}"
    if isinstance(error.__context__, OSError) and not isinstance(error, OSError):
        return describe(error.__context__)  # the system's own words, which torch's serializer covers with its own
    return words(error)


def _attempted(act: Any) -> str:
    try:
        act()
    except RpcError as error:
        return describe(error)
    return ""


def _first_trouble(troubles: list[str]) -> str:
    return next((trouble for trouble in troubles if trouble), "")

"""Incremental checkpoints: which bytes of a snapshot must be written, and where the others are on disk already.

The snapshot in memory stays as it is, and so do its record and its protection. Only the files of the durable checkpoint
differ. Large tensors are cut into *blocks* there, each an archive of its own, as DCP stores the shards of a tensor. A
block whose bytes have the same xxh3_128 as in the checkpoint before (the *base*) is not written: torch's metadata
names the file of the base, which the snapshot daemon links into the new checkpoint (`snapshot.increments`). So each
checkpoint is complete, stock torch reads it, and the base may be deleted.

A checkpoint names at most `_SPREAD` times the bytes of the state, so that a restore does not read many outdated ones.
Otherwise, and every `full_every`-th time, everything is written.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import xxhash
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem

from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.manifest import FileEntry, Manifest, decode, encode
from transom_cli.ckpt.names import DCP_METADATA, data_name, earlier_name
from transom_cli.ckpt.ranks import FAILURES, Ranks
from transom_cli.ckpt.save.layout import Block, Place, aligned, envelope
from transom_cli.ckpt.save.shares import written_in
from transom_cli.ckpt.save.snapshots import Snapshots
from transom_cli.ckpt.save.staging import Snapshot
from transom_cli.ckpt.snapshot.increments import BLOB, BUFFER, Segment
from transom_cli.rpc.errors import RpcError

BLOCK = 32 << 10  # bytes of a block, at least
_BLOCKS = 1 << 15  # blocks of a checkpoint, about: each is an entry in torch's metadata
_SPREAD = 2  # times the size of a share that the files of a rank may have together
_TABLES = 4  # checkpoints whose checksums are kept: the base, and those that are being written
Key = tuple[str, tuple[int, ...] | None, tuple[int, ...] | None]  # name, and offsets and sizes of a tensor's block


class Piece(NamedTuple):
    """A block, a small tensor or a plain value. start, size: its bytes in the buffer. head, tail: what the file has
    around them."""

    key: Key
    start: int
    size: int
    head: bytes = b""
    tail: bytes = b""

    @property
    def length(self) -> int:
        return len(self.head) + self.size + len(self.tail)


class Stored(NamedTuple):
    """Where a piece with this checksum is in a checkpoint."""

    sum: bytes
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class Table:
    """One rank's part of a checkpoint. files: by the names that they have in it."""

    pieces: dict[Key, Stored] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)


class Incremental:
    """Plans the files of durable checkpoints, in the background thread of a save."""

    def __init__(self, full_every: int, ranks: Ranks, snapshots: Snapshots) -> None:
        self._full_every, self._ranks, self._snapshots = full_every, ranks, snapshots
        self._tables: dict[int, Table] = {}
        self._since: dict[int, int] = {}  # by step: checkpoints since the last one that was written in full
        self._planned: dict[int, str] = {}  # by step: the xxh3_128 of the manifest, on rank 0
        self._cut: tuple[Any, list[Piece]] = (None, [])

    def plan(
        self, step: int, snapshot: Snapshot, places: list[Place], metadata: Metadata | None, manifest: bytes
    ) -> None:
        """Tell the daemons what to write of a committed step. A collective.

        If that fails, the daemons know of no plan, and write the snapshot as it is.

        metadata: DCP's metadata of all shares, on rank 0. manifest: of the snapshot.
        """
        base = self._ranks.from_first(self._base() if self._ranks.first else None)
        table, sent, trouble = Table(), [], ""
        self._planned.pop(step, None)
        try:
            table, links, entry = self._share(step, snapshot, places, base)
            sent = [(key, one.file, one.start, one.length) for key, one in table.pieces.items()]
        except FAILURES as error:
            trouble, links, entry = describe(error), [], None
        answers = self._ranks.to_first((trouble, sent, links, entry))
        if answers is not None and metadata is not None and not any(answer[0] for answer in answers):
            try:
                self._order(step, base, metadata, decode(manifest), answers)
            except FAILURES as error:
                trouble = describe(error)
        self._since[step] = 0 if base is None else self._since.get(base, 0) + 1
        self._tables[step] = table
        for old in [n for n in sorted(self._tables)[:-_TABLES] if n != base]:
            del self._tables[old], self._since[old]
            self._planned.pop(old, None)

    def _base(self) -> int | None:
        """The checkpoint that the next one may refer to; None to write everything."""
        try:
            answer = self._snapshots.daemon.ask("base")["base"]
        except RpcError:
            return None
        step, total = answer or (-1, "")
        known = step in self._tables and self._planned.get(step) == total
        return int(step) if known and self._since[step] + 1 < self._full_every else None

    def _share(
        self, step: int, snapshot: Snapshot, places: list[Place], base: int | None
    ) -> tuple[Table, list[tuple[str, str, FileEntry]], FileEntry | None]:
        """Tell this rank's daemon what to write. Return where everything is, the files to link, and the new file."""
        pieces = self._pieces(snapshot, places)
        memory = snapshot.buffer.view(0, snapshot.buffer.size)
        sums = [xxhash.xxh3_128_digest(memory[one.start : one.start + one.size]) for one in pieces]
        before = _renamed(self._tables[base], base) if base is not None and base in self._tables else Table()
        kept = {
            one.key: there
            for one, total in zip(pieces, sums, strict=True)
            if (there := before.pieces.get(one.key)) is not None and (there.sum, there.length) == (total, one.length)
        }
        used = {there.file for there in kept.values()}
        whole = sum(aligned(one.length) for one in pieces)
        fresh = sum(aligned(one.length) for one in pieces if one.key not in kept)
        if fresh + sum(before.files[name].size for name in used) > _SPREAD * whole:
            kept, used = {}, set()
        name, segments = data_name(self._ranks.rank), _Segments()
        table = Table()
        for one, total in zip(pieces, sums, strict=True):
            there = kept.get(one.key)
            table.pieces[one.key] = there or Stored(total, name, segments.add(one), one.length)
        entry = segments.entry(name, memory)
        if entry is not None:
            table.files[name] = entry
            data = segments.blob + json.dumps(segments.segments).encode("ascii")
            fields: dict[str, Any] = {"step": step, "file": name, "size": entry.size, "sum": entry.xxh3_128}
            self._snapshots.daemon.send("changes", again=True, payload=data, blob=len(segments.blob), **fields)
        table.files.update({file: dataclasses.replace(before.files[file], name=file) for file in used})
        links = [(file, before.files[file].name, table.files[file]) for file in sorted(used)]
        return table, links, entry

    def _pieces(self, snapshot: Snapshot, places: list[Place]) -> list[Piece]:
        """What this rank stores. It stays the same while nothing changes shape or length."""
        if self._cut[0] is not places:
            stored = {index for index, *_ in places}
            items = {item.index: item for item in snapshot.layout.plan.items}
            most = max(BLOCK, _power(snapshot.layout.size * self._ranks.size // _BLOCKS))
            pieces = [
                piece
                for block in snapshot.layout.blocks
                if block.index in stored
                for piece in cut(block, items[block.index], most)
            ]
            objects = [one for one in snapshot.objects if one[0] in stored]
            pieces += [Piece((index.fqn, None, None), start, length) for index, start, length in objects]
            self._cut = places, pieces
        return self._cut[1]

    def _order(
        self, step: int, base: int | None, metadata: Metadata, manifest: Manifest, answers: Sequence[Any]
    ) -> None:
        """Tell the leading daemon what the checkpoint consists of. Called by rank 0."""
        links = [link for _, _, of_rank, _ in answers for link in of_rank]
        data = stored_metadata(metadata, [place for _, of_rank, _, _ in answers for place in of_rank])
        own = FileEntry.of(DCP_METADATA, data)
        files = [own, *(entry for *_, entry in answers if entry is not None), *(entry for *_, entry in links)]
        planned = encode(dataclasses.replace(manifest, files=tuple(sorted(files, key=lambda one: one.name))))
        names = json.dumps([(name, source) for name, source, _ in links]).encode("utf-8")
        fields: dict[str, Any] = {"step": step, "base": base, "manifest": len(planned), "metadata": len(data)}
        self._snapshots.daemon.send("increment", again=True, payload=planned + data + names, **fields)
        self._planned[step] = xxhash.xxh3_128_hexdigest(planned)


class _Segments:
    """The new file of a rank, as segments of its memory and of a blob with what is around the blocks."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.blob = b""
        self._known: dict[bytes, int] = {}
        self._end = 0

    def add(self, piece: Piece) -> int:
        """Append a piece. Return where it begins."""
        start = self._end
        if piece.head:
            self._literal(piece.head)
            self._append(BUFFER, piece.start, piece.size)
            self._literal(piece.tail + bytes(aligned(piece.length) - piece.length))
        else:
            self._append(BUFFER, piece.start, aligned(piece.size))  # with the padding that follows it there
        return start

    def entry(self, name: str, memory: memoryview) -> FileEntry | None:
        """The entry of the file; None if nothing is in it."""
        hasher, sources = xxhash.xxh3_128(), (memory, memoryview(self.blob))
        for where, start, size in self.segments:
            hasher.update(sources[where][start : start + size])
        return FileEntry(name, self._end, hasher.hexdigest()) if self._end else None

    def _literal(self, data: bytes) -> None:
        if data not in self._known:
            self._known[data] = len(self.blob)
            self.blob += data
        self._append(BLOB, self._known[data], len(data))

    def _append(self, where: int, start: int, size: int) -> None:
        last = self.segments[-1] if self.segments else (-1, 0, 0)
        if last[0] == where and last[1] + last[2] == start:
            self.segments[-1] = (where, last[1], last[2] + size)
        elif size:
            self.segments.append((where, start, size))
        self._end += size


def cut(block: Block, item: WriteItem, most: int) -> Iterator[Piece]:
    """Cut a tensor into blocks of about `most` bytes, each contiguous in memory."""
    assert item.tensor_data is not None
    chunk, around = item.tensor_data.chunk, block.envelope
    offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
    if around.nbytes <= 2 * most:
        yield Piece((block.index.fqn, offsets, sizes), block.start, around.length)
        return
    dtype, width = item.tensor_data.properties.dtype, around.nbytes // math.prod(sizes)
    start = block.payload
    for at, part in boxes(sizes, max(1, most // width)):
        inside = envelope(torch.Size(part), dtype)
        place = tuple(a + b for a, b in zip(offsets, at, strict=True))
        yield Piece((block.index.fqn, place, part), start, inside.nbytes, inside.head, inside.tail)
        start += inside.nbytes


def boxes(sizes: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut a box into contiguous ones of at most `most` elements, in order: offsets and sizes."""
    origin, long = (0,) * len(sizes), next((d for d, size in enumerate(sizes) if size > 1), None)
    if long is None or math.prod(sizes) <= most:
        yield origin, sizes
        return
    row = math.prod(sizes) // sizes[long]
    rows = max(1, most // row)
    for first in range(0, sizes[long], rows):
        part = (*sizes[:long], min(rows, sizes[long] - first), *sizes[long + 1 :])
        for at, inner in boxes(part, most) if rows == 1 else ((origin, part),):
            yield tuple(a + first * (d == long) for d, a in enumerate(at)), inner


def stored_metadata(planned: Metadata, places: Sequence[tuple[Key, str, int, int]]) -> bytes:
    """Torch's own metadata file of parts in any files: part, file, where it begins, bytes."""
    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    found: list[tuple[MetadataIndex, str, int, int]] = []
    for (name, offsets, sizes), file, start, length in places:
        if offsets is not None and sizes is not None:
            chunks.setdefault(name, []).append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
        index = MetadataIndex(name, torch.Size(offsets)) if offsets is not None else MetadataIndex(name)
        found.append((index, file, start, length))
    about = {
        name: dataclasses.replace(one, chunks=chunks[name]) if isinstance(one, TensorStorageMetadata) else one
        for name, one in planned.state_dict_metadata.items()
    }
    return written_in(Metadata(about, planned.planner_data), found)


def _renamed(table: Table, step: int) -> Table:
    """The table of the checkpoint of `step`, by the names that its files get in the next one. Their entries have the
    names that they have now."""
    names = {name: earlier_name(name, step) for name in table.files}
    pieces = {key: one._replace(file=names[one.file]) for key, one in table.pieces.items()}
    return Table(pieces, {names[name]: entry for name, entry in table.files.items()})


def _power(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()

"""Find one share of a snapshot: in this node's memory, in a peer's, or by rebuilding it from parity.

Every byte that is passed on was checked against the record here, or will be by the caller. What does not match counts
as lost, and is reported.

To rebuild a share, chunks are read a piece at a time from wherever their shares are now, and checked against the
checksums that were taken when the parity was made. What is missing or damaged counts as lost, and another parity row
is used for it.
"""

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import xxhash

from transom_cli.ckpt.files import digest_segments
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.snapshot.coder import fold, solve
from transom_cli.ckpt.snapshot.peers import Membership, Peers
from transom_cli.ckpt.snapshot.protect import PIECE, WAIT, Group, read_group
from transom_cli.ckpt.snapshot.protection import Segment, cut
from transom_cli.ckpt.snapshot.record import Segments
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.rpc.errors import RpcError

Read = Callable[[int, memoryview], None]  # from that byte of a source on, fill the view


@dataclass(frozen=True)
class _Row:
    """A row that some node holds."""

    node: str
    group: Group
    stripe: int
    row: int
    sums: tuple[str, ...]
    sum: str
    size: int


class _Gone(Exception):
    """A source that cannot be had, or is damaged: `key` is ("column", n) or ("row", n)."""

    def __init__(self, key: tuple[str, int], why: str) -> None:
        super().__init__(why)
        self.key, self.why = key, why


class Rebuilder:
    def __init__(self, members: Membership) -> None:
        self._members = members

    def rebuild(self, step: int, entry: FileEntry, into: memoryview) -> str:
        """Fill `into` with the share. Returns "" or why that cannot be."""
        peers = self._members.current
        found_rows = [
            row for node, answer in peers.call_all("rows", WAIT, step=step).items() for row in _read(node, answer)
        ]
        groups = {row.group.nodes: row.group for row in found_rows}
        trouble = "no parity of it is held"
        for group in groups.values():
            owner = _owner(group, entry)
            if owner is not None:
                rows = [row for row in found_rows if row.group.nodes == group.nodes]
                trouble = self._from(peers, group, rows, owner, entry, into)
                if not trouble:
                    return ""
        return trouble

    def _from(
        self, peers: Peers, group: Group, found_rows: list[_Row], owner: str, entry: FileEntry, into: memoryview
    ) -> str:
        held = peers.call_all("held", WAIT, step=group.step)
        places = {
            name: [node for node, answer in held.items() if name in dict(answer.get("held", []))]
            for rows in group.files.values()
            for name, _ in rows
        }
        for number, stripe in enumerate(group.stripes()):
            if owner not in stripe.data:
                continue
            column = stripe.data.index(owner)
            wanted = cut(group.files[owner], group.columns, stripe.chunks[column])
            if all(segment.file != entry.name for segment in wanted):
                continue
            sources = _Sources(peers, group, number, [row for row in found_rows if row.stripe == number], places)
            trouble = sources.rebuild(column, wanted, entry.name, into)
            if trouble:
                return trouble
        return ""


class _Sources:
    """One stripe's chunks and rows, as they can be had now."""

    def __init__(self, peers: Peers, group: Group, number: int, rows: list[_Row], places: dict[str, list[str]]) -> None:
        self._peers, self._group, self._number, self._places = peers, group, number, places
        stripe = group.stripes()[number]
        self._chunks = [
            cut(group.files[node], group.columns, chunk) for node, chunk in zip(stripe.data, stripe.chunks, strict=True)
        ]
        self._rows = {row.row: row for row in rows}

    def rebuild(self, column: int, wanted: tuple[Segment, ...], name: str, into: memoryview) -> str:
        lost = {column} | {n for n, chunk in enumerate(self._chunks) if any(not self._places[s.file] for s in chunk)}
        bad: set[int] = set()
        while True:
            rows = sorted(set(self._rows) - bad)[: len(lost)]
            if len(rows) < len(lost):
                return f"{len(lost)} chunks of a stripe are lost, and {len(rows)} of its parity rows are left"
            try:
                self._rebuild(column, sorted(lost), rows, wanted, name, into)
                return ""
            except _Gone as gone:
                (lost if gone.key[0] == "column" else bad).add(gone.key[1])

    def _rebuild(
        self, column: int, lost: list[int], rows: list[int], wanted: tuple[Segment, ...], name: str, into: memoryview
    ) -> None:
        recipe = next(r for r in solve(len(self._chunks), lost, rows) if r.lost == column)
        size = sum(segment.length for segment in wanted)
        made = memoryview(bytearray(size))
        sums = self._rows[rows[0]].sums
        for other, factor in recipe.columns:
            self._fold(made, factor, ("column", other), _length(self._chunks[other]), self._reader(other), sums[other])
        for row, factor in recipe.rows:
            parity_row = self._rows[row]
            self._fold(made, factor, ("row", row), parity_row.size, self._row_reader(parity_row), parity_row.sum)
        at = 0
        for segment in wanted:
            if segment.file == name:
                into[segment.start : segment.start + segment.length] = made[at : at + segment.length]
            at += segment.length

    def _fold(self, made: memoryview, factor: int, key: tuple[str, int], size: int, read: Read, total: str) -> None:
        """All of the source is read, for its checksum, though `made` may be shorter."""
        hasher, piece = xxhash.xxh3_128(), memoryview(bytearray(min(PIECE, max(1, size))))
        try:
            for start in range(0, size, len(piece)):
                data = piece[: min(len(piece), size - start)]
                read(start, data)
                hasher.update(data)
                short = data[: max(0, len(made) - start)]
                fold(made[start : start + len(short)], short, factor)
        except RpcError as error:
            raise _Gone(key, error.what) from error
        if size and hasher.hexdigest() != total:
            raise _Gone(key, "damaged")

    def _reader(self, column: int) -> Read:
        segments = self._chunks[column]

        def read(start: int, data: memoryview) -> None:
            for file, first, part in _parts(segments, start, data):
                self._read_share(file, first, part)

        return read

    def _read_share(self, file: str, start: int, part: memoryview) -> None:
        error: RpcError = RpcError(f"no node holds {file}")
        for node in self._places[file]:
            try:
                about = {"step": self._group.step, "file": file, "start": start, "size": len(part)}
                self._peers.call(node, "read", WAIT, part, **about)
                return
            except RpcError as failed:
                error = failed
        raise error

    def _row_reader(self, parity_row: _Row) -> Read:
        about = {
            "step": self._group.step,
            "nodes": list(self._group.nodes),
            "stripe": parity_row.stripe,
            "row": parity_row.row,
        }

        def read(start: int, data: memoryview) -> None:
            self._peers.call(parity_row.node, "row", WAIT, data, start=start, size=len(data), **about)

        return read


def _parts(segments: tuple[Segment, ...], start: int, data: memoryview) -> Iterator[tuple[str, int, memoryview]]:
    """From byte `start` of the chunk: file, offset in it, and where in `data` its bytes go."""
    at = 0
    for segment in segments:
        low, high = max(start, at), min(start + len(data), at + segment.length)
        if low < high:
            yield segment.file, segment.start + low - at, data[low - start : high - start]
        at += segment.length


def _read(node: str, answer: dict[str, Any]) -> Iterator[_Row]:
    for row in answer.get("rows", []):
        sums = tuple(str(total) for total in row["sums"])
        yield _Row(
            node, read_group(row["group"]), int(row["stripe"]), int(row["row"]), sums, str(row["sum"]), int(row["size"])
        )


def _owner(group: Group, entry: FileEntry) -> str | None:
    """The node that held it."""
    return next((node for node, files in group.files.items() if (entry.name, entry.size) in files), None)


def _length(segments: tuple[Segment, ...]) -> int:
    return sum(segment.length for segment in segments)


PULL = 600.0  # seconds for a share to come over; a line without a byte is given up far sooner (lines.STALL)

Rebuild = Callable[[int, FileEntry, memoryview], str]  # step, share, where to put it; returns why it cannot be


class ShareNotFound(Exception):
    """The share cannot be had: the text says what was tried."""


@dataclass
class Found:
    """A share in memory. `fd` is not the caller's; `end` is to be called when it is no longer needed."""

    fd: int
    size: int  # bytes of the memory
    segments: Segments
    where: str
    checked: bool = True
    end: Callable[[], None] = field(default=lambda: None, repr=False)


class Finder:
    def __init__(self, store: Store, members: Membership, rebuild: Rebuild | None = None) -> None:
        self._store, self._members, self._rebuild = store, members, rebuild

    def find(self, step: int, entry: FileEntry, *, check: bool = True) -> Found:
        """Without `check`, what is held here is not looked at: the asker does it. Raises ShareNotFound."""
        tried: list[str] = []
        near = self._here(step, entry, tried, check)
        if near is not None:
            return near
        peers = self._members.current
        answers = peers.call_all("held", 5.0, [n for n in peers.nodes if n != peers.own], step=step)
        with_it = [n for n, answer in answers.items() if [entry.name, entry.xxh3_128] in answer.get("held", [])]
        fresh = _Fresh(entry.size)
        try:
            for node in with_it:
                try:
                    peers.call(node, "read", PULL, fresh.memory, step=step, file=entry.name, start=0, size=entry.size)
                except RpcError as error:
                    tried.append(f"{node}: {error.what}")
                    continue
                if digest_segments(fresh.memory, ((0, entry.size),)) == entry.xxh3_128:
                    return fresh.found(f"the memory of {node}")
                tried.append(f"{node}: its bytes are damaged")
            if self._rebuild is not None:
                trouble = self._rebuild(step, entry, fresh.memory)
                if not trouble and digest_segments(fresh.memory, ((0, entry.size),)) == entry.xxh3_128:
                    return fresh.found("parity in memory")
                tried.append(trouble or "what was made from parity is damaged")
        except BaseException:
            fresh.close()
            raise
        fresh.close()
        raise ShareNotFound(f"{entry.name}: " + ("; ".join(tried) or "no node holds it"))

    def _here(self, step: int, entry: FileEntry, tried: list[str], check: bool) -> Found | None:
        pinned = contextlib.ExitStack()
        try:
            share, buffer = pinned.enter_context(self._store.reading(step, entry.name))
        except KeyError:
            return None
        if share.sum == entry.xxh3_128 and share.size == entry.size:
            if not check or digest_segments(buffer.memory, share.segments) == entry.xxh3_128:
                return Found(buffer.fd, buffer.size, share.segments, "own memory", check, pinned.close)
            tried.append("this node: its bytes are damaged")
        pinned.close()
        return None


class _Fresh:
    def __init__(self, size: int) -> None:
        self.size = size
        self._fd = os.memfd_create("transom-share", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, max(1, size))
            self._map = mmap.mmap(self._fd, max(1, size))
        except OSError:
            os.close(self._fd)
            raise
        self.memory = memoryview(self._map)[:size]

    def found(self, where: str) -> Found:
        return Found(self._fd, max(1, self.size), ((0, self.size),), where, end=self.close)

    def close(self) -> None:
        self.memory.release()
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)

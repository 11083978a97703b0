"""Rebuild a share that no node holds any more, from parity and the remaining chunks of its stripes.

Chunks are read a piece a time from wherever their shares are now, and checked against the checksums that were taken
when the parity was made. What is missing or damaged counts as lost; as many parity rows take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import xxhash

from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.snapshot.coder import fold, solve
from transom_cli.ckpt.snapshot.parity import Group, read_group
from transom_cli.ckpt.snapshot.peers import Membership, Peers
from transom_cli.ckpt.snapshot.protect import PIECE, WAIT
from transom_cli.ckpt.snapshot.protection import Segment, cut
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

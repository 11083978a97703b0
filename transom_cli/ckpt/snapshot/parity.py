"""The parity that a node holds for its peers' shares: rows, the chunks they cover, and checksums."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from transom_cli.ckpt.snapshot.protection import Protection, Stripe, code, parse, stripes

Files = tuple[tuple[str, int], ...]  # name and bytes of a node's shares, in the order in which they are cut


@dataclass(frozen=True)
class Group:
    """Nodes that protect one another, with what each of them held."""

    step: int
    protection: Protection
    nodes: tuple[str, ...]
    files: Mapping[str, Files] = field(hash=False)

    @property
    def columns(self) -> int:
        return code(len(self.nodes), self.protection)[0]

    def stripes(self) -> tuple[Stripe, ...]:
        return stripes(self.nodes, self.protection)

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.step, "protection": str(self.protection), "nodes": list(self.nodes),
            "files": {node: [list(row) for row in rows] for node, rows in self.files.items()},        }  # fmt: skip


def read_group(record: Any) -> Group:
    """Raises ValueError and its kind for what is none."""
    files = {str(n): tuple((str(name), int(size)) for name, size in rows) for n, rows in record["files"].items()}
    nodes = tuple(str(node) for node in record["nodes"])
    if set(files) != set(nodes) or any(size < 0 for rows in files.values() for _, size in rows):
        raise ValueError("a group whose files are not its nodes'")
    return Group(int(record["step"]), parse(str(record["protection"])), nodes, files)


@dataclass(frozen=True)
class Row:
    """One parity row of one stripe. `sums`: xxh3_128 by column of the chunk that went in, "" where it is empty."""

    group: Group
    stripe: int
    row: int
    sums: tuple[str, ...]
    sum: str
    memory: mmap.mmap = field(hash=False, compare=False, repr=False)
    size: int

    def as_json(self) -> dict[str, Any]:
        about = {"group": self.group.as_json(), "stripe": self.stripe, "row": self.row}
        return {**about, "sums": list(self.sums), "sum": self.sum, "size": self.size}


class Parity:
    """A node's rows, of the newest protected step and of the one that is being protected. Thread-safe.

    The memory of dropped rows becomes that of the next ones: a first touch costs ten times a copy. What these do not
    take is freed.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, tuple[str, ...], int, int], Row] = {}
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []

    def memory(self, size: int) -> mmap.mmap:
        """Return memory for a new row, mostly touched before. Its content is undefined. Raises OSError."""
        with self._lock:
            for found in self._spare:
                if size <= len(found) <= 2 * size + mmap.PAGESIZE:
                    self._spare.remove(found)
                    return found
        return mmap.mmap(-1, max(size, mmap.PAGESIZE))

    def put(self, rows: Iterable[Row]) -> None:
        """In place of what is held of that step for other groups: that was of a round in which nodes were gone."""
        with self._lock:
            for row in rows:
                self._drop(lambda r, new=row.group: r.group.step == new.step and r.group.nodes != new.nodes)
                self._drop(lambda r, new=row: _key(r) == _key(new))
                self._rows[_key(row)] = row
            self._spare.clear()

    def rows(self, step: int) -> list[Row]:
        with self._lock:
            return [row for row in self._rows.values() if row.group.step == step]

    @contextmanager
    def reading(self, step: int, nodes: tuple[str, ...], stripe: int, row: int) -> Iterator[memoryview]:
        """Raises KeyError. A row that is dropped meanwhile may be written over: the reader knows its checksum."""
        with self._lock:
            found = self._rows[step, nodes, stripe, row]
        yield memoryview(found.memory)[: found.size]

    def only(self, *steps: int | None) -> None:
        """Drop the rows of all other steps."""
        with self._lock:
            self._drop(lambda row: row.group.step not in steps)

    def drop_through(self, step: int) -> None:
        """Drop the rows of that step and older ones."""
        with self._lock:
            self._drop(lambda row: row.group.step <= step)

    def rewind(self, step: int | None) -> None:
        with self._lock:
            self._drop(lambda row: step is None or row.group.step > step)

    @property
    def size(self) -> int:
        """Bytes held."""
        with self._lock:
            return sum(row.size for row in self._rows.values())

    def _drop(self, which: Any) -> None:
        for key in [key for key, row in self._rows.items() if which(row)]:
            self._spare.append(self._rows.pop(key).memory)


def _key(row: Row) -> tuple[int, tuple[str, ...], int, int]:
    return row.group.step, row.group.nodes, row.stripe, row.row

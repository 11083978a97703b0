"""All that the nodes hold of one step in memory is read again: what is good, what is damaged, what parity gives back.

Each node reads what is its own: the record, its shares, its rows of parity. A share that no node has as it should be is
made from parity, as a restore would. No memory is reserved for this, so that no save waits: what a newer step takes the
place of meanwhile is no damage, and is said to be given up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.files import digest_segments
from transom_cli.ckpt.free_memory import free_memory
from transom_cli.ckpt.manifest import FileEntry, Manifest, decode
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST
from transom_cli.ckpt.snapshot.coder import NoCoder
from transom_cli.ckpt.snapshot.peers import Answer, Membership
from transom_cli.ckpt.snapshot.protect import Parity
from transom_cli.ckpt.snapshot.rebuild import Rebuilder
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.core.codec import build, plain

GOOD, DAMAGED, LOST, GIVEN_UP, UNTRIED = "good", "damaged", "lost", "given up", "not tried"
CHECK = 3600.0  # seconds for a node to read all that it holds of a step


@dataclass(frozen=True)
class Finding:
    """`state`: GOOD, DAMAGED, GIVEN_UP or UNTRIED. `why`: what there is to say of it."""

    what: str
    size: int  # bytes
    state: str
    why: str = ""


@dataclass(frozen=True)
class OfNode:
    files: tuple[Finding, ...]  # the record's own, and shares
    rows: tuple[Finding, ...]  # of parity


@dataclass(frozen=True)
class Checked:
    """`state`: GOOD; DAMAGED, though all of it can be had; LOST, when something cannot; GIVEN_UP."""

    step: int
    state: str
    shares: int  # found good, of `of`
    of: int
    size: int  # bytes of those
    rows: int  # of parity, good
    damage: tuple[str, ...]
    untried: tuple[str, ...]


class Verifier:
    def __init__(self, store: Store, members: Membership, parity: Parity) -> None:
        self._store, self._members, self._parity = store, members, parity

    def everywhere(self, step: int) -> Checked:
        """Raises ValueError where the step's record is not here (any more)."""
        wanted = {entry.name: entry for entry in self._record(step).read.files}
        good, size, rows = set[str](), 0, 0
        damage, untried, damaged = list[str](), list[str](), set[str]()
        for node, answer in self._members.current.call_all("check", CHECK, step=step).items():
            if "error" in answer:
                damage.append(f"{node} does not answer: {answer['error']}")
                continue
            checked = build(OfNode, answer)
            for found in checked.files:
                if found.state == GOOD and found.what not in good:
                    good.add(found.what)
                    size += found.size
                elif found.state == DAMAGED:
                    damaged.add(found.what)
            for found in (*checked.files, *checked.rows):
                words = f"{node}: {found.what} is {found.state}" + (f" ({found.why})" if found.why else "")
                if found.state != GOOD:
                    (damage if found.state == DAMAGED else untried).append(words)
            rows += sum(found.state == GOOD for found in checked.rows)
        lost = []
        for name in sorted(set(wanted) - good):
            found = self._make(step, wanted[name])
            if found.state != GOOD:
                lost.append(name)
            words = "parity gives it back" if found.state == GOOD else f"it cannot be had: {found.why}"
            damage.append(f"{name} is in no memory as it should be; {words}")
        state = LOST if lost else DAMAGED if damage else GOOD
        if state != GOOD and not damaged and step not in (self._store.newest, self._store.protected):
            state, damage = GIVEN_UP, []
        shares = set(wanted) - {DCP_METADATA}
        told_by = tuple(damage), tuple(untried)
        return Checked(step, state, len(shares & good), len(shares), size, rows, *told_by)

    def here(self, step: int) -> Answer:
        """This node's part: an `OfNode` as JSON."""
        record = self._record(step)
        try:
            manifest = decode(record.manifest)
        except BadManifest as error:
            found = OfNode((Finding(MANIFEST, len(record.manifest), DAMAGED, error.what),), ())
        else:
            files = tuple(self._files(step, manifest, record))
            found = OfNode(files, tuple(self._rows(step)))
        report: Answer = plain(found)
        return report

    def _record(self, step: int) -> Record:
        record = self._store.records.get(step)
        if record is None:
            raise ValueError(f"step {step} is not in memory here")
        return record

    def _files(self, step: int, manifest: Manifest, record: Record) -> Iterator[Finding]:
        sums = {entry.name: entry.xxh3_128 for entry in manifest.files}
        good = xxhash.xxh3_128_hexdigest(record.metadata) == sums[DCP_METADATA]
        yield Finding(DCP_METADATA, len(record.metadata), GOOD if good else DAMAGED)
        for file, share in self._store.shares(step).items():
            try:
                with self._store.reading(step, file) as (_, buffer):
                    good = digest_segments(buffer.memory, share.segments) == sums.get(file)
            except (KeyError, ValueError):  # no longer of that step; its rank has taken the memory back
                yield Finding(file, share.size, GIVEN_UP)
            else:
                yield Finding(file, share.size, GOOD if good else DAMAGED)

    def _rows(self, step: int) -> Iterator[Finding]:
        for row in self._parity.rows(step):
            good = xxhash.xxh3_128_hexdigest(memoryview(row.memory)[: row.size]) == row.sum
            state = GOOD if good else DAMAGED
            if not good and not any(one is row for one in self._parity.rows(step)):
                state = GIVEN_UP  # and its memory written over
            yield Finding(f"parity row {row.row} of stripe {row.stripe}", row.size, state)

    def _make(self, step: int, entry: FileEntry) -> Finding:
        """From parity, into memory that is given back at once."""
        what = f"{entry.name} made from parity"
        try:
            if 4 * entry.size > free_memory():  # itself, and a chunk of a stripe, which may be as large
                raise MemoryError
            made = bytearray(entry.size)
        except MemoryError:
            return Finding(what, entry.size, UNTRIED, "there is not enough free memory on the node")
        try:
            trouble = Rebuilder(self._members).rebuild(step, entry, memoryview(made))
        except NoCoder as error:
            return Finding(what, entry.size, UNTRIED, error.what)
        if not trouble and xxhash.xxh3_128_hexdigest(made) != entry.xxh3_128:
            trouble = "its checksum differs"
        return Finding(what, entry.size, DAMAGED if trouble else GOOD, trouble)

"""A committed snapshot is written into one directory, as a checkpoint: by the daemons of all nodes, from their memory.

The leading daemon makes the working directory and has every node write its shares. It writes what no node could, and
publishes. The directory must be the same on all nodes. If it is not, a node finds no working directory, or the leading
daemon does not see what that node wrote.
"""

import mmap
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import one_line
from transom_cli.ckpt.inventory import check_shape
from transom_cli.ckpt.manifest import FileEntry, Manifest, shares
from transom_cli.ckpt.names import DCP_METADATA, age, local_attempt, step_name, tmp_name
from transom_cli.ckpt.progress import WRITING, OnBytes, Part, PartCounter
from transom_cli.ckpt.publish import Keep, Retention, publish, tidy
from transom_cli.ckpt.snapshot.increments import Increment, Increments
from transom_cli.ckpt.snapshot.peers import AT_ONCE, Membership, Peers
from transom_cli.ckpt.snapshot.rebuild import Finder, ShareNotFound
from transom_cli.ckpt.snapshot.record import Record
from transom_cli.ckpt.snapshot.store import Store
from transom_cli.ckpt.tiers import marks
from transom_cli.errors import TransomError
from transom_cli.files import make_private

WRITE = 7200.0  # seconds for a node to write its shares


@dataclass(frozen=True)
class Order:
    step: int
    attempt: str  # in whose name it is published
    keep: Keep
    metrics: Mapping[str, float] = field(default_factory=dict)
    requested: bool = False

    @property
    def wanted(self) -> bool:
        """Whether it is worth writing though a newer step is to be written too."""
        return self.requested or (self.keep.every is not None and self.step % self.keep.every == 0)


class CheckpointWriter:
    """`write` is every node's part, `checkpoint` that of the one which sees to it. One directory by one thread."""

    def __init__(
        self, store: Store, members: Membership, finder: Finder, say: Callable[[str], None], increments: Increments
    ) -> None:  # fmt: skip
        self._store, self._members, self._finder, self._say = store, members, finder, say
        self._increments = increments
        self._retentions: dict[Path, Retention] = {}
        self._counts: dict[int, PartCounter] = {}  # of what this node writes, or has written, by step
        self._moved = time.monotonic()

    @property
    def still(self) -> float:
        """Seconds since the last byte, or the last other sign that the file system responds."""
        return time.monotonic() - self._moved

    def moves(self, count: int = 0) -> None:
        self._moved = time.monotonic()

    def trust(self, directory: Path, attempt: str, keep: Keep, manifest: Manifest) -> None:
        """A rank has read that checkpoint in full."""
        self._keeping(directory, attempt, keep).trust(manifest)

    def distrust(self) -> None:
        """What was known of the checkpoints on disk may have changed."""
        self._retentions.clear()
        self._counts.clear()

    def under_way(self) -> list[Part]:
        """How far this node is with its parts, until `over` is said of the step."""
        return [counting.part for counting in self._counts.copy().values()]

    def over(self, step: int) -> None:
        self._counts.pop(step, None)

    def checkpoint(self, order: Order, directory: Path) -> str:
        """Returns "", or why it is not there."""
        record = self._store.records.get(order.step)
        if record is None:
            return "its record is not here"
        plan = self._increments.take_plan(order.step) if directory == Path(self._store.directory) else None
        if plan is not None:
            trouble = self._make(order, directory, plan.record, lambda work: self._write_planned(plan, directory, work))
            if not trouble:
                self._increments.written(directory, plan)
                return ""
            self._say(f"{step_name(order.step)} is written in full: {trouble}")
        return self._make(order, directory, record, lambda work: self._write_all(order.step, record, work))

    def _make(self, order: Order, directory: Path, record: Record, write: Callable[[Path], str]) -> str:
        """Have `write` write the files into a working directory, and publish it. Returns "", or why not."""
        # by the trainer's attempt where Slurm has numbered it; else by this process, which is at work when that is gone
        writer = order.attempt if age(order.attempt) else local_attempt(socket.gethostname(), os.getpid())
        work = directory / tmp_name(order.step, writer, secrets.token_hex(4))
        try:
            make_private(work)
            self.moves()
            trouble = write(work)
            self.moves()
            if not trouble:
                marks.write_metrics(work, order.metrics)
                retention = self._keeping(directory, order.attempt, order.keep)
                publish(directory, work, record.read, order.attempt, retention)
        except (OSError, TransomError) as error:
            trouble = one_line(error)
        if trouble:
            files.delete_tree(work)
        return trouble

    def tidy(self, order: Order, directory: Path, used: Collection[int] = ()) -> None:
        """After `checkpoint` has made one there: the old ones go, unless they are used."""
        retention = self._keeping(directory, order.attempt, order.keep)
        tidy(directory, order.step, order.attempt, retention, self._say, used)

    def write(self, step: int, work: Path, names: list[str]) -> tuple[str, dict[str, str]]:
        """This node's part: write these shares that it holds. Returns what the disk said, "" if all is well, and by
        name why a share is to be had from elsewhere."""
        if not work.is_dir():
            return f"{work.parent} is not the same directory on all nodes", {}
        lost: dict[str, str] = {}
        held = self._store.shares(step)
        total = sum(held[name].size for name in names if name in held)
        record = self._store.records.get(step)
        whole = sum(entry.size for entry in shares(record.read)) if record is not None else 0
        counting = self._counts[step] = PartCounter(WRITING, step, str(work.parent), total, time.time(), whole)
        for name in names:
            try:
                with self._store.reading(step, name) as (share, buffer):
                    entry = files.write_segments(work / name, buffer.memory, share.segments, self._both(counting))
            except KeyError:
                lost[name] = "it is not held any more"
            except OSError as error:
                return one_line(error), lost
            else:
                if entry != FileEntry(name, share.size, share.sum):
                    lost[name] = "it was damaged in memory"
        return "", lost

    def write_changes(self, step: int, work: Path, sums: Mapping[str, str]) -> str:
        """This node's part of an incremental checkpoint. Returns "", or what is wrong."""
        planned = {name: self._increments.changes_of(step, name) for name in sums}
        if any(one is None or one.entry.xxh3_128 != sums[name] for name, one in planned.items()):
            return "its snapshot daemon was replaced, and does not know what has changed"
        total = sum(one.entry.size for one in planned.values() if one is not None)
        counting = self._counts[step] = PartCounter(WRITING, step, str(work.parent), total, time.time(), total)
        for name, one in planned.items():
            assert one is not None
            try:
                with self._store.reading(step, name) as (_, buffer):
                    entry = files.write_pieces(work / name, one.pieces(buffer.memory), self._both(counting))
            except KeyError:
                return f"{name} is not held any more"
            except OSError as error:
                return one_line(error)
            if entry != one.entry:
                return f"{name} was damaged in memory"
        return ""

    def _both(self, counting: PartCounter) -> OnBytes:
        def count(size: int) -> None:
            counting.add(size)
            self.moves()

        return count

    def _write_all(self, step: int, record: Record, work: Path) -> str:
        peers, wanted = self._members.current, {entry.name: entry for entry in shares(record.read)}
        parts: dict[str, list[str]] = {}
        taken: set[str] = set()
        for node, answer in peers.call_all("held", 10.0, step=step).items():
            mine = [n for n, total in answer.get("held", []) if n in wanted and wanted[n].xxh3_128 == total]
            parts[node] = [n for n in mine if n not in taken]
            taken.update(mine)
        unwritten = [name for name in wanted if name not in taken]
        answers = self._ask_to_write(peers, parts, "write", "files", step=step, work=str(work))
        for node, answer in answers.items():
            if answer.get("trouble"):
                return f"{node}: {answer['trouble']}" if len(parts) > 1 else str(answer["trouble"])
            lost = dict.fromkeys(parts[node], str(answer["error"])) if "error" in answer else answer.get("lost", {})
            for name, why in lost.items():
                self._say(f"step {step}: {name} could not be written from the memory of {node}: {why}")
                unwritten.append(name)
        for name in unwritten:
            trouble = self._write_found(step, wanted[name], work)
            if trouble:
                return trouble
        for name, entry in wanted.items():
            if check_shape(work, [entry]):
                return f"{name} was written and is not there: {work.parent} is not shared by all nodes"
        files.write_new(work / DCP_METADATA, record.metadata)
        return ""

    def _write_planned(self, plan: Increment, directory: Path, work: Path) -> str:
        """Link what has not changed since the base, and have the nodes write what has."""
        self._increments.link(directory, work, plan)
        manifest, linked = plan.record.read, {name for name, _ in plan.links}
        wanted = {entry.name: entry for entry in shares(manifest)}
        step, peers = manifest.step, self._members.current
        parts: dict[str, dict[str, str]] = {}
        unwritten = {name for name in wanted if name not in linked}
        for node, answer in peers.call_all("held", 10.0, step=step).items():
            mine = [name for name, _ in answer.get("held", []) if name in unwritten]
            unwritten.difference_update(mine)
            parts[node] = {name: wanted[name].xxh3_128 for name in mine}
        if unwritten:
            return f"{min(unwritten)} is in no memory"
        answers = self._ask_to_write(peers, parts, "write_changes", "sums", step=step, work=str(work))
        for node, answer in answers.items():
            if trouble := answer.get("trouble") or answer.get("error"):
                return f"{node}: {trouble}" if len(parts) > 1 else str(trouble)
        files.write_new(work / DCP_METADATA, plan.record.metadata)
        reasons = check_shape(work, manifest.files)
        return reasons[0] if reasons else ""

    def _ask_to_write(
        self, peers: Peers, parts: Mapping[str, Collection[str]], verb: str, key: str, **fields: Any
    ) -> dict[str, dict[str, Any]]:
        """Call `verb` of each node with its part as the field `key`."""
        by_node = {node: names for node, names in parts.items() if names}

        def one(node: str) -> dict[str, Any]:
            return peers.call_all(verb, WRITE, [node], **{key: by_node[node]}, **fields)[node]

        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(by_node))), thread_name_prefix="write") as pool:
            answers = {node: pool.submit(one, node) for node in by_node}
            own = answers.get(peers.own)
            while wait(answers.values(), 1.0).not_done:
                if own is None or own.done():  # another node writes; how far it is, this one does not know
                    self.moves()
            return {node: answer.result() for node, answer in answers.items()}

    def _write_found(self, step: int, entry: FileEntry, work: Path) -> str:
        """What its own node did not write, from where it can be had. A part of it may stand there."""
        try:
            (work / entry.name).unlink(missing_ok=True)
            found = self._finder.find(step, entry)
        except ShareNotFound as error:
            return str(error)
        except OSError as error:
            return one_line(error)
        try:
            return self._write_memory(found.fd, found.size, found.segments, entry, work)
        finally:
            found.end()

    def _write_memory(
        self, fd: int, size: int, segments: tuple[tuple[int, int], ...], entry: FileEntry, work: Path
    ) -> str:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
            try:
                written = files.write_segments(work / entry.name, view, segments)
            except OSError as error:
                return one_line(error)
        return "" if written == entry else f"{entry.name} was damaged in memory"

    def _keeping(self, directory: Path, attempt: str, keep: Keep) -> Retention:
        retention = self._retentions.setdefault(directory, Retention(directory, keep, attempt))
        retention.work_for(attempt, keep)
        return retention

"""A committed snapshot becomes a durable checkpoint: by the holders alone, from shared memory, without another copy.

The holder that is asked (that of rank 0's node, while ranks live) sees to it: it makes the working directory, has
every node write the shares that it holds, writes itself what no node could, and publishes. So it goes on when the
trainer is gone, and needs no trainer to begin with.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.ckpt import direct, files
from transom_cli.ckpt.manifest import FileEntry, Manifest
from transom_cli.ckpt.memory.finding import Finder, NotHad
from transom_cli.ckpt.memory.inventory import shares
from transom_cli.ckpt.memory.neighbours import AT_ONCE, Neighbours
from transom_cli.ckpt.memory.shelf import Record, Shelf
from transom_cli.ckpt.names import DCP_METADATA, age, local_attempt, tmp_name
from transom_cli.ckpt.publishing import publish, words
from transom_cli.ckpt.retention import Retention
from transom_cli.errors import TransomError

RUNNING, DONE, FAILED, UNKNOWN = "running", "done", "failed", "unknown"
RESERVED = "being made durable"
WRITE = 7200.0  # seconds for a node to write its shares
_REMEMBERED = 64  # outcomes
ALL = 1 << 30  # checkpoints to keep: none is deleted


@dataclass(frozen=True)
class Order:
    step: int
    attempt: str  # in whose name it is published
    keep: int


class Persisting:
    def __init__(self, shelf: Shelf, neighbours: Callable[[], Neighbours], finder: Finder, say: Callable[[str], None]):
        self._shelf, self._neighbours, self._finder, self._say = shelf, neighbours, finder, say
        self.keep = ALL  # how many checkpoints, as a rank has said last
        self._outcomes: dict[int, tuple[str, str]] = {}
        self._retention: Retention | None = None
        self._one_at_a_time = threading.Lock()
        self._changed = threading.Condition()

    def trust(self, attempt: str, keep: int, manifest: Manifest) -> None:
        """A rank has read that checkpoint in full."""
        self.keep = keep
        self._keeping(attempt, keep).trust(manifest)

    def distrust(self) -> None:
        """Another launch is here: what was known of the checkpoints on disk may have changed."""
        self._retention = None

    def begin(self, order: Order) -> None:
        """Returns at once. Asked for a step that is under way or done, it does nothing more."""
        self.keep = order.keep
        with self._changed:
            if self._outcomes.get(order.step, ("", ""))[0] in (RUNNING, DONE):
                return
            self._outcomes[order.step] = (RUNNING, "")
            for old in sorted(self._outcomes)[:-_REMEMBERED]:
                del self._outcomes[old]
        threading.Thread(target=self._run, args=(order,), name=f"persist-{order.step}", daemon=True).start()

    def outcome(self, step: int, patience: float = 0.0) -> tuple[str, str]:
        """RUNNING, DONE, FAILED with the trouble, or UNKNOWN; at the latest after `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcomes.get(step, (UNKNOWN, ""))[0] != RUNNING, patience)
            return self._outcomes.get(step, (UNKNOWN, ""))

    @property
    def busy(self) -> bool:
        with self._changed:
            return any(state == RUNNING for state, _ in self._outcomes.values())

    def forget(self, step: int | None) -> None:
        """What is newer than `step` is of a past that did not happen: it may be asked for again."""
        with self._changed:
            for newer in [n for n in self._outcomes if step is None or n > step]:
                if self._outcomes[newer][0] != RUNNING:
                    del self._outcomes[newer]

    def write(self, step: int, work: Path, names: list[str]) -> tuple[str, dict[str, str]]:
        """This node's part: write these shares that it holds. Returns what the disk said, "" if all is well, and by
        name why a share is to be had from elsewhere."""
        lost: dict[str, str] = {}
        for name in names:
            try:
                with self._shelf.reading(step, name) as (share, slot):
                    entry = direct.write(work / name, slot.memory, share.segments)
            except KeyError:
                lost[name] = "it is not held any more"
            except OSError as error:
                return words(error), lost
            else:
                if entry != FileEntry(name, share.size, share.sum):
                    lost[name] = "it was damaged in memory"
        return "", lost

    def _run(self, order: Order) -> None:
        with self._one_at_a_time:
            try:
                trouble = self._persist(order)
            except Exception as error:  # whoever waits must hear of it
                trouble = words(error)
        neighbours = self._neighbours()
        with self._changed:
            self._outcomes[order.step] = (FAILED, trouble) if trouble else (DONE, "")
            self._changed.notify_all()
        neighbours.ask_all("release", 5.0, step=order.step, why=RESERVED)

    def _persist(self, order: Order) -> str:
        record = self._shelf.records.get(order.step)
        if record is None:
            return "its record is not here"
        directory = Path(self._shelf.directory)
        # by the trainer's attempt where Slurm has numbered it; else by this process, which is at work when that is gone
        writer = order.attempt if age(order.attempt) else local_attempt(socket.gethostname(), os.getpid())
        work = directory / tmp_name(order.step, writer, secrets.token_hex(4))
        try:
            work.mkdir(parents=True, mode=0o700)
            trouble = self._write_all(order.step, record, work)
            if not trouble:
                retention = self._keeping(order.attempt, order.keep)
                publish(directory, work, record.read, order.attempt, retention, self._say)
        except (OSError, TransomError) as error:
            trouble = words(error)
        if trouble:
            files.delete_tree(work)
        return trouble

    def _write_all(self, step: int, record: Record, work: Path) -> str:
        neighbours, wanted = self._neighbours(), {entry.name: entry for entry in shares(record.read)}
        parts: dict[str, list[str]] = {}
        taken: set[str] = set()
        for node, answer in neighbours.ask_all("held", 10.0, step=step).items():
            mine = [n for n, total in answer.get("held", []) if n in wanted and wanted[n].xxh3_128 == total]
            parts[node] = [n for n in mine if n not in taken]
            taken.update(mine)
        unwritten = [name for name in wanted if name not in taken]
        for node, answer in self._ask_to_write(neighbours, step, work, parts).items():
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
        files.write_new(work / DCP_METADATA, record.metadata)
        return ""

    def _ask_to_write(
        self, neighbours: Neighbours, step: int, work: Path, parts: dict[str, list[str]]
    ) -> dict[str, dict[str, Any]]:
        asked = {node: names for node, names in parts.items() if names}

        def one(node: str) -> dict[str, Any]:
            return neighbours.ask_all("write", WRITE, [node], step=step, work=str(work), files=asked[node])[node]

        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(asked))), thread_name_prefix="write") as pool:
            return dict(zip(asked, pool.map(one, asked), strict=True))

    def _write_found(self, step: int, entry: FileEntry, work: Path) -> str:
        """What its own node did not write, from where it can be had. A part of it may stand there."""
        try:
            (work / entry.name).unlink(missing_ok=True)
            found = self._finder.find(step, entry)
        except NotHad as error:
            return str(error)
        except OSError as error:
            return words(error)
        try:
            return self._write_memory(found.fd, found.size, found.segments, entry, work)
        finally:
            found.end()

    def _write_memory(
        self, fd: int, size: int, segments: tuple[tuple[int, int], ...], entry: FileEntry, work: Path
    ) -> str:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
            try:
                written = direct.write(work / entry.name, view, segments)
            except OSError as error:
                return words(error)
        return "" if written == entry else f"{entry.name} was damaged in memory"

    def _keeping(self, attempt: str, keep: int) -> Retention:
        if self._retention is None:
            self._retention = Retention(Path(self._shelf.directory), keep, attempt)
        self._retention.work_for(attempt, keep)
        return self._retention

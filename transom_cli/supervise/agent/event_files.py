"""Reads step and loss from the TensorBoard files that a rank writes. Needs no TensorBoard.

A file is a row of records: length (8 bytes, little-endian), CRC of the length, a protobuf `Event`, CRC of the event.
The CRC is CRC-32C, masked as TFRecord does. Of an `Event`, only wall_time (1), step (2) and summary (5) are read; of
each value in the summary, tag (1) and simple_value (2). Sources: tensorflow's lib/io/record_writer.h and event.proto.

TensorBoard's own writer keeps no file open, but its file is named after the host and the process: rank 0's is looked
for below its working directory and the folders in its command line.

A writer flushes every two minutes by default, so each value is compared with the optimizer steps at its own wall time.
What a value's step counts is unknown. It is taken only if it moves at the pace of the optimizer's steps, as a progress
bar's position is (`StepOffset`).
"""

import contextlib
import os
import re
import socket
import stat
import struct
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from zlib import crc32

from transom_cli.diagnose.logs.trainer_lines import NOTHING, TrainerReport
from transom_cli.heartbeat.table import RankBeat
from transom_cli.supervise.agent import procfs

LOOK = 64 * 1024  # bytes of a file that are read at a look
LARGEST = 16 * 1024  # bytes; a larger event is an image or a graph, and is passed over
FILES = 4  # that are followed; further ones are ignored
SEARCH, SEARCH_RARELY = 10.0, 600.0  # seconds between two searches for files; twice as many after each vain one
FOLDERS, ENTRIES, DEPTH = 200, 2000, 4  # that a search looks into; of each folder; levels
KEPT = 600  # counts of optimizer steps, one per second; values that wait to be taken
_HEAD = struct.Struct("<QI")
_LEAST = _HEAD.size + 4  # bytes of a record without its event
_EVALUATION = re.compile(r"\b(?:val|valid|validation|eval|evaluation|test|dev)\b")
_NAMES = {
    "loss": re.compile(r"\bloss\b"),
    "lr": re.compile(r"\blr\b|\blearning rate\b"),
    "epoch": re.compile(r"\bepoch$"),
}
_TABLE = [0] * 256
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE[_byte] = _value


class BadEvents(ValueError):
    """The bytes are not a TensorBoard file."""


@dataclass(frozen=True)
class Scalar:
    at: float  # Unix time
    step: int
    tag: str
    value: float


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(data: bytes) -> tuple[list[Scalar], int]:
    """Return the scalars in whole records, and by how many bytes to move on: more than given, past a large event.

    Raises:
        BadEvents: a checksum or a field is wrong.
    """
    found: list[Scalar] = []
    at = 0
    while len(data) - at >= _HEAD.size:
        length, check = _HEAD.unpack_from(data, at)
        if masked_crc(data[at : at + 8]) != check or length > 1 << 40:
            raise BadEvents(f"the checksum at byte {at} is wrong")
        end = at + _LEAST + length
        if length > LARGEST:
            return found, end
        if end > len(data):
            break
        event = data[at + _HEAD.size : end - 4]
        if masked_crc(event) != int.from_bytes(data[end - 4 : end], "little"):
            raise BadEvents(f"the checksum at byte {end - 4} is wrong")
        found += _scalars(event)
        at = end
    return found, at


def _scalars(event: bytes) -> Iterator[Scalar]:
    at, step = 0.0, 0
    summaries = []
    for number, value in _fields(event):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            at = struct.unpack("<d", value)[0]
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, one in _fields(summary):
            if number == 1 and isinstance(one, bytes):
                known = dict(_fields(one))
                tag, simple = known.get(1), known.get(2)
                if isinstance(tag, bytes) and isinstance(simple, bytes) and len(simple) == 4:
                    yield Scalar(at, step, tag.decode("utf-8", "replace"), struct.unpack("<f", simple)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers of the wire types varint, fixed and length-delimited."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise BadEvents("a field is wrong")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise BadEvents("a number is wrong")


class _File:
    def __init__(self, descriptor: int) -> None:
        self._fd, self._at = descriptor, 0

    def look(self) -> list[Scalar]:
        """Return what is new. A damaged file gives nothing more."""
        try:
            data = os.pread(self._fd, LOOK, self._at) if self._fd >= 0 else b""
            found, moved = read_records(data)
        except (OSError, BadEvents):
            self.close()
            return []
        self._at += moved
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [one.name for one in islice(entries, ENTRIES)]
    return []


def _written_by(pid: int) -> list[str]:
    """Return the event files of a process, by their names."""
    words = procfs.command_line(pid)[1:]
    named = [word.rpartition("=")[2] for word in words]
    folders = [
        f"/proc/{pid}/root{word}" if word.startswith("/") else f"/proc/{pid}/cwd/{word}" for word in named if word
    ]
    own = re.compile(rf"events\.out\.tfevents\.\d+\.{re.escape(socket.gethostname())}\.{pid}\.\d+")
    found: list[str] = []
    todo, looked = deque((folder, 1) for folder in (*folders, f"/proc/{pid}/cwd")), 0
    while todo and looked < FOLDERS:
        (folder, depth), looked = todo.popleft(), looked + 1
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for one in islice(entries, ENTRIES):
                if own.fullmatch(one.name):
                    found.append(one.path)
                elif depth < DEPTH and not one.name.startswith(".") and one.is_dir(follow_symlinks=False):
                    todo.append((one.path, depth + 1))
    return found


class EventFiles:
    """Follows the files of the present launch. One thread calls `look`, and another one `take`."""

    def __init__(self) -> None:
        self._launch, self._searched, self._wait = -1, float("-inf"), SEARCH
        self._files: dict[tuple[int, int], _File] = {}
        self._tags: dict[str, str] = {}  # the tag of loss, learning rate and epoch
        self._news: deque[tuple[int, Scalar, TrainerReport]] = deque(maxlen=KEPT)
        self._counts: deque[tuple[float, int]] = deque(maxlen=KEPT)

    def look(self, rows: Sequence[RankBeat]) -> None:
        launch = max((row.launch for row in rows), default=-1)
        if launch != self._launch:
            self.close()
            self._launch, self._searched, self._wait, self._tags = launch, float("-inf"), SEARCH, {}
        now = time.monotonic()
        counting = [row for row in rows if row.launch == launch and row.since_start and row.step > 0]
        if counting and now - self._searched >= self._wait:
            self._search(counting)
            self._searched, self._wait = now, SEARCH if self._files else min(2 * self._wait, SEARCH_RARELY)
        for file in self._files.values():
            for one in file.look():
                self._news.append((launch, one, self._report(one)))

    def _search(self, rows: Sequence[RankBeat]) -> None:
        for row in rows:
            folder = f"/proc/{row.pid}/fd"
            for name in _names(folder):
                with contextlib.suppress(OSError):
                    self._open(f"{folder}/{name}", os.readlink(f"{folder}/{name}"))  # noqa: PTH115
        if not self._files and rows[0].rank == 0:
            for path in _written_by(rows[0].pid):
                with contextlib.suppress(OSError):
                    self._open(path, path)

    def _open(self, link: str, path: str) -> None:
        if ".tfevents." not in path.rpartition("/")[2] or len(self._files) >= FILES:
            return
        info = os.stat(link)  # noqa: PTH116
        if stat.S_ISREG(info.st_mode) and (key := (info.st_dev, info.st_ino)) not in self._files:
            self._files[key] = _File(os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def _report(self, one: Scalar) -> TrainerReport:
        """What a value says: its step, and loss, learning rate or epoch if its tag is the shortest that names that."""
        tag = one.tag.lower().replace("_", " ")
        report = replace(NOTHING, bar=(one.step, crc32(one.tag.encode()) | 1))
        if _EVALUATION.search(tag):
            return report
        for name, form in _NAMES.items():
            if form.search(tag) and (name not in self._tags or len(tag) <= len(self._tags[name])):
                self._tags[name] = tag
                value: Any = {name: one.value}
                return replace(report, **value)
        return report

    def take(self, count: Callable[[], int]) -> Iterator[tuple[int, TrainerReport, int]]:
        """Yield what is new: launch, report, and no fewer optimizer steps than were made when the value was written.

        Args:
            count: returns the optimizer steps that any rank of this node has made by now; -1 if none counts them.
        """
        now, counted = time.time(), count()  # in this order: a value that is written meanwhile has a later count
        if self._counts and counted < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((now, counted))
        found: dict[object, tuple[int, TrainerReport, int]] = {}
        while self._news:
            launch, one, report = self._news.popleft()
            after = bisect_left(self._counts, (one.at, -1))
            steps = self._counts[min(after, len(self._counts) - 1)][1]
            found[one.tag, steps] = launch, report, steps  # of several, the newest is nearest to this count
        yield from found.values()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

"""The node's heartbeat table as bytes: the agent writes it to the run directory, and everything else reads it. Pure.

Fixed-size records and a CRC-32 over everything before it, little-endian. The table is replaced by rename, so a reader
sees a whole one; the checksum is for file systems that break that promise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from transom_cli.heartbeat.record import PHASES, SINCE_START, decode_loss, encode_loss

PROCS = "RSDTZX?"
_HEAD = struct.Struct(
    "<4sQBHHHI"
)  # magic, seq, closed, alarms, bytes of the node's name, bytes of the attempt's, ranks
_RANK = struct.Struct("<iiqQddBic")
_CRC = struct.Struct("<I")
_MAGIC = b"TBT2"
_ALARMS = 1 << 16
_LETTERS = {letter.encode(): letter for letter in PROCS}


class BadTable(ValueError):
    """The bytes are not a whole heartbeat table: damaged, truncated, or something else."""


class RankBeat(NamedTuple):  # not a dataclass: an operator makes thousands per second
    rank: int
    launch: int  # launch number within the attempt (0, 1, ...)
    step: int  # last step reported; -1: none yet
    count: int  # type: ignore[assignment]  # number of beats so far; hides the method of tuples
    age: float  # seconds since the last step change (or the rank's start), node's monotonic clock, as of the table
    loss: float | None  # the last one reported; may be of an earlier step, see heartbeat.client
    phase: str  # "start" | "step" | "checkpoint" | "restore" | "done"
    pid: int
    proc: str  # /proc state letter of the trainer: R S D T Z; "X" gone; "?" unknown
    since_start: bool = False  # `step` counts steps since the process started, not those of the training


@dataclass(frozen=True)
class NodeTable:
    """seq: grows with every rewrite; the agent's own sign of life. closed: its last table; the agent ended normally.

    alarms: number of findings against the node (modulo 65536); the launcher asks the agent for them.
    """

    node: str
    attempt: str
    seq: int
    ranks: tuple[RankBeat, ...]
    closed: bool = False
    alarms: int = 0


def encode(table: NodeTable) -> bytes:
    """Raises ValueError for values that do not fit (an unknown phase or letter, a name that is too long)."""
    node, attempt = table.node.encode(), table.attempt.encode()
    try:
        alarms = table.alarms % _ALARMS
        head = _HEAD.pack(_MAGIC, table.seq, table.closed, alarms, len(node), len(attempt), len(table.ranks))
        parts = [head, node, attempt]
        for r in table.ranks:
            loss = encode_loss(r.loss)
            phase, proc = PHASES.index(r.phase), PROCS[PROCS.index(r.proc)].encode()
            count = r.count | SINCE_START if r.since_start else r.count
            parts.append(_RANK.pack(r.rank, r.launch, r.step, count, r.age, loss, phase, r.pid, proc))
    except struct.error as error:
        raise ValueError(f"not a beat table: {error}") from None
    data = b"".join(parts)
    return data + _CRC.pack(crc32(data))


def decode(data: bytes) -> NodeTable:
    """Raises BadTable for anything that `encode` does not make."""
    if len(data) < _HEAD.size + _CRC.size:
        raise BadTable(f"{len(data)} bytes: shorter than an empty beat table")
    body, check = data[: -_CRC.size], data[-_CRC.size :]
    if _CRC.unpack(check)[0] != crc32(body):
        raise BadTable("checksum does not match")
    magic, seq, closed, alarms, node_len, attempt_len, count = _HEAD.unpack_from(body)
    names = _HEAD.size + node_len + attempt_len
    if magic != _MAGIC or closed > 1 or len(body) != names + count * _RANK.size:
        raise BadTable("not a beat table of this version")
    try:
        node = body[_HEAD.size : _HEAD.size + node_len].decode()
        attempt = body[_HEAD.size + node_len : names].decode()
        ranks = tuple(map(_rank, _RANK.iter_unpack(body[names:])))
    except (UnicodeDecodeError, IndexError) as error:
        raise BadTable(f"invalid text in a beat table: {error}") from None
    return NodeTable(node, attempt, seq, ranks, bool(closed), alarms)


def _rank(row: tuple[int, int, int, int, float, float, int, int, bytes]) -> RankBeat:
    rank, launch, step, count, age, loss, phase, pid, proc = row
    letter = _LETTERS.get(proc)
    if letter is None:
        raise BadTable(f"unknown process state {proc!r}")
    since_start, beats = bool(count & SINCE_START), count & ~SINCE_START
    return RankBeat(rank, launch, step, beats, age, decode_loss(loss), PHASES[phase], pid, letter, since_start)


def reached(beats: Iterable[RankBeat]) -> tuple[int, bool]:
    """The step that every rank has reached (-1: none), and whether it counts from the start of the processes.

    Ranks that report the training's own step take precedence over ranks that count.
    """
    rows = list(beats)
    own = [r.step for r in rows if r.step >= 0 and not r.since_start]
    counted = any(r.step >= 0 and r.since_start for r in rows)
    if own and counted:
        return min(own), False
    return min((r.step for r in rows), default=-1), counted

"""The flush's files: whole or not there, and told from everything else."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transom_cli.heartbeat import flush, places

ROOT = Path(__file__).parents[2]
CLAIM = """
import mmap, os, signal, sys
from transom_cli.heartbeat import flush
fd = flush.claim(sys.argv[1], 2, int(sys.argv[2]))
cell = flush.Cell(mmap.mmap(fd, flush.SIZE))
cell.put(40); cell.put(41)
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(tmp_path), "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdout is not None and made.stdout.readline() == "up\n"
    yield made
    made.kill()
    made.communicate()


def order(folder: Path, flags: int = os.O_RDWR) -> int:
    return flush.open_order(str(folder), 2, flags)


def test_an_order_through_a_mapping(tmp_path: Path) -> None:
    writer = order(tmp_path)
    reader = os.open(places.flush_file(str(tmp_path), 2), os.O_RDONLY)
    mapped = mmap.mmap(reader, flush.SIZE, prot=mmap.PROT_READ)
    assert flush.newest(mapped[flush.SLOTS :]) == (0, flush.NONE)
    for seq, step in ((1, 7), (2, 2**40), (3, flush.END)):
        flush.write(writer, seq, step)
        assert flush.newest(mapped[flush.SLOTS :]) == flush.read(reader) == (seq, step)
    os.close(writer), os.close(reader)


def test_whoever_comes_second_finds_what_the_first_has_made(tmp_path: Path) -> None:
    first = order(tmp_path)
    flush.write(first, 1, 7)
    second = order(tmp_path, os.O_RDONLY)
    assert flush.read(second) == (1, 7)
    path = tmp_path / "flush-2"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == flush.SIZE and path.stat().st_blocks > 0, "no hole: one would be a SIGBUS"
    os.close(first), os.close(second)


@pytest.mark.parametrize("cut", range(1, flush._LENGTH))
def test_a_slot_that_is_being_written_is_not_believed(cut: int) -> None:
    """At any byte: the number before it stands."""
    slots = bytearray(flush.SIZE - flush.SLOTS)
    for seq, step in ((4, 100), (5, 200)):
        at, data = flush.slot(seq, step)
        slots[at - flush.SLOTS : at - flush.SLOTS + len(data)] = data
    at, data = flush.slot(6, 2**50 + 3)
    at -= flush.SLOTS
    torn = slots[at : at + len(data)][cut:]
    slots[at : at + len(data)] = data[:cut] + torn
    assert flush.newest(bytes(slots)) == ((6, 2**50 + 3) if data[cut:] == torn else (5, 200))


def test_nothing_whole_is_nothing() -> None:
    assert flush.newest(bytes(flush.SIZE - flush.SLOTS)) is None
    assert flush.newest(b"") is None


@pytest.mark.parametrize("content", [b"", b"TFO1", bytes(flush.SIZE), b"x" * flush.SIZE, b"TFL1" + bytes(60)])
def test_a_foreign_file_is_no_order(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "flush-2").write_bytes(content)
    with pytest.raises(ValueError, match="flush-2 holds no order"):
        order(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda p: p.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_plain_file_is_no_order_either(tmp_path: Path, make) -> None:
    make(tmp_path / "flush-2")
    with pytest.raises((OSError, ValueError)):
        order(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        order(tmp_path / "gone")


def test_a_rank_listens_until_it_dies(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    assert flush.listeners(str(tmp_path), 2) == [flush.Listener(3, rank.pid, False, 41)]
    assert flush.listeners(str(tmp_path), 1) == [], "of another launch"
    with pytest.raises(BlockingIOError, match="another process listens as rank 3"):
        flush.claim(str(tmp_path), 2, 3)
    rank.kill()
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    assert flush.listeners(str(tmp_path), 2) == [], "a zombie does not listen"
    os.close(flush.claim(str(tmp_path), 2, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["listen-2-3"]


def test_others_files_are_passed_over(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    whole = (tmp_path / "listen-2-3").read_bytes()
    (tmp_path / "listen-2-4").write_bytes(whole)  # nobody holds it
    (tmp_path / "listen-2-5").write_bytes(b"nonsense")
    os.mkfifo(tmp_path / "listen-2-6")
    (tmp_path / "listen-2-7").symlink_to("listen-2-3")
    (tmp_path / "listen-2-8.00ff.tmp").write_bytes(whole)
    (tmp_path / "listen-2-3x").write_bytes(whole)
    assert [x.rank for x in flush.listeners(str(tmp_path), 2)] == [3]


def test_the_files_go_with_the_folder(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    os.close(order(tmp_path))
    tmp_path.chmod(0o700)
    assert places.discard(str(tmp_path))


def test_a_listener_fits_a_line_of_the_cache() -> None:
    assert flush.SIZE == 64 and struct.calcsize("<4siB7x") == flush.SLOTS

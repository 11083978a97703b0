"""The files of requests for a final checkpoint: whole or ignored, and never confused with others."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transom_cli.heartbeat import final_checkpoint, paths

ROOT = Path(__file__).parents[2]
CLAIM = """
import mmap, os, signal, sys
from transom_cli.heartbeat import final_checkpoint
fd = final_checkpoint.claim(sys.argv[1], 2, int(sys.argv[2]))
cell = final_checkpoint.Cell(mmap.mmap(fd, final_checkpoint.SIZE))
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
    return final_checkpoint.open_order(str(folder), 2, flags)


def test_request_through_a_mapping(tmp_path: Path) -> None:
    writer = order(tmp_path)
    reader = os.open(paths.request_file(str(tmp_path), 2), os.O_RDONLY)
    mapped = mmap.mmap(reader, final_checkpoint.SIZE, prot=mmap.PROT_READ)
    assert final_checkpoint.newest(mapped[final_checkpoint.SLOTS :]) == (0, final_checkpoint.NONE)
    for seq, step in ((1, 7), (2, 2**40), (3, final_checkpoint.END)):
        final_checkpoint.write(writer, seq, step)
        assert final_checkpoint.newest(mapped[final_checkpoint.SLOTS :]) == final_checkpoint.read(reader) == (seq, step)
    os.close(writer), os.close(reader)


def test_second_user_finds_the_request_file_of_the_first(tmp_path: Path) -> None:
    first = order(tmp_path)
    final_checkpoint.write(first, 1, 7)
    second = order(tmp_path, os.O_RDONLY)
    assert final_checkpoint.read(second) == (1, 7)
    path = tmp_path / "flush-2"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == final_checkpoint.SIZE and path.stat().st_blocks > 0, "no hole: one would be a SIGBUS"
    os.close(first), os.close(second)


@pytest.mark.parametrize("cut", range(1, final_checkpoint._LENGTH))
def test_slot_being_written_is_ignored(cut: int) -> None:
    """At any byte: the number before it stands."""
    slots = bytearray(final_checkpoint.SIZE - final_checkpoint.SLOTS)
    for seq, step in ((4, 100), (5, 200)):
        at, data = final_checkpoint.slot(seq, step)
        slots[at - final_checkpoint.SLOTS : at - final_checkpoint.SLOTS + len(data)] = data
    at, data = final_checkpoint.slot(6, 2**50 + 3)
    at -= final_checkpoint.SLOTS
    torn = slots[at : at + len(data)][cut:]
    slots[at : at + len(data)] = data[:cut] + torn
    assert final_checkpoint.newest(bytes(slots)) == ((6, 2**50 + 3) if data[cut:] == torn else (5, 200))


def test_file_without_a_whole_slot_has_no_record() -> None:
    assert final_checkpoint.newest(bytes(final_checkpoint.SIZE - final_checkpoint.SLOTS)) is None
    assert final_checkpoint.newest(b"") is None


@pytest.mark.parametrize(
    "content", [b"", b"TFO1", bytes(final_checkpoint.SIZE), b"x" * final_checkpoint.SIZE, b"TFL1" + bytes(60)]
)
def test_foreign_file_is_no_request(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "flush-2").write_bytes(content)
    with pytest.raises(ValueError, match="flush-2 holds no request"):
        order(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda p: p.symlink_to("/dev/zero"), Path.mkdir])
def test_special_file_is_no_request(tmp_path: Path, make) -> None:
    make(tmp_path / "flush-2")
    with pytest.raises((OSError, ValueError)):
        order(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        order(tmp_path / "gone")


def test_a_rank_listens_until_it_dies(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    assert final_checkpoint.listeners(str(tmp_path), 2) == [final_checkpoint.Listener(3, rank.pid, False, 41)]
    assert final_checkpoint.listeners(str(tmp_path), 1) == [], "of another launch"
    with pytest.raises(BlockingIOError, match="another process listens as rank 3"):
        final_checkpoint.claim(str(tmp_path), 2, 3)
    rank.kill()
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    assert final_checkpoint.listeners(str(tmp_path), 2) == [], "a zombie does not listen"
    os.close(final_checkpoint.claim(str(tmp_path), 2, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["listen-2-3"]


def test_foreign_files_are_ignored(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    whole = (tmp_path / "listen-2-3").read_bytes()
    (tmp_path / "listen-2-4").write_bytes(whole)  # nobody holds it
    (tmp_path / "listen-2-5").write_bytes(b"nonsense")
    os.mkfifo(tmp_path / "listen-2-6")
    (tmp_path / "listen-2-7").symlink_to("listen-2-3")
    (tmp_path / "listen-2-8.00ff.tmp").write_bytes(whole)
    (tmp_path / "listen-2-3x").write_bytes(whole)
    assert [x.rank for x in final_checkpoint.listeners(str(tmp_path), 2)] == [3]


def test_the_files_go_with_the_folder(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    os.close(order(tmp_path))
    tmp_path.chmod(0o700)
    assert paths.discard(str(tmp_path))


def test_listener_fits_a_cache_line() -> None:
    assert final_checkpoint.SIZE == 64 and struct.calcsize("<4siB7x") == final_checkpoint.SLOTS

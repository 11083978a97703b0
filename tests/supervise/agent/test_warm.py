"""The questions `mapped` and `warm`, over a real connection: real ranks, real files, the real page cache."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_ranks import NODE, UP, Ranks

from transom_cli.health.checks.host import Memory as HostMemory
from transom_cli.layout import AttemptDir
from transom_cli.rpc.client import Client, Failed
from transom_cli.rpc.server import Server
from transom_cli.rpc.wire import LIMITS, SERVER
from transom_cli.supervise.agent import warm as module
from transom_cli.supervise.agent.monitor import Monitor
from transom_cli.supervise.agent.snapshot_daemon import SnapshotDaemon
from transom_cli.supervise.agent.verbs import Answers
from transom_cli.supervise.agent.warm import mapped, warm

MIB = 1 << 20
MAPS = """
import mmap
fds = {name: os.open(name, os.O_RDWR | os.O_CREAT) for name in sys.argv[1:]}
held = []
for name, fd in fds.items():
    if os.fstat(fd).st_size == 0:
        os.truncate(fd, 8192)
    shared = mmap.MAP_SHARED if "shared" in name else mmap.MAP_PRIVATE
    write = mmap.PROT_WRITE if "written" in name else 0
    held.append(mmap.mmap(fd, 8192, flags=shared, prot=mmap.PROT_READ | write))
    if "deleted" in name:
        os.unlink(name)
up()
time.sleep(600)
"""


@pytest.fixture
def line(ranks: Ranks) -> Iterator[Client]:
    secret = os.urandom(32)
    attempt, beats = AttemptDir(ranks.attempt), str(ranks.beats)
    answers = Answers(
        attempt, NODE, beats, Monitor(attempt, NODE, beats, tuple), SnapshotDaemon(beats, attempt.path, print)
    )
    server = Server(secret, f"12.0/{NODE}", frozenset({"127.0.0.1"}), answers)
    with Client.connect("127.0.0.1", server.start(), secret, f"12.0/{NODE}", 20.0) as client:
        yield client
    server.stop()


def files_of(line: Client, launch: int = 2) -> dict[str, int]:
    found = line.call("mapped", 20.0, launch=launch)["files"]
    assert isinstance(found, list) and found == sorted(found)
    return dict(found)


def test_the_programs_and_libraries_of_the_launchs_ranks(line: Client, ranks: Ranks, tmp_path: Path) -> None:
    wanted = tmp_path / "a lib\n1.so"
    others = [tmp_path / name for name in ("deleted.so", "shared data", "written")]
    ranks.command([sys.executable, "-c", UP + MAPS, str(wanted), *map(str, others)])
    found = files_of(line)
    assert found[str(wanted)] == 8192
    assert found[os.path.realpath(sys.executable)] == Path(sys.executable).stat().st_size
    assert any(Path(path).name.startswith("libc.so") for path in found)
    assert not set(map(str, others)) & set(found)
    assert not [path for path in found if not Path(path).is_file() or path.startswith(("/dev", "/proc"))]
    assert files_of(line, launch=3) == {}, "of another launch"


def test_an_answer_fits_into_a_message(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.start("up(); time.sleep(600)")
    whole = mapped(ranks.attempt, 2, NODE)
    assert len(whole) > 5
    monkeypatch.setattr(module, "FILES", 4)
    assert mapped(ranks.attempt, 2, NODE) == whole[:4]
    monkeypatch.setattr(module, "ANSWER", 300)
    short = mapped(ranks.attempt, 2, NODE)
    assert 0 < len(short) < 4 and len(json.dumps(short)) <= 300
    monkeypatch.undo()
    assert LIMITS[SERVER] > module.ANSWER + 1024


def cached(path: Path) -> float:
    """The share of a file's pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as view:
        there = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(view)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), there) == 0
        del start
        return sum(x & 1 for x in there) / len(there)


def cold(path: Path) -> Path:
    path.write_bytes(os.urandom(8 * MIB + 5))
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path) > 0.1:
        pytest.skip("this file system gives no page back")
    return path


def test_what_is_warmed_is_in_the_page_cache(line: Client, tmp_path: Path) -> None:
    first, other = cold(tmp_path / "first lib.so"), cold(tmp_path / "other")
    assert line.call("warm", 60.0, files=[str(first)]) == {"files": 1, "bytes": 8 * MIB + 5}
    assert cached(first) == 1.0 and cached(other) < 0.1


def test_what_is_no_regular_file_is_left_out(line: Client, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to(good)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    names = ["fifo", "link", "folder", "not there", "good"]
    asked = [str(tmp_path / name) for name in names] + ["/dev/zero"]
    assert line.call("warm", 60.0, files=asked) == {"files": 1, "bytes": 100}


def test_no_more_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for name, size in (("a", 60), ("b", 50), ("c", 40)):
        (tmp_path / name).write_bytes(b"x" * size)
        paths.append(str(tmp_path / name))
    monkeypatch.setattr(module, "MOST", 100)
    assert warm(paths) == {"files": 2, "bytes": 100}
    monkeypatch.setattr(module, "read_memory", lambda: HostMemory(120, 10**9))
    assert warm(paths) == {"files": 1, "bytes": 60}
    monkeypatch.setattr(module, "read_memory", lambda: None)
    assert warm(paths) == {"files": 0, "bytes": 0}


@pytest.mark.parametrize("files", [None, "/a", [1], ["a"], ["/a", "b"], ["/a\0b"], {"/a": 1}])
def test_a_question_that_makes_no_sense(line: Client, files: object) -> None:
    with pytest.raises(Failed) as caught:
        line.call("warm", 20.0, files=files)
    assert "files " in caught.value.why and "not " in caught.value.why

"""What is taken from ranks before they are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from agent_ranks import NODE, SLEEP, UP, Ranks, wait_for

from transom_cli.core import stacks
from transom_cli.heartbeat.paths import flight_prefix
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent import evidence, flight_recorder, procfs, pyspy

TIME = 60.0
SPIN = """
def turn_for_ever():
    while True:
        pass
def step():
    up()
    turn_for_ever()
step()
"""


@pytest.fixture
def folder(ranks: Ranks) -> Path:
    return AttemptDir(ranks.attempt).evidence("i1")


def take(ranks: Ranks, folder: Path, timeout: float = TIME) -> list[dict[str, Any]]:
    return evidence.take(ranks.attempt, 2, NODE, folder, timeout, beats_dir=str(ranks.beats))


def facts(folder: Path, rank: int = 3) -> dict[str, Any]:
    return dict(json.loads((folder / f"rank-{rank}.proc.json").read_text()))


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: (p := procfs.read(pid)) is not None and p.state == "T")


def fake_pyspy(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(pyspy, "program", lambda: str(path))


needs_tracing = pytest.mark.skipif(
    pyspy.program() is None or os.geteuid() != 0, reason="needs py-spy, and root to trace what is no child of py-spy"
)


@needs_tracing
def test_ranks_of_one_node(ranks: Ranks, folder: Path) -> None:
    ranks.start(SPIN, rank=3)
    ranks.start(SLEEP, rank=10)
    ranks.start(SLEEP, rank=11, launch=1)
    stop(ranks.pids[1])
    spinning, stopped = take(ranks, folder)

    assert (spinning["rank"], spinning["pid"], spinning["note"]) == (3, ranks.pids[0], "")
    assert spinning["stack"] in ("native", "python")
    assert spinning["top"].startswith("turn_for_ever (<string>:")
    told = stacks.parse((folder / "rank-3.stack.txt").read_text())
    assert told.holder is told.main is not None

    assert (stopped["rank"], stopped["state"], stopped["stack"], stopped["note"]) == (10, "T", "python", "")
    assert stopped["top"].startswith("<module> (<string>:")
    assert facts(folder, 10)["state"] == "T"
    assert procfs.read(ranks.pids[1]).state == "T"  # type: ignore[union-attr]

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {f"rank-{n}.{kind}" for n in (3, 10) for kind in ("proc.json", "stack.txt")}
    assert {path.name for path in folder.iterdir()} == names


def test_what_proc_tells(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "program", lambda: None)
    code = "for _ in range(70): threading.Thread(target=time.sleep, args=(600,)).start()\n"
    ranks.start(f"{code}kept = [os.dup(0) for _ in range(20)]\nkept.append(bytearray(1 << 24))\n{SLEEP}")
    take(ranks, folder)
    told = facts(folder)
    head = {"schema": 1, "rank": 3, "pid": ranks.pids[0], "state": "S", "thread_count": 71}
    assert {key: told[key] for key in head} == head
    assert told["start"] == procfs.read(ranks.pids[0]).start  # type: ignore[union-attr]
    assert told["name"].startswith("python")
    assert len(told["threads"]) == 64
    assert (told["threads"][0]["tid"], told["threads"][0]["state"]) == (ranks.pids[0], "S")
    assert told["fds"] >= 23 and told["rss"] > 1 << 24
    assert told["oom_score_adj"] == Path(f"/proc/{ranks.pids[0]}/oom_score_adj").read_text().strip()
    assert told["cgroup"] == Path(f"/proc/{ranks.pids[0]}/cgroup").read_text().strip()
    assert told["wchan"] is not None and "syscall" in told


def test_without_pyspy(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.start(SLEEP)
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    monkeypatch.setenv("PATH", "/nowhere")
    (told,) = take(ranks, folder)
    why = "py-spy is not installed on this node (`pip install py-spy`)"
    assert (told["stack"], told["top"], told["note"]) == ("none", "", why)
    assert (folder / "rank-3.stack.txt").read_text() == f"{why}\n"
    assert facts(folder)["state"] == "S"


def test_pyspy_may_not_trace(ranks: Ranks, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "Error: Permission Denied: Try running again with elevated permissions"
    fake_pyspy(monkeypatch, tmp_path, f"echo noise >&2; printf '{why}\\033[2J\\n' >&2; exit 1")
    ranks.start(SLEEP)
    (told,) = take(ranks, folder)
    assert (told["stack"], told["note"]) == ("none", f"py-spy: {why}")
    assert (folder / "rank-3.stack.txt").read_text() == f"py-spy: {why}\n"


def test_native_stacks_are_tried_first(
    ranks: Ranks, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$*" in *--native*) echo Error: no unwinder >&2; exit 1;; esac\n'
    fake_pyspy(monkeypatch, tmp_path, f"{script}printf 'Thread 1 (idle)\\n    step (x.py:1)\\n'")
    ranks.start(SLEEP)
    (told,) = take(ranks, folder)
    assert (told["stack"], told["top"], told["note"]) == ("python", "step (x.py:1)", "py-spy: Error: no unwinder")


def test_the_time_limit_is_kept(ranks: Ranks, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Py-spy hangs on a process that cannot be paused: it is tried without pausing, then given up."""
    fake_pyspy(monkeypatch, tmp_path, f"echo $* >> {tmp_path}/calls; exec sleep 600")
    ranks.start(SLEEP)
    (told,) = take(ranks, folder, timeout=1.5)
    assert told["stack"] == "none"
    assert told["note"].startswith("py-spy --nonblocking timed out after 0.")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [line.split()[3:] for line in calls] == [["--native"], ["--nonblocking"]]
    assert procfs.read(ranks.pids[0]).state == "S"  # type: ignore[union-attr]


def test_a_rank_that_takes_too_long_is_told(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the file system of the run directory hangs."""
    go_on = threading.Event()
    monkeypatch.setattr(evidence, "publish_text", lambda *_: go_on.wait(TIME))
    ranks.start(SLEEP)
    (told,) = take(ranks, folder, timeout=0.5)
    go_on.set()
    assert told == {
        "rank": 3, "pid": ranks.pids[0], "state": "S", "stack": "none", "note": "timed out", "top": ""
    }  # fmt: skip


def test_a_process_table_that_cannot_be_read(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(evidence, "find", lambda *_: [go_on.wait(TIME)])
    (told,) = take(ranks, folder, timeout=0.2)
    go_on.set()
    assert (told["rank"], told["note"]) == (None, "timed out while reading the process table")


def test_a_folder_that_cannot_be_made(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "program", lambda: None)
    folder.parent.write_text("a file in the way")
    ranks.start(SLEEP)
    (told,) = take(ranks, folder)
    assert told["note"].startswith(f"cannot write to {folder}: ") and told["state"] == "S"


def test_the_process_that_trains_is_asked(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the shell around it, nor what it started itself."""
    monkeypatch.setattr(pyspy, "program", lambda: None)
    code = "child = os.fork() or time.sleep(600)\nup()\ntime.sleep(600)"
    ranks.command(["/bin/sh", "-c", '"$@"; exit 7', "sh", sys.executable, "-c", UP + code])
    (told,) = take(ranks, folder)
    assert told["pid"] == ranks.pids[0]


def test_nobody_is_there(ranks: Ranks, folder: Path) -> None:
    assert take(ranks, folder) == []


class Dumps:
    """Flight recorder dumps as PyTorch would write them: the prefix and the rank."""

    def __init__(self, ranks: Ranks) -> None:
        ranks.beats.mkdir(mode=0o700, exist_ok=True)
        self.prefix = flight_prefix(str(ranks.beats), 2)

    def path(self, rank: str) -> Path:
        return Path(self.prefix + rank)


def test_flight_recorder_dumps_are_copied_also_of_the_dead(ranks: Ranks, folder: Path) -> None:
    dumps = Dumps(ranks)
    dumps.path("7").write_bytes(b"\x80\x04 seven")
    dumps.path("71").write_bytes(b"\x80\x04 seventy-one")
    Path(flight_prefix(str(ranks.beats), 1) + "7").write_bytes(b"of another launch")
    seven, seventy_one = take(ranks, folder)
    done = "flight recorder dump: copied"
    assert seven == {"rank": 7, "pid": 0, "state": "X", "stack": "none", "note": done, "top": ""}
    assert seventy_one["rank"] == 71
    assert (folder / "rank-7.flight" / "flight-2-7").read_bytes() == b"\x80\x04 seven"
    assert [path.name for path in (folder / "rank-71.flight").iterdir()] == ["flight-2-71"]


def test_what_is_no_dump_is_not_copied(ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "program", lambda: None)
    monkeypatch.setattr(flight_recorder, "LIMIT", 2 << 20)
    dumps = Dumps(ranks)
    secret = ranks.folder / "secret"
    secret.write_text("not to be followed")
    dumps.path("3").symlink_to(secret)
    os.mkfifo(dumps.path("4"))
    dumps.path("5").write_bytes(bytes((2 << 20) + 1))
    dumps.path("x").write_bytes(b"no rank")
    ranks.start(SLEEP)
    three, four, five = take(ranks, folder)
    assert three["note"].endswith("flight recorder dump: not copied (Too many levels of symbolic links)")
    assert four["note"] == "flight recorder dump: not copied (no plain file of this user)"
    assert five["note"] == "flight recorder dump: not copied (2 MiB)"
    assert not [path for path in folder.iterdir() if path.name.endswith(".flight")]


def test_dumps_go_with_the_beats_folder(ranks: Ranks) -> None:
    from transom_cli.heartbeat import paths

    os.close(paths.enter(str(ranks.beats)))
    Dumps(ranks).path("3").write_bytes(b"x")
    assert paths.discard(str(ranks.beats))
    assert not ranks.beats.exists()


@needs_tracing
def test_pyspy_is_found_where_it_was_installed() -> None:
    found = pyspy.program()
    assert found is not None and shutil.which(found) == found

"""The shared file system hangs under everybody, as when its server is gone, and comes back: nothing is done twice."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import STEPS, Person, at_step, over, remembering

from transom_cli.errors import NotPermitted
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox
BOUND = 30.0  # seconds, on a busy machine, for a command that gives up after 10


@pytest.fixture
def shared(person: Person, sandbox: Sandbox) -> Iterator[Person]:
    """Somebody whose runs live on a file system that may hang."""
    try:
        faults.share_disk(sandbox, person.root)
    except NotPermitted as refused:
        pytest.skip(str(refused))
    yield person
    faults.cont_disk(sandbox, person.root)


def begun(shared: Person, tmp_path: Path, *more: str) -> RunDir:
    """On two nodes, so slowly that it is still at it after the outage."""
    run = shared.start("-N", "2", *more, "--", *remembering(tmp_path / "final", "--persist", "5", "--delay", "0.3"))
    shared.wait(run, at_step(15))
    return run


def told(file: Path, words: str, patience: float) -> str:
    deadline = time.monotonic() + patience
    while not (file.exists() and words in file.read_text()):
        assert time.monotonic() < deadline, f"nobody was told: {words}"
        time.sleep(0.5)
    return file.read_text()


@pytest.mark.long
def test_who_looks_is_not_held_up(shared: Person, sandbox: Sandbox) -> None:
    """All at once, since each takes its ten seconds."""
    run = RunDir(shared.root / "demo-20260101-000000-abcd")
    run.path.mkdir()
    run.settings.write_text('name = "demo"\n')
    faults.stall_disk(sandbox, shared.root)
    env = {**os.environ, **shared.env, "TRANSOM_ROOT": str(shared.root)}
    words = (("status",), ("status", "--json"), ("list",), ("attach", str(run.path)), ("stop", "demo"))
    asked = [
        subprocess.Popen(
            [sys.executable, "-m", "transom_cli", *each],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for each in words
    ]
    told = [each.communicate(timeout=2 * BOUND) for each in asked]
    assert [each.returncode for each in asked] == [22] * len(words), told
    answer = json.loads(told[1][0])
    assert answer["exit_code"] == 22 and answer["error"]["what"] == f"{shared.root} does not respond"
    assert all(f"{shared.root} does not respond" in err and "hint: " in err for _, err in (told[0], told[2], told[4]))
    assert f"{run.path} does not respond" in told[3][1]


@pytest.mark.long
def test_file_system_outage_is_reported_and_is_not_an_incident(
    shared: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    heard, target = tmp_path / "heard", tmp_path / "targets.toml"
    target.write_text(
        '[[notify.targets]]\nname = "me"\nkind = "command"\nevents = ["unanswered", "incident"]\n'
        f'argv = ["sh", "-c", "cat >> {heard}"]\n'
    )
    run = begun(shared, tmp_path, "-f", str(target))
    faults.stall_disk(sandbox, shared.root)
    for words in (("status", run.run_id), ("list",), ("explain", run.run_id), ("attach", "--detach", run.run_id)):
        done = shared.transom(*words, timeout=BOUND)
        assert done.returncode == 22, done
        assert f"{shared.root} does not respond" in done.stderr and "since" in done.stderr
    told(heard, "the run directory has not responded for 60 s", 120)
    faults.cont_disk(sandbox, shared.root)
    told(heard, "the run directory responds again", BOUND)
    view = shared.wait(run, over, patience=180)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (view["incidents"], view["excluded"]) == ([], [])
    assert "answers again, after" in run.operator_log.read_text()
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.long
def test_a_node_that_dies_in_an_outage_is_isolated_once_when_it_is_over(
    shared: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    run = begun(shared, tmp_path)
    faults.stall_disk(sandbox, shared.root)
    time.sleep(5.0)
    faults.kill_node(sandbox, "node2")
    time.sleep(20.0)
    faults.cont_disk(sandbox, shared.root)
    view = shared.wait(run, over, patience=240)
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 1)
    assert [name for name, *_ in view["excluded"]] == ["node2"]
    marks = [what for one in view["incidents"] for _, what, _ in one["marks"]]
    assert (marks.count("isolated"), marks.count("requeued")) == (1, 1)
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.long
def test_view_reports_the_outage_and_then_continues(shared: Person, sandbox: Sandbox, tmp_path: Path) -> None:
    """Whoever waits for a run's end, as a script does, is not sent away by a server that is started again."""
    run = begun(shared, tmp_path)
    said = tmp_path / "said", tmp_path / "said-too"
    with viewing(shared, run, said[0]) as view, viewing(shared, run, said[1]) as left:
        for file in said:
            told(file, "training", BOUND)
        faults.stall_disk(sandbox, shared.root)
        for file in said:
            told(file, f"warning: {run.path} has not responded since", BOUND)
        left.send_signal(signal.SIGINT)
        assert left.wait(BOUND) == 130
        assert "left the view; the run continues" in said[1].read_text()
        faults.cont_disk(sandbox, shared.root)
        told(said[0], "responds again, after", BOUND)
        assert view.wait(180) == 0
    assert "done" in said[0].read_text()


def viewing(shared: Person, run: RunDir, said: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, **shared.env, "TRANSOM_ROOT": str(shared.root)}
    words = [sys.executable, "-m", "transom_cli", "attach", run.run_id]
    with said.open("wb") as file:
        return subprocess.Popen(words, env=env, stdout=file, stderr=file)


@pytest.mark.long
def test_the_live_screen_says_it_and_can_be_left(shared: Person, sandbox: Sandbox, tmp_path: Path) -> None:
    run = begun(shared, tmp_path)
    env = {**os.environ, **shared.env, "TRANSOM_ROOT": str(shared.root), "TERM": "xterm"}
    pid, screen = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "transom_cli", "status", "--watch", run.run_id], env)
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
    try:
        shows(screen, run.run_id.encode())
        faults.stall_disk(sandbox, shared.root)
        shows(screen, b"the run directory has not responded since")
        os.write(screen, b"q")
        shows(screen, b"\x1b[?1049l")  # the terminal is given back
        deadline = time.monotonic() + BOUND
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "it waits for the files"
            time.sleep(0.1)
        assert os.waitstatus_to_exitcode(ended[1]) == 130
    finally:
        faults.cont_disk(sandbox, shared.root)
        os.close(screen)


def shows(screen: int, words: bytes) -> None:
    deadline, seen = time.monotonic() + BOUND, b""
    while words not in seen:
        assert time.monotonic() < deadline, seen[-2000:]
        if select.select([screen], [], [], 0.5)[0]:
            seen += os.read(screen, 1 << 16)

"""A file system that stops answering and answers again, as a process notices it that would hang there."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transom_cli.core import events as ev
from transom_cli.core.operator.state import Job, State
from transom_cli.layout import RunDir
from transom_cli.notify.events import Notification
from transom_cli.supervise import answering
from transom_cli.supervise.answering import Answering, interrupted
from transom_cli.supervise.operator.run_dir_watch import RunDirWatch

SOON = 30.0  # seconds, on a busy machine


class Server:
    """In the place of statvfs: waits while it is `gone`, fails with `error`."""

    def __init__(self) -> None:
        self.here = threading.Event()
        self.here.set()
        self.error: OSError | None = None
        self.asked = 0

    def statvfs(self, _folder: object) -> Any:
        self.asked += 1
        self.here.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.setattr(answering.os, "statvfs", made.statvfs)
    monkeypatch.setattr(answering, "EVERY", 0.05)
    yield made
    made.here.set()


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_silence_is_told_once_and_so_is_its_end(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []

    def tell(what: str) -> Callable[[float], None]:
        return lambda value: told.append((what, value))

    one = Answering(tmp_path, tell("lost"), tell("back"), tell("still"), patience=1.0).start()
    until(lambda: server.asked > 3)
    assert told == []
    gone = time.time()
    server.here.clear()
    until(lambda: len(told) > 2)
    server.here.set()
    until(lambda: told[-1][0] == "back")
    one.stop()
    assert [what for what, _ in told] == ["lost", *["still"] * (len(told) - 2), "back"]
    assert gone - 1.0 <= told[0][1] <= gone + 1.0
    assert told[1][1] >= 1.0 and told[-1][1] >= told[-2][1]


def test_an_error_is_an_answer(server: Server, tmp_path: Path) -> None:
    server.error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    told: list[float] = []
    one = Answering(tmp_path, told.append, patience=0.5).start()
    until(lambda: server.asked > 25)
    one.stop()
    assert told == []


def test_time_in_which_the_process_stood_still_is_no_silence(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP, or a laptop's sleep: the clock has jumped, and the answer has had no chance to come."""
    told: list[float] = []
    ahead = 0.0
    real = time.monotonic
    monkeypatch.setattr(answering.time, "monotonic", lambda: real() + ahead)
    one = Answering(tmp_path, told.append, patience=5.0).start()
    until(lambda: server.asked > 3)
    server.here.clear()
    ahead = 3600.0
    time.sleep(2 * answering.TURN)
    server.here.set()
    until(lambda: server.asked > 10)
    one.stop()
    assert told == []


def test_nobody_has_pressed_ctrl_c() -> None:
    assert interrupted() is False


def test_the_operator_says_it_elsewhere_and_then_tells_people(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    news: list[Notification] = []
    watch = RunDirWatch(RunDir(tmp_path / "run1"), news.append, said.append, patience=0.5, told_after=1.0)
    watch.seen(State(), ev.Tick(1.0), State(job=Job(id=7, nodes=("n1", "n2"))))
    with caplog.at_level(logging.WARNING, logger="transom.operator"):
        server.here.clear()
        until(lambda: news)
        assert len(said) == 1 and f"{tmp_path / 'run1'} does not answer since " in said[0]
        assert not caplog.messages, "the log may be where nothing answers"
        server.here.set()
        until(lambda: len(news) == 2)
    watch.close()
    assert [one.kind for one in news] == ["unanswered", "unanswered"] and news[0].key != news[1].key
    assert news[0].headline.startswith("the run directory has not responded for ")
    assert "job 7, start 1, 2 nodes" in news[0].details
    assert news[1].headline.startswith("the run directory responds again, after ")
    assert "answers again, after" in said[1] and "answers again, after" in caplog.messages[0]


def test_a_short_silence_is_said_and_not_told(server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    news: list[Notification] = []
    watch = RunDirWatch(RunDir(tmp_path / "run1"), news.append, said.append, patience=0.5, told_after=1000.0)
    server.here.clear()
    until(lambda: said)
    server.here.set()
    until(lambda: len(said) == 2)
    watch.close()
    assert news == []

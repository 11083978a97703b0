"""Notifications beside a real operator's loop: over restarts, with targets that all hang, no secret anywhere."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from notify_made import Answer, program, receiving, secrets, speaking

from transom_cli.bootstrap.notifications import notifier_for
from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.cadence import Cadence
from transom_cli.core.operator.state import Phase, Policy, State
from transom_cli.layout import RunDir
from transom_cli.notify.delivery import DeliveryLog, EndWaits, Notifier
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator import loop as operator_module
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.loop import Operator, Pace

AT = time.time()
NODES = ("n1", "n2", "n3")
STORY: tuple[ev.Event, ...] = (
    ev.Submitted(AT, "submit", 7),
    ev.JobSeen(AT, 7, 0, "RUNNING", nodes=NODES),
    ev.LaunchSeen(AT, "7.0", 0, NODES, 3),
    ev.StepSeen(AT, "7.0", 46),
    ev.OutcomeSeen(AT + 1, "7.0", "failed", "rank 1 on n2 ended with exit code 1", missing=("n3",), nodes=NODES),
    ev.Examined(AT + 1, "i1/examine", "network_fabric", "Connection reset by peer", "rank-1.log"),
    ev.Probed(AT + 1, "i1/probe/n3/1", "n3", "FAIL", "no slurmd"),
    ev.Probed(AT + 2, "i1/probe/n3/2", "n3", "FAIL", "no slurmd"),
    ev.Isolated(AT + 2, "i1/isolate/n3", "n3", "drained", ""),
    ev.Restarted(AT + 3, "i1/restart", 7, 1, "requeued"),
    ev.JobSeen(AT + 4, 7, 1, "RUNNING", nodes=("n1", "n2", "n4")),
    ev.LaunchSeen(AT + 4, "7.1", 0, ("n1", "n2", "n4"), 3),
    ev.StepSeen(AT + 5, "7.1", 47),
    ev.JobSeen(AT + 6, 7, 1, "COMPLETED"),
)
KEYS = ["i1/incident", "i1/recovered", "over"]


class Story:
    """In place of follower, watch and hands: an event a turn, and then the operator is told to leave."""

    in_restart = False

    def __init__(self, events: tuple[ev.Event, ...]) -> None:
        self.events = list(events)
        self.leave = lambda: None
        self.played = threading.Event()

    launcher_lives = False

    def poll(self, state: State, now: float) -> Iterator[ev.Event]:
        if self.events:
            yield self.events.pop(0)
        else:
            self.played.set()
            self.leave()

    def remember(self, submissions: object, past: object = ()) -> None:
        pass

    def do(self, action: Action) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def look(self, delay: float = 0.0) -> None: ...
    def follow(self, job_id: int, restarts: int, nodes: tuple[str, ...], *_: object) -> None: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(operator_module, "TURN", 0.0)
    run = RunDir(tmp_path / "r1")
    run.path.mkdir()
    write_header(run.journal, Policy(), 3)
    return run


def asked(tmp_path: Path, *targets: str, **notify: object) -> Settings:
    tables = "".join(f"[[notify.targets]]\n{target}\n" for target in targets)
    file = tmp_path / "run-settings.toml"
    file.write_text(tables)
    flags = {"notify.secrets": str(tmp_path / "secrets.toml"), **{f"notify.{k}": v for k, v in notify.items()}}
    return load(file, {"name": "demo", **flags}, {}, site=None, user=tmp_path / "none")


def operate(run: RunDir, settings: Settings, *story: ev.Event, waits: EndWaits = EndWaits()) -> State:
    """One operator's life."""
    told = Story(story)

    def parts(_clock: Clock, _inbox: queue.SimpleQueue[ev.Event], _pace: Pace) -> tuple[Story, Story, Story]:
        return told, told, told

    lease = Lease.take(run)
    observer = notifier_for(run, settings, DeliveryLog(run.notified, lease.epoch), waits)
    operator = Operator(run, lease, Clock, parts, Pace(Cadence()), [observer])  # type: ignore[arg-type]
    told.leave = operator.leave
    return operator.run()


def keys(path: Path) -> list[str]:
    return [json.loads(line)["id"].partition("/")[2] for line in path.read_text().splitlines()]


def recorder(tmp_path: Path) -> str:
    """A command that keeps each message on a line."""
    path = program(tmp_path / "record", f'cat >> "{tmp_path}/heard"; echo >> "{tmp_path}/heard"')
    return f'name = "rec"\nkind = "command"\nargv = "{path}"'


def test_a_run_is_told_from_its_incident_to_its_end(run: RunDir, tmp_path: Path) -> None:
    assert operate(run, asked(tmp_path, recorder(tmp_path)), *STORY).phase is Phase.DONE
    assert keys(tmp_path / "heard") == KEYS


@pytest.mark.parametrize("cut", range(1, len(STORY)))
def test_operators_that_follow_one_another_tell_each_thing_once(run: RunDir, tmp_path: Path, cut: int) -> None:
    settings = asked(tmp_path, recorder(tmp_path))
    operate(run, settings, *STORY[:cut])
    operate(run, settings, *STORY[cut:])
    assert keys(tmp_path / "heard") == KEYS


def test_what_an_operator_did_not_come_to_tell_the_next_one_does(run: RunDir, tmp_path: Path) -> None:
    """The first was killed, or its target was down."""
    operate(run, asked(tmp_path, 'name = "rec"\nkind = "command"\nargv = "/bin/false"'), *STORY[:8])
    operate(run, asked(tmp_path, recorder(tmp_path)), *STORY[8:])
    assert keys(tmp_path / "heard") == KEYS


def silent(connection: socket.socket) -> None:
    connection.recv(1)
    time.sleep(1000)  # beyond the test's own limit


def test_the_run_goes_on_while_every_target_hangs(run: RunDir, tmp_path: Path) -> None:
    hangs = program(tmp_path / "hang", "sleep 1000")
    with speaking(silent) as port:
        url = f"http://127.0.0.1:{port}/x"
        secrets(tmp_path / "secrets.toml", web=url, slack=url)
        settings = asked(
            tmp_path,
            'name = "web"\nkind = "webhook"',
            'name = "slack"\nkind = "slack"',
            f'name = "command"\nkind = "command"\nargv = "{hangs}"',
            f'name = "mail"\nkind = "mail"\nto = "ops"\nprogram = "{hangs}"',
            timeout=60,
        )
        many = [replace(STORY[3], step=step) for step in range(47, 147)]  # type: ignore[type-var]
        story = (*STORY[:-1], *(replace(e, attempt="7.1") for e in many), STORY[-1])
        state = operate(run, settings, *story, waits=EndWaits(0.3, 0.3, 0.3))
        assert state.phase is Phase.DONE and state.progress.max_step == 146
    assert not run.notified.exists()


def test_undelivered_notifications_are_logged_at_the_end(
    run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = asked(tmp_path, 'name = "rec"\nkind = "command"\nargv = "false"')
    operate(run, settings, *STORY, waits=EndWaits(final=0.3))
    assert "rec was not notified of i1/incident, i1/recovered, over" in caplog.text


def test_notification_that_cannot_be_made_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    Notifier([]).seen(None, ev.Tick(1.0), State())  # type: ignore[arg-type]  # any error will do
    assert "cannot notify of Tick" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        Answer(),
        Answer(403, body=b"bad token T0KEN-SECRET for /services/T0P/SECRET-PATH"),
        Answer(302, {"Location": "http://127.0.0.1:1/services/T0P/SECRET-PATH"}),
        Answer(500, body=b"T0KEN-SECRET"),
    ],
    ids=["told", "refused", "redirected", "broken"],
)
def test_no_secret_is_written_or_logged(
    run: RunDir, tmp_path: Path, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = tmp_path / "kept apart"
    place.mkdir()
    with receiving(answer) as server:
        secrets(place / "secrets.toml", web=server.url(), slack=server.url())
        settings = asked(tmp_path, 'name = "web"\nkind = "webhook"', 'name = "slack"\nkind = "slack"')
        settings = settings.model_copy(
            update={"notify": settings.notify.model_copy(update={"secrets": place / "secrets.toml"})}
        )
        assert operate(run, settings, *STORY, waits=EndWaits(final=0.5)).phase is Phase.DONE
        assert server.heard and server.heard[0].headers["Authorization"] == "Bearer T0KEN-SECRET"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and place not in path.parents]
    assert run.journal in files
    for text in (caplog.text, *(path.read_text() for path in files)):
        assert "SECRET" not in text and "/services/" not in text

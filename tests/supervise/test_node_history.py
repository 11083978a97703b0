"""An operator beside the user's history: what it learns is written once, and never in the run's way."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from transom_cli.core import events as ev
from transom_cli.core.node_hazard import PUBLISHED
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.cadence import Cadence
from transom_cli.core.operator.state import Phase, Policy, Request, State
from transom_cli.health.history import files
from transom_cli.health.history.files import HistoryFile, read_history, write_record
from transom_cli.health.history.records import Attempt, Isolation, Record, RunOver
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator import loop as operator_module
from transom_cli.supervise.operator import node_history as nodebook
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.loop import Operator, Pace
from transom_cli.supervise.operator.node_history import NodeHistory

AT = time.time()
FAULT = ev.NodeFault("n2", "xid", "FAIL", "Xid 79")
NODES = ("n1", "n2", "n3")
STORY: tuple[ev.Event, ...] = (
    ev.Submitted(AT, "submit", 7),
    ev.JobSeen(AT, 7, 0, "RUNNING", nodes=NODES),
    ev.OutcomeSeen(AT + 1, "7.0", "left", "2 of 3 passed", nodes=NODES, cause="preflight", faults=(FAULT,)),
    ev.Isolated(AT + 2, "i1/isolate/n2", "n2", "drained", ""),
    ev.Restarted(AT + 3, "i1/restart", 7, 1, "requeued"),
    ev.JobSeen(AT + 4, 7, 1, "RUNNING", nodes=("n1", "n3", "n4")),
    ev.JobSeen(AT + 3604, 7, 1, "COMPLETED"),
)


class Story:
    """In place of follower, watch and hands: an event a turn, and then the operator is told to leave."""

    in_restart = False

    def __init__(self, events: tuple[ev.Event, ...]) -> None:
        self.events = list(events)
        self.leave = lambda: None

    launcher_lives = False

    def poll(self, state: State, now: float) -> Iterator[ev.Event]:
        if self.events:
            yield self.events.pop(0)
        else:
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "nodes"


def operate(run: RunDir, folder: Path, *story: ev.Event) -> State:
    """One operator's life."""
    told = Story(story)

    def parts(_clock: Clock, _inbox: queue.SimpleQueue[ev.Event], _pace: Pace) -> tuple[Story, Story, Story]:
        return told, told, told

    operator = Operator(run, Lease.take(run), Clock, parts, Pace(Cadence()), [NodeHistory(run, folder)])  # type: ignore[arg-type]
    told.leave = operator.leave
    return operator.run()


def kinds(records: list[Record]) -> list[type[Record]]:
    return [type(r) for r in records]


ALL = [Isolation, Attempt, Attempt, RunOver]


def test_a_run_leaves_its_account(run: RunDir, folder: Path) -> None:
    assert operate(run, folder, *STORY).phase is Phase.DONE
    records = read_history(folder, AT)
    assert kinds(records) == ALL
    isolation = records[0]
    assert isinstance(isolation, Isolation)
    assert (isolation.run, isolation.folder, isolation.node) == ("r1", str(run.path), "n2")


@pytest.mark.parametrize("cut", range(1, len(STORY)))
def test_operators_that_follow_one_another_write_each_thing_once(run: RunDir, folder: Path, cut: int) -> None:
    operate(run, folder, *STORY[:cut])
    operate(run, folder, *STORY[cut:])
    assert kinds(read_history(folder, AT)) == ALL


def test_what_an_operator_could_not_write_any_more_the_next_one_does(
    run: RunDir, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its journal and the history."""
    with monkeypatch.context() as patch:
        patch.setattr(NodeHistory, "seen", lambda *_: None)
        operate(run, folder, *STORY[:5])
    assert not folder.exists()
    operate(run, folder, *STORY[5:])
    assert kinds(read_history(folder, AT)) == ALL


def test_a_history_that_cannot_be_written_ends_no_run_and_is_made_good(run: RunDir, folder: Path) -> None:
    folder.parent.write_text("no folder")
    operate(run, folder, *STORY[:5])
    folder.parent.unlink()
    assert operate(run, folder, *STORY[5:]).phase is Phase.DONE
    assert kinds(read_history(folder, AT)) == ALL


def test_a_record_that_was_refused_is_written_with_the_next_one(run: RunDir, folder: Path) -> None:
    book = NodeHistory(run, folder)
    add, refusals = book._file.add, [OSError(28, "No space left on device")]

    def full_once(records: list[Record]) -> None:
        if refusals:
            raise refusals.pop()
        add(records)

    book._file.add = full_once  # type: ignore[assignment, method-assign]
    state = State(request=Request(num_nodes=3))
    for event in (ev.Started(AT, 1), *STORY):
        before, (state, _) = state, operator_module.step_and_remember(state, event, _Nowhere())  # type: ignore[arg-type]
        book.seen(before, event, state)
    book.close()
    assert kinds(read_history(folder, AT)) == ALL


class _Nowhere:
    def append(self, event: ev.Event, after: State | None = None) -> None: ...


def test_a_home_that_never_answers_holds_up_the_end_no_longer_than_it_may(
    run: RunDir, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodebook, "LAST", 0.2)
    answered = threading.Event()
    monkeypatch.setattr(HistoryFile, "add", lambda self, records: answered.wait(60))
    try:
        assert operate(run, folder, *STORY).phase is Phase.DONE
    finally:
        answered.set()


def test_isolation_hears_what_the_users_other_runs_know(run: RunDir, folder: Path) -> None:
    for wall in (AT - 9000.0, AT - 5000.0):
        write_record(folder, "r", (Attempt(wall, "another", f"5.{wall}", wall - 3600.0, ("n2",), ("n2",)),))
    book = NodeHistory(run, folder)
    hazard, elsewhere = book.of("n2")
    book.close()
    assert elsewhere == 2
    assert hazard is not None and sum(hazard.failures) == sum(PUBLISHED.failures) + 1


@pytest.mark.parametrize("unreadable", [True, False])
def test_isolation_does_not_depend_on_the_history(
    run: RunDir, folder: Path, unreadable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodebook, "PATIENCE", 0.05)
    answered = threading.Event()

    def read(*_: object) -> list[Record]:
        if unreadable:
            raise OSError(5, "Input/output error")
        answered.wait(60)
        return []

    monkeypatch.setattr(nodebook, "read_history", read)
    book = NodeHistory(run, folder)
    try:
        assert book.of("n2") == (None, 0)
    finally:
        answered.set()
        book.close()


def test_an_operator_that_learns_nothing_writes_nothing(run: RunDir, folder: Path) -> None:
    operate(run, folder, STORY[0])
    assert not folder.exists() and not any(t.name == "nodebook" for t in threading.enumerate())


def test_the_sync_is_asked_for(run: RunDir, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files.os, "fsync", synced.append)
    HistoryFile(folder, "r").add([RunOver(AT, "r")])
    assert len(synced) == 1

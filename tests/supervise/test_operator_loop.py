"""The operator's loop around the core: it acts on what is remembered, and no more once it is replaced."""

from __future__ import annotations

import errno
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action
from transom_cli.core.operator.cadence import Cadence
from transom_cli.core.operator.state import Phase, Policy, State
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.supervise import lease as lease_module
from transom_cli.supervise.journal import Journal, JournalError, fold, write_header
from transom_cli.supervise.lease import Lease, read_holder
from transom_cli.supervise.operator import loop as operator_module
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.loop import Operator, Pace

Turn = Callable[[], list[ev.Event]]


class Senses:
    """In place of the files: each turn of the loop takes the next of the story."""

    def __init__(self, story: list[Turn]) -> None:
        self.story = story

    launcher_lives = False

    def poll(self, state: State, now: float) -> Iterator[ev.Event]:
        yield from self.story.pop(0)() if self.story else []


class QuietWatch:
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def look(self, delay: float = 0.0) -> None: ...
    def follow(self, job_id: int, restarts: int, nodes: tuple[str, ...], *_: object) -> None: ...


class Orders:
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.restarting_for = 0  # looks at `in_restart` that still find a requeue under way

    @property
    def in_restart(self) -> bool:
        self.restarting_for -= 1
        return self.restarting_for >= 0

    def remember(self, submissions: object, past: object = ()) -> None:
        pass

    def do(self, action: Action) -> None:
        self.keys.append(action.key)

    def stop(self) -> None: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(operator_module, "TURN", 0.0)
    monkeypatch.setattr(operator_module, "FULL", 0.0)
    run = RunDir(tmp_path)
    write_header(run.journal, Policy(), 2)
    return run


def operate(run: RunDir, *story: Turn) -> tuple[Operator, Orders]:
    orders = Orders()

    def parts(_clock: Clock, _inbox: queue.SimpleQueue[ev.Event], _pace: Pace) -> tuple[Senses, QuietWatch, Orders]:
        return Senses(list(story)), QuietWatch(), orders

    return Operator(run, Lease.take(run), Clock, parts, Pace(Cadence())), orders  # type: ignore[arg-type]


def replace_operator(run: RunDir) -> Lease:
    """What another host's operator does once our lease looks stale from there."""
    told = read_holder(run)
    assert told is not None
    publish_text(run.lease, lease_module.json.dumps(asdict(replace(told, start=told.start - 1))))
    return Lease.take(run)


def trained(at: float = 2e9) -> list[ev.Event]:
    return [ev.Submitted(at, "submit", 7), ev.JobSeen(at, 7, 0, "RUNNING", nodes=("n1", "n2"))]


SILENT = ev.NodeSilent(2e9, "7.0", "n2", 11.0)


def test_a_run_from_submission_to_its_end(run: RunDir) -> None:
    operator, orders = operate(run, trained, lambda: [ev.JobSeen(2e9, 7, 0, "COMPLETED")])
    state = operator.run()
    assert (state.phase, state.exit_code) == (Phase.DONE, 0)
    assert orders.keys == ["submit"]
    holder = read_holder(run)
    assert holder is not None and holder.released
    assert fold(run.journal).state == state


def test_what_is_unanswered_is_ordered_by_the_next_operator(run: RunDir) -> None:
    first, orders = operate(run, lambda: [*trained(), SILENT])
    operator = first
    first._follower.story.append(lambda: operator.leave() or [])  # type: ignore[attr-defined, func-returns-value]
    assert first.run().phase is Phase.STARTING
    assert orders.keys == ["submit", "i1/probe/n2/1"]
    second, orders = operate(run, lambda: second.leave() or [])  # type: ignore[func-returns-value]
    second.run()
    assert orders.keys == ["i1/probe/n2/1"]


def test_a_replaced_operator_leaves_and_acts_no_more(run: RunDir) -> None:
    def replaced_while_looking() -> list[ev.Event]:
        replace_operator(run)
        return [SILENT]

    operator, orders = operate(run, trained, replaced_while_looking, lambda: pytest.fail("it went on"))
    operator.run()
    assert orders.keys == ["submit"], "the probe is the newer operator's"
    holder = read_holder(run)
    assert holder is not None and (holder.epoch, holder.released) == (2, False)


def test_the_last_words_of_a_replaced_operator_do_not_divide_the_journal(run: RunDir) -> None:
    """They come after the new one has made the journal its own: neither it nor the one after it counts them."""
    old = Journal(run.journal, 0)
    second, _ = operate(run, lambda: old.append(SILENT) or trained(), lambda: second.leave() or [])  # type: ignore[func-returns-value]
    state = second.run()
    assert state.job.id == 7 and state.incident is None
    assert fold(run.journal).state == state


def test_words_between_the_taking_and_the_first_turn_count_for_both(run: RunDir) -> None:
    """An old operator may write until the journal is marked: what is read is what stands before the mark."""
    old = Journal(run.journal, 0)
    operator, orders = operate(run, lambda: operator.leave() or [])  # type: ignore[func-returns-value]
    for event in (ev.Started(1.0, 0), *trained(3.0)):
        old.append(event)
    state = operator.run()
    assert state.job.id == 7 and orders.keys == []
    assert fold(run.journal).state == state


def test_nothing_is_done_while_the_disk_is_full(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, orders = operate(run, trained, lambda: [SILENT], lambda: operator.leave() or [])  # type: ignore[func-returns-value]
    append, tries = Journal.append, []

    def full_for_a_while(self: Journal, event: ev.Event, after: State | None = None) -> None:
        if event is SILENT:
            tries.append(list(orders.keys))
            if len(tries) < 4:
                raise JournalError("Cannot write the journal", os.strerror(errno.ENOSPC))
        append(self, event, after)

    monkeypatch.setattr(Journal, "append", full_for_a_while)
    operator.run()
    assert tries == [["submit"]] * 4, "waited, and did nothing meanwhile"
    assert orders.keys == ["submit", "i1/probe/n2/1"]


def test_told_to_leave_with_a_full_disk_it_leaves(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, orders = operate(run, trained, lambda: [SILENT])
    append = Journal.append

    def full(self: Journal, event: ev.Event, after: State | None = None) -> None:
        if event is SILENT:
            operator.leave()
            raise JournalError("Cannot write the journal", os.strerror(errno.ENOSPC))
        append(self, event, after)

    monkeypatch.setattr(Journal, "append", full)
    state = operator.run()
    assert state.incident is None and orders.keys == ["submit"]


def test_a_lease_that_cannot_be_renewed_does_not_end_the_operator(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: Lease) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    operator, _ = operate(run, trained, lambda: [ev.JobSeen(2e9, 7, 0, "COMPLETED")])
    monkeypatch.setattr(Lease, "renew", full)
    monkeypatch.setattr(Lease, "_write", full)
    assert operator.run().phase is Phase.DONE


def test_an_operator_that_cannot_begin_says_why(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, orders = operate(run)

    def full(_self: Journal, _event: ev.Event) -> None:
        raise JournalError("Cannot write the journal", os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(JournalError):
        operator.run()
    assert orders.keys == []


def test_time_never_falls_over_operators() -> None:
    later = Clock(not_before=4e9)
    assert later.now() >= 4e9
    assert later.now() <= later.now()


def test_told_to_leave_in_the_middle_of_a_requeue_it_finishes_that_first(run: RunDir) -> None:
    """Cut off between hold and release, the job would stay held until somebody attaches."""
    seen: list[str] = []
    operator, orders = operate(run, lambda: operator.leave() or [], *(lambda: seen.append("turn") or [],) * 9)  # type: ignore[func-returns-value]
    orders.restarting_for = 3
    operator.run()
    assert len(seen) == 3

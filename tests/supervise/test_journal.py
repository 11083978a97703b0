"""The operator's journal: torn lines, replaced writers, a full disk."""

from __future__ import annotations

import errno
import json
import os
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, State
from transom_cli.core.policy import Rule
from transom_cli.core.progress import Progress
from transom_cli.layout import RUN_FORMAT
from transom_cli.supervise import journal as supervise_journal
from transom_cli.supervise import journal_snapshot
from transom_cli.supervise.journal import (
    Folding,
    Journal,
    JournalError,
    fold,
    read_events,
    step_and_remember,
    write_header,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = tmp_path / "operator.jsonl"
    write_header(journal, Policy(max_without_progress=7), 3)
    return journal


def test_the_header_holds_the_policy(path: Path) -> None:
    state = fold(path).state
    assert (state.policy.max_without_progress, state.request.num_nodes) == (7, 3)


def test_the_header_holds_the_table_of_rules(tmp_path: Path) -> None:
    rules = (Rule("oom", "relaunch", category=("cuda_oom",), budget=2, within=60.0, then="stop", source="run.toml"),)
    write_header(tmp_path / "j", Policy(rules=rules), 3)
    assert fold(tmp_path / "j").state.policy.rules == rules


def test_a_journal_without_a_table_is_read_as_it_was_written(path: Path) -> None:
    header, *rest = path.read_text().splitlines()
    old = json.loads(header)
    del old["policy"]["rules"]
    path.write_text("\n".join([json.dumps(old), *rest]) + "\n")
    assert fold(path).state.policy == Policy(max_without_progress=7)


def test_a_journal_is_begun_once(path: Path) -> None:
    with pytest.raises(FileExistsError):
        write_header(path, Policy(), 1)


def test_every_cut_of_the_last_line_is_passed_over(path: Path) -> None:
    journal = Journal(path, 1)
    journal.append(ev.Started(1.0, 1))
    whole = path.stat().st_size
    journal.append(ev.Submitted(2.0, "submit", 7))
    journal.close()
    data = path.read_bytes()
    for size in range(whole, len(data) - 1):
        path.write_bytes(data[:size])
        assert [type(e) for e in read_events(path)] == [ev.Started], size
        late = Journal(path, 2)  # the next operator's own line is kept apart from the torn one
        late.append(ev.Started(3.0, 2))
        late.close()
        assert [e.at for e in read_events(path)] == [1.0, 3.0], size
    path.write_bytes(data[:-1])  # all but the newline: the record is whole
    assert fold(path).state.job.id == 7


def test_a_replaced_writer_does_not_count(path: Path) -> None:
    old, new = Journal(path, 1), Journal(path, 2)
    old.append(ev.Started(1.0, 1))
    new.append(ev.Started(2.0, 2))
    old.append(ev.Submitted(3.0, "submit", 666))
    new.append(ev.Submitted(4.0, "submit", 7))
    folded = fold(path)
    assert (folded.state.job.id, folded.state.epoch, folded.last_at) == (7, 2, 4.0)
    assert len(read_events(path)) == 3


def test_only_what_changes_something_is_kept(path: Path) -> None:
    journal = Journal(path, 1)
    state, _ = step_and_remember(State(), ev.Started(1.0, 1), journal)
    size = path.stat().st_size
    assert step_and_remember(state, ev.Tick(2.0), journal) == (state, ())
    assert path.stat().st_size == size


def test_a_full_disk_and_then_room(path: Path) -> None:
    """A real short write, by a limit on the size of files: the error is told, and the next try is whole."""
    journal = Journal(path, 1)
    journal.append(ev.Started(1.0, 1))
    before = State()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        with pytest.raises(JournalError, match="Cannot write the journal"):
            step_and_remember(before, ev.Started(2.0, 1), journal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.read_bytes().endswith(b"\n"), "the write was to be cut short"
    journal.append(ev.Submitted(3.0, "submit", 7))
    assert [e.at for e in read_events(path)] == [1.0, 3.0]


def test_what_cannot_be_synced_is_not_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path, 1)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalError) as caught:
        journal.append(ev.Started(1.0, 1))
    assert "No space left on device" in caught.value.why


def test_a_missing_or_foreign_journal_is_told(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="Cannot read the journal"):
        fold(tmp_path / "none.jsonl")
    with pytest.raises(JournalError, match="Cannot open the journal"):
        Journal(tmp_path / "none" / "x.jsonl", 1)
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"type": "Something"}\n')
    with pytest.raises(JournalError, match="is not a journal of transom"):
        fold(foreign)


@pytest.mark.parametrize(
    ("header", "whose", "use"),
    [
        ({"schema": 1}, "an older, incompatible version", "use the transom that created it"),
        ({"format": 1, "transom": "0.0.9"}, "an older, incompatible version", "use transom 0.0.9"),
        ({"format": 99, "transom": "9.9.9"}, "a newer version", "use transom 9.9.9"),
    ],
)
def test_run_of_an_incompatible_version_is_refused_with_what_to_do(
    tmp_path: Path, header: dict[str, object], whose: str, use: str
) -> None:
    journal = tmp_path / "operator.jsonl"
    journal.write_text(json.dumps({"type": "Header", **header}) + "\n")
    with pytest.raises(JournalError) as raised:
        fold(journal)
    assert whose in raised.value.what and tmp_path.name in raised.value.what
    assert f"reads format {RUN_FORMAT}" in raised.value.why
    assert use in raised.value.hint and f"{tmp_path}/checkpoints" in raised.value.hint


def test_a_record_of_an_unknown_kind_is_told(path: Path) -> None:
    with path.open("a") as f:
        f.write(json.dumps({"epoch": 1, "type": "Teleported", "at": 1.0}) + "\n")
    with pytest.raises(JournalError) as caught:
        fold(path)
    assert "Teleported" in caught.value.why


def without_progress(state: State) -> State:
    return replace(state, progress=Progress())


steps = st.builds(
    ev.StepSeen, st.just(5.0), st.sampled_from(["7.0", "7.1"]), st.integers(0, 9), st.sampled_from([False, False, True])
)
checkpoints = st.builds(ev.CheckpointSeen, st.floats(5.0, 500.0), st.integers(0, 9))
others = st.sampled_from(
    [
        ev.JobSeen(5.0, 7, 0, "RUNNING", nodes=("n1", "n2")),
        ev.JobSeen(5.0, 7, 1, "PENDING"),
        ev.JobSeen(5.0, 7, 1, "RUNNING", nodes=("n1", "n3")),
        ev.LaunchSeen(5.0, "7.0", 0, ("n1", "n2"), 2),
        ev.LaunchSeen(5.0, "7.0", 1, ("n1", "n2"), 2),
        ev.RecoverySeen(5.0, "7.0", "l1", "seen", "a rank died"),
        ev.RecoverySeen(5.0, "7.0", "l1", "rolled_back", "an older checkpoint", durable=2),
        ev.SavesSeen(5.0, "7.0", 2, 5, "no space", 4),
        ev.SavesSeen(5.0, "7.0", 0),
        ev.Stalled(5.0, "7.0", ev.Stall(3, 40.0, 30.0, (0,), ("n1",))),
        ev.StallEnded(5.0, "7.0"),
        ev.OutcomeSeen(5.0, "7.1", "failed", "why"),
        ev.Tick(400.0),
        ev.StopRequested(5.0, "ada"),
    ]
)
START = (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7))
anything = st.lists(steps | checkpoints | others, max_size=40)


@given(anything)
def test_a_row_of_steps_and_checkpoints_is_played_as_its_newest(events: list[ev.Event]) -> None:
    """A reader of each event has each of them played; the state that comes out is the same."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(supervise_journal, "FREQUENT", 2):
        path = Path(folder) / "operator.jsonl"
        write_header(path, Policy(), 2)
        journal = Journal(path, 1)
        for event in (*START, *events):
            journal.append(event)
        journal.close()
        each: list[tuple[ev.Event, State]] = []
        one_by_one = fold(path, lambda _before, event, after: each.append((event, after)))
        assert fold(path) == one_by_one and tuple(event for event, _ in each) == read_events(path)
        rows: list[tuple[ev.Event, State]] = []
        assert fold(path, lambda _before, event, after: rows.append((event, after)), each_step=False) == one_by_one
        kept = [(e, without_progress(s)) for e, s in rows if not isinstance(e, ev.CheckpointSeen)]
        assert kept == [(e, without_progress(s)) for e, s in each if not isinstance(e, ev.CheckpointSeen)]
        assert {e for e, _ in rows} <= {e for e, _ in each}


class Writer:
    """An operator that writes a snapshot after each event."""

    def __init__(self, path: Path, epoch: int) -> None:
        self.path, self.journal = path, Journal(path, epoch)
        self.journal.append(ev.Started(1.0, epoch))
        folded = fold(path, lambda *_: None)
        self.state, self.journal.snapshots = folded.state, journal_snapshot.SnapshotWriter(folded)

    def hear(self, event: ev.Event) -> None:
        assert self.journal.snapshots is not None
        self.journal.snapshots._due = 0
        self.state, actions = step_and_remember(self.state, event, self.journal)
        assert not actions or fold(self.path).state == self.state, "what led to the actions is in the journal"


@settings(max_examples=30)
@given(anything, anything, st.integers(0, 3))
def test_what_is_held_back_and_snapshots_change_no_state(
    first: list[ev.Event], then: list[ev.Event], torn: int
) -> None:
    """Two operators, the first one killed: reading from any snapshot gives the same as from the beginning."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(supervise_journal, "FREQUENT", 2):
        path = Path(folder) / "operator.jsonl"
        write_header(path, Policy(), 2)
        reader = Folding(path)
        for epoch, events in ((1, [*START[1:], *first]), (2, then)):
            operator = Writer(path, epoch)
            for event in events:
                operator.hear(event)
            whole = fold(path, lambda *_: None)
            assert (fold(path), reader.more()) == (whole, whole)
            with path.open("a") as file:
                file.write('{"epoch": 1, "type": "Ste'[:torn])
            assert fold(path) == whole
        operator.journal.close()
        assert fold(path).state == operator.state


def trained(path: Path) -> Writer:
    """A run that trains, with a snapshot."""
    operator = Writer(path, 1)
    for event in (*START[1:], ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",)), ev.StepSeen(4.0, "7.0", 1)):
        operator.hear(event)
    assert journal_snapshot.read_snapshot(path) is not None
    return operator


def test_checkpoints_of_a_minute_are_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_journal, "FREQUENT", 0)
    operator = trained(path)
    for n in range(1, 60):
        operator.hear(ev.CheckpointSeen(10.0 * n, n))
    seen = [e.step for e in read_events(path) if isinstance(e, ev.CheckpointSeen)]
    assert seen == [1, 7, 13, 19, 25, 31, 37, 43, 49, 55]
    operator.hear(ev.Tick(1000.0))
    assert fold(path).state.progress.durable == 59, "a tick writes what was held back for a minute"


def test_checkpoint_is_written_before_what_decides_about_a_restart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_journal, "FREQUENT", 0)
    operator = trained(path)
    for event in (ev.CheckpointSeen(10.0, 1), ev.CheckpointSeen(20.0, 2), ev.OutcomeSeen(21.0, "7.0", "failed", "x")):
        operator.hear(event)
    assert [type(e).__name__ for e in read_events(path)[-3:]] == ["CheckpointSeen", "CheckpointSeen", "OutcomeSeen"]
    assert fold(path).state == operator.state


def test_snapshot_is_read_in_place_of_the_lines_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(path).journal.append(ev.StepSeen(5.0, "7.0", 2))
    played: list[ev.Event] = []
    monkeypatch.setattr(supervise_journal, "decide", lambda state, event: played.append(event) or decide(state, event))
    assert fold(path).state.progress.step == 2
    assert played == [ev.StepSeen(5.0, "7.0", 2)]


@pytest.mark.parametrize("foreign", ["version", "line", "torn", "cut"])
def test_snapshot_that_does_not_belong_to_the_journal_is_not_used(path: Path, foreign: str) -> None:
    trained(path)
    whole = fold(path, lambda *_: None)
    snapshot = journal_snapshot.snapshot_path(path)
    found = json.loads(snapshot.read_text())
    found["state"]["progress"]["step"] = 999
    found |= {"version": {"transom": "0.0.1"}, "line": {"last": found["last"].replace("7.0", "7.1")}}.get(foreign, {})
    snapshot.write_text(json.dumps(found)[: -1 if foreign == "torn" else None])
    if foreign == "cut":
        path.write_text(path.read_text().rpartition("\n{")[0] + "\n")
        whole = fold(path, lambda *_: None)
    assert fold(path).state == whole.state


def test_replaced_operator_writes_no_snapshot(path: Path) -> None:
    operator = trained(path)
    known = journal_snapshot.read_snapshot(path)
    Journal(path, 2).append(ev.Started(5.0, 2))
    operator.hear(ev.StepSeen(6.0, "7.0", 5))
    assert journal_snapshot.read_snapshot(path) == known
    assert fold(path) == fold(path, lambda *_: None)

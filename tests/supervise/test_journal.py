"""The operator's journal: torn lines, replaced writers, a full disk."""

from __future__ import annotations

import errno
import json
import os
import resource
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.operator.state import Policy, State
from transom_cli.core.policy import Rule
from transom_cli.layout import RUN_FORMAT
from transom_cli.supervise.journal import Journal, JournalError, fold, step_and_remember, write_header


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
        assert [type(e) for e in fold(path).events] == [ev.Started], size
        late = Journal(path, 2)  # the next operator's own line is kept apart from the torn one
        late.append(ev.Started(3.0, 2))
        late.close()
        assert [e.at for e in fold(path).events] == [1.0, 3.0], size
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
    assert len(folded.events) == 3


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
    assert [e.at for e in fold(path).events] == [1.0, 3.0]


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


def with_steps_of(state: State, other: State) -> State:
    steps = replace(other.progress, step=state.progress.step, max_step=state.progress.max_step)
    return replace(other, progress=steps)


seen_steps = st.builds(ev.StepSeen, st.just(5.0), st.sampled_from(["7.0", "7.1"]), st.integers(0, 9))
seen_others = st.sampled_from(
    [
        ev.JobSeen(5.0, 7, 0, "RUNNING", nodes=("n1", "n2")),
        ev.JobSeen(5.0, 7, 1, "PENDING"),
        ev.JobSeen(5.0, 7, 1, "RUNNING", nodes=("n1", "n3")),
        ev.LaunchSeen(5.0, "7.0", 0, ("n1", "n2"), 2),
        ev.LaunchSeen(5.0, "7.0", 1, ("n1", "n2"), 2),
        ev.HealSeen(5.0, "7.0", "l1", "seen", "a rank died"),
        ev.CheckpointSeen(5.0, 4),
        ev.Stalled(5.0, "7.0", ev.Stall(3, 40.0, 30.0, (0,), ("n1",))),
        ev.StallEnded(5.0, "7.0"),
        ev.OutcomeSeen(5.0, "7.1", "failed", "why"),
        ev.StopRequested(5.0, "ada"),
    ]
)


@given(st.lists(seen_steps | seen_others, max_size=40))
def test_a_row_of_steps_is_played_as_its_newest(events: list[ev.Event]) -> None:
    """Whoever is told of each event has each of them played; the state that comes out is the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operator.jsonl"
        write_header(path, Policy(), 2)
        journal = Journal(path, 1)
        for event in (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7), *events):
            journal.append(event)
        journal.close()
        told: list[tuple[ev.Event, State]] = []
        one_by_one = fold(path, lambda _before, event, after: told.append((event, after)))
        assert fold(path) == one_by_one and tuple(event for event, _ in told) == one_by_one.events
        rows: list[tuple[ev.Event, State]] = []
        assert fold(path, lambda _before, event, after: rows.append((event, after)), each_step=False) == one_by_one
        assert rows == [(e, with_steps_of(r, s)) for (e, s), (_, r) in zip(told, rows, strict=True)]

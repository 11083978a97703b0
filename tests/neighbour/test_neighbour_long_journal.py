"""Long journals and many runs, counted in bytes and file calls: they grow with what happens, not with time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from transom_cli.core import events as ev
from transom_cli.core.codec import event_to_json
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.supervise import journal as supervise_journal
from transom_cli.supervise import journal_snapshot
from transom_cli.supervise.journal import Journal, fold, step_and_remember, write_header
from transom_cli.supervise.journal_snapshot import SnapshotWriter
from transom_cli.supervise.record_reader import read_run_record

DAY = 86400
TRAINS = (
    ev.Started(1.0, 1),
    ev.Submitted(2.0, "submit", 7),
    ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1",)),
    ev.LaunchSeen(4.0, "7.0", 0, ("n1",), 1),
    ev.StepSeen(5.0, "7.0", 1),
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "r-20261122-065825-c382")
    run.attempts.mkdir(parents=True)
    run.settings.write_text("")
    write_header(run.journal, Policy(), 1)
    return run


def test_day_with_a_checkpoint_every_ten_seconds_is_read_in_little_memory(run: RunDir) -> None:
    """As older operators wrote it: a line for each checkpoint."""
    with run.journal.open("a") as file:
        for event in TRAINS:
            file.write(json.dumps({"epoch": 1, **event_to_json(event)}) + "\n")
        for n in range(1, 5 * DAY // 10):
            file.write(json.dumps({"epoch": 1, **event_to_json(ev.CheckpointSeen(10.0 * n, n))}) + "\n")
    size = run.journal.stat().st_size
    tracemalloc.start()
    try:
        book = read_run_record(run, now=1e6)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert book.state.progress.durable == 5 * DAY // 10 - 1
    assert len(book.events) < 5 * DAY // 60 + 200, "one checkpoint a minute, after the first ones"
    assert peak < 2 * supervise_journal.BLOCK + 3 * size, "blocks are read, not the file and its records at once"


def test_state_of_a_long_run_is_read_from_the_end_of_its_journal(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_snapshot, "GROWTH", 4096)
    journal = Journal(run.journal, 1)
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)
    journal.append(TRAINS[0])
    folded = fold(run.journal)
    state, journal.snapshots = folded.state, SnapshotWriter(folded)
    for event in (*TRAINS[1:], *(ev.StepSeen(60.0 * n, "7.0", 30 * n) for n in range(1, 1000))):
        state, _ = step_and_remember(state, event, journal)
    known = journal_snapshot.read_snapshot(run.journal)
    assert known is not None and run.journal.stat().st_size - known.size < 10_000 < known.size
    assert fold(run.journal) == fold(run.journal, lambda *_: None)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_listing_costs_one_file_call_for_each_older_run(tmp_path: Path, run: RunDir) -> None:
    events = (*TRAINS, ev.OutcomeSeen(6.0, "7.0", "done", ""), ev.JobSeen(7.0, 7, 0, "COMPLETED", exit_code=0))
    with run.journal.open("a") as file:
        file.writelines(json.dumps({"epoch": 1, **event_to_json(event)}) + "\n" for event in events)
    counts = []
    for number in (25, 125):
        for n in range(number):
            shutil.copytree(run.path, tmp_path / "runs" / f"r-20261101-{n:06d}-c382", dirs_exist_ok=True)
        words = [sys.executable, "-m", "transom_cli", "list", "--root", str(tmp_path / "runs")]
        subprocess.run(words, check=True, capture_output=True)  # writes the summaries
        traced = ["strace", "-f", "-qq", "-e", "trace=%file", *words]
        lines = subprocess.run(traced, capture_output=True, text=True, check=False).stderr.splitlines()
        counts.append(sum(str(tmp_path / "runs") in line for line in lines))
    if not counts[0]:
        pytest.skip("nothing can be traced here")
    assert counts[1] - counts[0] == 100

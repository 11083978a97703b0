"""The attempts of runs, beside what accounting has of them: of recorded runs, of made ones, and at any width."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import transom_cli.view
from transom_cli.core import events as ev
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, Start
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.record_reader import read_run_record
from transom_cli.supervise.run_record import NO_OUTCOME, AttemptSummary, attempt_summaries, job_ids
from transom_cli.view.attempts import Accounting, Row, attempt_lines, attempt_rows, attempts_document
from transom_cli.view.text import cells, plain

RECORDED = Path(__file__).parent / "recorded"
SCHEMA = json.loads((Path(transom_cli.view.__file__).parent / "schema" / "attempts.json").read_text())
NOW = 2e9
SILENT = Accounting(None, "Slurm accounting storage is disabled")
NODES = ("n1", "n2", "n3")
FIRST = AttemptSummary("7.0", 1000.0, 1100.0, NODES, ((0, 1001.0), (1, 1050.0)), "failed", "no answer from n2", 1)
SECOND = AttemptSummary("7.1", 1130.0, 1200.0, ("n1", "n3", "n4"), ((0, 1131.0),), "done", "all well", 0)
REQUEUED = Start(7, JobState.PENDING, None, None, NODES, 998.0, 1110.0)
COMPLETED = Start(7, JobState.COMPLETED, 0, 0, ("n1", "n3", "n4"), 1128.0, 1201.0)


def told(name: str) -> tuple[AttemptSummary, ...]:
    return attempt_summaries(read_run_record(RunDir(RECORDED / name), now=NOW))


def screen(rows: tuple[Row, ...], accounting: Accounting, width: int | None = 80) -> list[str]:
    return [
        plain(one) for one in attempt_lines("demo", rows, accounting, NOW, width, lambda uid: "ann" if uid else "root")
    ]


def rows_of(*starts: Start, attempts: tuple[AttemptSummary, ...] = (FIRST, SECOND)) -> tuple[Row, ...]:
    return attempt_rows("demo", attempts, Accounting(starts), 990.0, NOW)


def test_a_node_that_died_and_a_rank_that_was_killed() -> None:
    first, second = told("node_killed")
    assert (first.name, first.status, first.nodes) == ("11.0", "failed", ("node1", "node2", "node3"))
    assert first.incident == "i1" and first.incident_words.startswith("node2 lost: ")
    assert (second.name, second.status, second.words) == ("11.1", "done", "every rank ended with exit code 0")
    (one,) = told("rank_killed")
    assert [number for number, _ in one.launches] == [0, 1] and one.status == "done" and not one.runs
    assert job_ids(read_run_record(RunDir(RECORDED / "node_killed"), now=NOW)) == (11,)


def test_where_both_agree_nothing_differs() -> None:
    rows = rows_of(REQUEUED, COMPLETED)
    assert [row.differences for row in rows] == [(), ()]
    drawn = screen(rows, Accounting((REQUEUED, COMPLETED)))
    assert drawn[2].split() == ["ATTEMPT", "BEGAN", "FOR", "NODES", "LAUNCHES", "SLURM"]
    assert drawn[3].split()[-5:] == ["1m", "40s", "3", "2", "REQUEUED"]
    assert drawn[4:6] == ["   on n[1-3]", "   failed: no answer from n2"]
    assert drawn[6].endswith("COMPLETED") and drawn[7:] == ["   on n[1,3-4]", "   done: all well"]


def test_without_accounting_the_runs_own_record_stands_alone() -> None:
    rows = attempt_rows("demo", (FIRST, SECOND), SILENT, 990.0, NOW)
    assert [row.attempt for row in rows] == [FIRST, SECOND] and not any(row.differences for row in rows)
    drawn = screen(rows, SILENT)
    assert "SLURM" not in drawn[2]
    assert drawn[-1] == "no answer from Slurm's accounting: Slurm accounting storage is disabled"


@pytest.mark.parametrize(
    ("start", "differs"),
    [
        (replace(COMPLETED, state=JobState.FAILED, exit_code=3), "the run has done, accounting has FAILED 3:0"),
        (replace(COMPLETED, state=JobState.CANCELLED, by=1000), "the run has done, accounting has CANCELLED by 1000"),
        (replace(COMPLETED, nodes=("n1", "n9")), "the run has n[1,3-4], accounting has n[1,9]"),
        (replace(COMPLETED, state=JobState.RUNNING, ended=None), "the run has an end, accounting has RUNNING"),
        (replace(COMPLETED, began=5000.0, ended=6000.0), "accounting has no such start"),
    ],
)
def test_what_differs_is_said(start: Start, differs: str) -> None:
    rows = rows_of(REQUEUED, start)
    assert rows[1].differences == (differs,)
    assert f"   differs: {differs}" in screen(rows, Accounting((REQUEUED, start)))


def test_exit_codes_and_an_end_that_the_run_has_not_heard_of() -> None:
    failed = replace(REQUEUED, state=JobState.FAILED, exit_code=2, exit_signal=0)
    assert rows_of(failed)[0].differences == ("the launcher ended with exit code 1, accounting has 2",)
    assert rows_of(replace(failed, exit_code=1))[0].differences == ()
    runs = AttemptSummary("7.0", 1000.0, nodes=NODES, words="it runs", runs=True)
    cancelled = replace(REQUEUED, state=JobState.CANCELLED, by=0)
    (row,) = rows_of(cancelled, attempts=(runs,))
    assert row.differences == ("the run has no end, accounting has CANCELLED by 0",)
    assert rows_of(replace(REQUEUED, state=JobState.RUNNING, ended=None), attempts=(runs,))[0].differences == ()


def test_accounting_hears_of_things_late() -> None:
    running = replace(COMPLETED, state=JobState.RUNNING, ended=None)
    (_, second) = attempt_rows("demo", (FIRST, SECOND), Accounting((REQUEUED, running)), 990.0, 1201.0)
    assert second.differences == ()
    (first, second) = attempt_rows("demo", (FIRST, SECOND), Accounting((REQUEUED,)), 990.0, 1135.0)
    assert (first.differences, second.start, second.differences) == ((), None, ())


def test_what_accounting_alone_knows_stands_in_its_place() -> None:
    between = Start(7, JobState.FAILED, 1, 0, ("n9",), 1112.0, 1113.0)
    never = Start(8, JobState.CANCELLED, 0, 0, (), None, 1300.0, 0)
    rows = rows_of(REQUEUED, between, COMPLETED, never)
    assert [row.start for row in rows] == [REQUEUED, between, COMPLETED, never]
    drawn = screen(rows, Accounting(()))
    assert "   the run has no record of this start" in drawn and "   cancelled before it could start" in drawn
    assert any(one.endswith("CANCELLED by root") for one in drawn)


def test_a_start_that_was_written_over_is_explained() -> None:
    both = Start(7, JobState.COMPLETED, 0, 0, NODES, 998.0, 1201.0, resized=(1105.0,))
    rows = rows_of(both)
    assert [row.differences for row in rows] == [(), ()]
    drawn = screen(rows, Accounting((both,)))
    assert drawn[3].endswith("RESIZED") and drawn[-2].startswith("RESIZED: the job gave up nodes")


class Journaled:
    """A run known from its operator's journal alone, as one of a user's own script is."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        write_header(run.journal, Policy(), 2)
        self.tell(ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7))
        self.tell(ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1", "n2")))

    def tell(self, *events: ev.Event) -> tuple[AttemptSummary, ...]:
        journal = Journal(self.run.journal, 1)
        for event in events:
            journal.append(event)
        journal.close()
        return attempt_summaries(read_run_record(self.run, now=NOW))


def test_of_a_script_of_the_users_own_the_operator_tells(tmp_path: Path) -> None:
    made = Journaled(RunDir(tmp_path))
    (one,) = made.tell()
    assert (one.name, one.began, one.ended, one.nodes) == ("7.0", 3.0, None, ("n1", "n2"))
    assert one.runs and one.words == "it runs" and one.launches == ()
    pending = ev.JobSeen(50.0, 7, 1, "PENDING", reason="BeginTime")
    (one,) = made.tell(pending)
    assert (one.ended, one.runs, one.words) == (50.0, False, NO_OUTCOME)
    first, second = made.tell(ev.JobSeen(60.0, 7, 1, "RUNNING", nodes=("n3", "n4")))
    assert (first.ended, second.began, second.nodes) == (50.0, 60.0, ("n3", "n4"))
    cancelled = ev.JobGone(90.0, 7, ended="CANCELLED", by="ann", source="accounting")
    assert (made.tell(cancelled)[1].ended, made.tell()[1].runs) == (90.0, False)
    assert made.tell()[1].words == "the job was cancelled in Slurm by ann (scancel), according to accounting"


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.iterdir()))
@pytest.mark.parametrize("asked", [False, True])
def test_a_document_is_what_its_schema_says(name: str, asked: bool) -> None:
    attempts = told(name)
    starts = tuple(
        Start(one.number[0], JobState.CANCELLED, 0, 15, one.nodes[:1], one.began, one.ended, 0) for one in attempts
    )
    accounting = Accounting((*starts, Start(99, JobState.CANCELLED, 0, 0, (), None, NOW, 0))) if asked else SILENT
    made = json.loads(
        json.dumps(attempts_document(name, attempt_rows("demo", attempts, accounting, 0.0, NOW), accounting, str))
    )
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(made)
    assert made.keys() == SCHEMA["properties"].keys()
    described = SCHEMA["properties"]["attempts"]["items"]["properties"]
    assert all(one.keys() == described.keys() for one in made["attempts"])
    found = [one["slurm"] for one in made["attempts"] if one["slurm"]]
    assert all(one.keys() == described["slurm"]["properties"].keys() for one in found) and bool(found) == asked


texts = st.text(st.sampled_from(string.ascii_letters + "  .,:'[]@\x1b\n\t\u202e日"), max_size=120)
moments = st.none() | st.floats(1.0, 2e9)
some_nodes = st.lists(texts, max_size=4).map(tuple)
any_told = st.builds(
    AttemptSummary,
    st.builds("{}.{}".format, st.integers(1, 99), st.integers(0, 3)),
    moments,
    moments,
    some_nodes,
    st.lists(st.tuples(st.integers(0, 9), st.floats(1.0, 2e9)), max_size=2).map(tuple),
    st.sampled_from(("", "done", "failed", "left", "stopped")),
    texts,
    st.none() | st.integers(0, 255),
    st.booleans(),
    st.sampled_from(("", "i1")),
    texts,
)
any_start = st.builds(
    Start,
    st.integers(1, 99),
    st.sampled_from(JobState),
    st.none() | st.integers(0, 255),
    st.none() | st.integers(0, 64),
    some_nodes,
    moments,
    moments,
    st.none() | st.integers(0, 2000),
)


@settings(max_examples=150)
@given(
    st.lists(any_told, max_size=4, unique_by=lambda one: one.name),
    st.lists(any_start, max_size=4),
    st.integers(20, 120),
)
def test_any_attempt_at_any_width(attempts: list[AttemptSummary], starts: list[Start], width: int) -> None:
    for accounting in (Accounting(tuple(starts)), Accounting(None, "\x1b[2J gone\n")):
        rows = attempt_rows("demo", attempts, accounting, 0.0, NOW)
        assert {id(row.attempt) for row in rows if row.attempt is not None} == {id(one) for one in attempts}
        drawn = screen(rows, accounting, width)
        assert all(one.isprintable() and cells(one) <= width for one in drawn)
        assert all(one.isprintable() for one in screen(rows, accounting, None))
        json.dumps(attempts_document("demo", rows, accounting, str), allow_nan=False)

"""Ranks with the same evidence share an entry, and a long timeline is cut."""

from __future__ import annotations

from pathlib import Path

from transom_cli.core.incident import Incident, Mark, Stage
from transom_cli.layout import RunDir
from transom_cli.supervise.record_reader import read_run_record
from transom_cli.view.evidence import MARKS, STACKS, bounded, grouped, ranges
from transom_cli.view.timeline import build_timeline, timeline_lines

RECORDED = Path(__file__).parent / "recorded" / "stopped"
STACK = "state S, in poll (libc.so.6) < all_reduce (distributed.py:2501)"


def stacks(count: int, stack: str = STACK) -> list[Mark]:
    return [Mark(float(rank), "evidence", f"rank {rank} on n{rank // 8}, {stack}") for rank in range(count)]


def test_same_stack_of_many_ranks_is_one_entry() -> None:
    odd = Mark(9.0, "evidence", "rank 9 on n1, state R, in forward (train.py:3)")
    marks = [Mark(0.0, "seen", "no step"), *(odd if n == 9 else mark for n, mark in enumerate(stacks(64)))]
    assert [mark.words for mark in grouped(marks)] == [
        "no step",
        f"ranks 0-8, 10-63 on n0, n1, n2 and 5 more: {STACK}",
        odd.words,
    ]


def test_one_rank_and_other_evidence_stay_as_they_are() -> None:
    marks = [*stacks(1), *stacks(1), Mark(1.0, "evidence", "... and 3 more"), Mark(2.0, "examined", "rank 0 on n, x")]
    assert [mark.words for mark in grouped(marks)] == [f"rank 0 on n0, {STACK}", *(m.words for m in marks[2:])]


def test_ranges() -> None:
    assert [ranges(one) for one in ([3], [0, 1], [0, 2, 3, 4, 9])] == ["3", "0-1", "0, 2-4, 9"]
    assert ranges(range(0, 100, 2)).endswith("30 and 34 more")


def test_long_incident_is_cut_and_says_what_shows_the_rest() -> None:
    evidence = [Mark(1.0, "evidence", f"rank {n} on n1, in f (train.py:{n})") for n in range(40)]
    steps = [Mark(float(n), "probed", f"probe {n}") for n in range(500)]
    shown = bounded([*evidence, *steps], "C")
    assert len(shown) == MARKS + 1 and sum(mark.what == "evidence" for mark in shown) == STACKS + 1
    assert shown[STACKS].words == f"{40 - STACKS} more stacks; `C` shows them"
    assert [mark.words for mark in shown if mark.what == "left_out"] == ["413 entries left out; `C` shows them"]
    assert shown[-1] == steps[-1]


def test_explain_shows_everything_only_with_full() -> None:
    evidence = tuple(Mark(1.0, "evidence", f"rank {n} on n1, in f (train.py:{n})") for n in range(40))
    marks = (Mark(1.0, "seen", "no step"), *evidence)
    incident = Incident("i1", 7, 0, 1.0, -1, Stage.CLOSED, marks=marks, result="recovered")
    book = read_run_record(RunDir(RECORDED), now=2e9)
    short, full = (timeline_lines(build_timeline(incident, book, full=full)) for full in (False, True))
    assert any("28 more stacks; `transom explain stopped i1 --full` shows them" in line for line in short)
    stacks = [sum(" seen " in line and "train.py" in line for line in lines) for lines in (short, full)]
    assert stacks == [STACKS, 40]

"""The stories of incidents: of recorded runs, and of one whose operator was away."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.events import Decided
from transom_cli.core.goodput import Kind
from transom_cli.core.incident import Diagnosis, Incident, Mark
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.record_reader import read_run_record
from transom_cli.supervise.run_record import RunRecord, incidents
from transom_cli.view.timeline import build_timeline, held_lines, timeline_document, timeline_lines

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.name for path in RECORDED.iterdir())
EMPTY = read_run_record(RunDir(RECORDED / "stopped"), now=2e9)


def told(name: str, width: int = 10_000, gpus: int = 0) -> list[str]:
    book = read_run_record(RunDir(RECORDED / name), now=2e9, gpus=gpus)
    return [line for one in incidents(book) for line in timeline_lines(build_timeline(one, book), width)]


def words(lines: list[str]) -> list[str]:
    """Without the clock, which shows the zone of whoever looks."""
    return [re.sub(r"^(  )\d\d:\d\d:\d\d", r"\1--:--:--", line) for line in lines]


def test_a_node_that_died_is_told_from_its_silence_to_the_next_step() -> None:
    lines = words(told("node_killed", gpus=8))
    assert lines[0] == "i1  node2 lost  drained, back in 9.4 s"
    assert lines[1].endswith(", attempt 11.0, slurm_node_fail")
    assert lines[2:6] == [
        "  evidence  127.0.0.1:31483: no slurmd listens on it ([Errno 111] Connection refused)",
        "  cost      15 s: detection 5.6 s, restart 6.1 s, preflight 1.2 s, queue 2.2 s; 5.1 GPU-minutes",
        "  steps     last step before it: 20; no step lost",
        "  --:--:--            seen     no step for 5.6 s (limit 5.4 s) after step 20, ranks 1 stand out",
    ]
    assert lines[-7:] == [
        "  --:--:--    +1.1 s  seen     probed again, same result",
        "  --:--:--            decided  taken as the cause: node2 lost",
        "  --:--:--    +0.2 s  done     node2 drained",
        "  --:--:--    +2.6 s  done     job requeued without node2",
        "  --:--:--    +2.2 s  done     job runs on 3 nodes",
        "  --:--:--    +1.5 s  done     training step started: 3 ranks on 3 nodes",
        "  --:--:--    +0.4 s  done     step 21 done",
    ]


def test_what_ends_a_run_says_so_once() -> None:
    lines = words(told("user_error"))
    assert lines[-1] == "  --:--:--    +0.2 s  done     stopping the run because of this"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_asked_and_no_word_is_lost(name: str, width: int) -> None:
    narrow, wide = told(name, width), told(name)
    assert all(len(line) <= width for line in narrow)
    assert "".join("".join(narrow).split()) == "".join("".join(wide).split())


def hostile(text: str) -> Incident:
    diagnosis = Diagnosis("x", text, (text,), True, "none", True, decided=Decided(category=text))
    return Incident("i1", 7, 0, 5.0, 3, marks=(Mark(5.0, text, text),), diagnosis=diagnosis)


def test_a_hostile_log_line_reaches_no_terminal() -> None:
    book = read_run_record(RunDir(RECORDED / "stopped"), now=2e9)
    for width in (60, 10_000):
        lines = timeline_lines(build_timeline(hostile("\x1b[2Jgone\nroot#\t\x07" * 5), book), width)
        assert all(line.isprintable() for line in lines) and any("\\x1b[2Jgone" in line for line in lines)


class Alone:
    """A run whose operator left at second 10; two faults that its launcher handled, and a third that it did not."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        write_header(run.journal, Policy(), 2)
        journal = Journal(run.journal, 1)
        for event in (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7)):
            journal.append(event)
        journal.append(ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("n1", "n2")))
        journal.close()
        self.attempt = run.attempt(7, 0)
        self.attempt.path.mkdir(parents=True)
        self.write("attempt", 4.0, -1, nodes=["n1", "n2", "n3"])
        self.write("launch", 5.0, 0, nodes=["n1", "n2"], idle=["n3"], world_size=2)
        self.step(10.0, 0, 1)
        self.step(100.0, 0, 91)
        self.fault("l1", 110.0, "rank 1 on n2 killed by SIGKILL")
        self.write("launch", 120.0, 1, nodes=["n1", "n2"], idle=["n3"], world_size=2)
        self.step(125.0, 1, 81)
        self.heal("l1", "recovered", 125.0, "step 81 done in launch 1")
        self.step(300.0, 1, 256)
        self.fault("l2", 310.0, "rank 0 on n1 ended with exit code 1")

    def step(self, wall: float, launch: int, step: int) -> None:
        with self.attempt.progress.open("a") as file:
            file.write(json.dumps({"wall": wall, "launch": launch, "step": step}) + "\n")

    def fault(self, name: str, wall: float, what: str) -> None:
        self.heal(name, "seen", wall, what)
        decided = {"category": "process_crash", "rule": "anything-else", "action": "relaunch"}
        self.heal(name, "diagnosed", wall + 2, what, cause="rank_killed", nodes=["n2"], decided=decided)

    def heal(self, name: str, what: str, wall: float, said: str, **more: Any) -> None:
        self.write("recovery", wall, 0, incident=name, what=what, words=said, **more)

    def write(self, kind: str, wall: float, launch: int, **fields: Any) -> None:
        with self.attempt.launcher_journal.open("a") as file:
            file.write(json.dumps({"type": kind, "wall": wall, "launch": launch, **fields}) + "\n")

    def book(self, now: float = 400.0) -> RunRecord:
        return read_run_record(self.run, now=now, gpus=8)


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    (tmp_path / "run").mkdir()
    return Alone(RunDir(tmp_path / "run"))


def test_what_no_operator_heard_of_is_told_all_the_same(alone: Alone) -> None:
    book = alone.book()
    first, second = (build_timeline(one, book) for one in incidents(book))
    assert (first.id, first.result, first.duration, first.step, first.lost) == ("7.0/l1", "recovered", 15.0, 91, 11)
    assert first.cost is not None and first.cost.ns[Kind.DETECTION] == 10 * 10**9
    assert (second.id, second.result, second.duration) == ("7.0/l2", "open, relaunching", None)
    lines = timeline_lines(first)
    assert lines[0] == "7.0/l1  rank 1 killed by SIGKILL on n2  back in 15 s"
    assert lines[2:5] == [
        "  evidence  nothing shows why; the kernel's out-of-memory killer sends SIGKILL too",
        "  cost      35 s: redone 10 s, detection 10 s, restart 15 s; 9.3 GPU-minutes",
        "  steps     last step before it: 91; 11 steps repeated",
    ]


def test_one_that_was_handed_up_says_so(alone: Alone) -> None:
    alone.write("outcome", 320.0, 1, status="failed", why="rank 0 on n1 ended with exit code 1")
    book = alone.book()
    last = build_timeline(incidents(book)[-1], book)
    assert last.result == "handed up" and timeline_lines(last)[-1].endswith("done     escalated because of this")


def test_an_operator_that_comes_back_tells_the_launchers_times(alone: Alone) -> None:
    journal = Journal(alone.run.journal, 2)
    journal.append(ev.Started(5000.0, 2))
    for name, what in (("l1", "rank 1 on n2 killed by SIGKILL"), ("l2", "rank 0 on n1 ended with exit code 1")):
        journal.append(ev.RecoverySeen(5001.0, "7.0", name, "seen", what))
    journal.close()
    found = incidents(alone.book(now=5002.0))
    assert [(i.id, i.began) for i in found] == [("i1", 110.0)], "the operator takes both for one"
    assert [(m.at, m.what) for m in found[0].marks] == [(110.0, "seen"), (310.0, "seen")]


def test_held_by_a_launcher_that_nobody_has_heard(alone: Alone) -> None:
    alone.write("outcome", 320.0, 1, status="failed", why="x")
    alone.write("requeued", 321.0, 1, how="held", job_id=7, restarts=1)
    alone.attempt.outcome.write_text(json.dumps({"status": "failed", "why": "4 attempts without progress"}))
    lines = held_lines(alone.book())
    assert lines[0].startswith("held ") and lines[0].endswith("held by its launcher: 4 attempts without progress")
    assert lines[1:] == ["release   scontrol release 7", "stop      transom stop run"]
    assert held_lines(read_run_record(RunDir(RECORDED / "stopped"), now=2e9)) == []


def test_json_has_what_the_text_has() -> None:
    book = read_run_record(RunDir(RECORDED / "node_killed"), now=2e9)
    document: Mapping[str, Any] = json.loads(json.dumps(timeline_document(build_timeline(incidents(book)[0], book))))
    assert document["category"] == "slurm_node_fail" and document["lost_steps"] == 0 and document["gpu_hours"] is None
    assert document["cost_seconds"] == pytest.approx(sum(document["cost"].values()))
    assert {line["part"] for line in document["entries"]} == {"seen", "decided", "done"}
    assert len(document["entries"]) == len(document["marks"]) and document["entries"][0]["at"].endswith("Z")


def test_general_advice_of_gloo_is_only_in_the_whole_timeline() -> None:
    said = "rank-0.log: RuntimeError: [/p/gloo/pair.cc:9] Read error [::1]:9"
    said += ". This is typically caused by a remote worker hanging."
    timeline = build_timeline(Incident("i1", 7, 0, 100.0, -1, marks=(Mark(100.0, "examined", said),)), EMPTY)
    brief, whole = ("\n".join(timeline_lines(timeline, whole=yes)) for yes in (False, True))
    assert "rank-0.log: RuntimeError: Read error [::1]:9\n" in f"{brief}\n" and "gloo" not in brief
    assert said in whole


texts = st.text(st.characters(codec="utf-8"), max_size=300)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e9), st.sampled_from(("seen", "decided", "x")), texts), max_size=6), texts)
def test_any_words_fit_any_width(marks: list[tuple[float, str, str]], title: str) -> None:
    diagnosis = Diagnosis("c", title, (title[:9],), True, "none", True)
    incident = Incident("i1", 7, 0, 5.0, 3, marks=tuple(Mark(*one) for one in marks), diagnosis=diagnosis)
    for width in (60, 80, 131, 200):
        lines = timeline_lines(build_timeline(incident, EMPTY), width)
        assert all(len(line) <= width and line.isprintable() for line in lines)


def test_two_faults_told_in_the_same_words_have_each_its_own_time(tmp_path: Path) -> None:
    """A launcher tells one after the other in one attempt; of the second, the operator heard late."""
    run = RunDir(tmp_path / "run")
    run.attempt(7, 0).path.mkdir(parents=True)
    write_header(run.journal, Policy(), 2)
    journal = Journal(run.journal, 1)
    started = (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7, True), ev.JobSeen(3.0, 7, 0, "RUNNING", nodes=("a",)))
    for event in (*started, ev.LaunchSeen(4.0, "7.0", 0, ("a",), 8), ev.StepSeen(5.0, "7.0", 1)):
        journal.append(event)
    told = []
    for n, (wall, heard) in enumerate(((100.0, 100.5), (500.0, 900.0)), 1):
        for what, words in (("seen", f"rank {n} ended"), ("decided", "relaunch, by rule `hang` (default)")):
            journal.append(ev.RecoverySeen(heard, "7.0", f"l{n}", what, words))
            told.append({"type": "recovery", "wall": wall, "incident": f"l{n}", "what": what, "words": words})
        journal.append(ev.LaunchSeen(heard + 10, "7.0", n, ("a",), 8))
        journal.append(ev.StepSeen(heard + 20, "7.0", 10 * n))
    journal.close()
    run.attempt(7, 0).launcher_journal.write_text("".join(json.dumps(line) + "\n" for line in told))
    found = incidents(read_run_record(run, now=2000.0))
    times = [[m.at for m in one.marks if m.what in ("seen", "decided")] for one in found]
    assert times == [[100.5, 100.5], [500.0, 500.0]]
    assert [one.began for one in found] == [100.5, 500.0]

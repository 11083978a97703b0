"""Many looks at runs, and a Slurm that does not answer: the note that one look leaves for the others."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from view_scenes import SCENES

from transom_cli.slurm.port import Job, JobState, SlurmRefused, SlurmUnknown
from transom_cli.view import slurm_query
from transom_cli.view.document import view_document
from transom_cli.view.model import RunView
from transom_cli.view.slurm_query import OUTAGE, SAME_SILENCE, Outage
from transom_cli.view.status import status_lines

SILENT = SlurmUnknown("Slurm did not answer `scontrol show`", "Slurm said: Socket timed out")


class Counted:
    def __init__(self, *answers: Job | Exception) -> None:
        self.answers, self.asked = list(answers), 0

    def job(self, job_id: int) -> Job:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def count_ahead(self, job: Job) -> int:
        return 3


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSOM_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def look(view: RunView, slurm: Counted, monkeypatch: pytest.MonkeyPatch) -> str:
    return slurm_query.with_slurm(view, lambda *_: slurm).slurm_error


def older(state: Path, seconds: float) -> None:
    for note in state.glob("slurm-silent-*"):
        os.utime(note, (time.time() - seconds, time.time() - seconds))


def test_a_thousand_looks_at_a_silent_slurm_ask_it_once(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, view = Counted(SILENT), SCENES["unknown"](tmp_path)
    assert {look(view, slurm, monkeypatch) for _ in range(1000)} == {"Socket timed out"}
    assert slurm.asked == 1
    older(state, OUTAGE + 1)
    look(view, slurm, monkeypatch), look(view, slurm, monkeypatch)
    assert slurm.asked == 2


@pytest.mark.parametrize("answer", [Job(7, JobState.RUNNING), SlurmRefused("no", "odd")], ids=["answer", "refusal"])
def test_an_answer_ends_it(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, answer: Job | Exception
) -> None:
    slurm, view = Counted(SILENT, answer), SCENES["unknown"](tmp_path)
    look(view, slurm, monkeypatch)
    older(state, OUTAGE + 1)
    for _ in range(3):
        look(view, slurm, monkeypatch)
    assert slurm.asked == 4 and not list(state.glob("slurm-silent-*"))


def test_of_those_that_come_after_a_silence_one_asks(tmp_path: Path) -> None:
    silence, other = (Outage(tmp_path, {}) for _ in range(2))
    silence.note("Socket timed out")
    older(tmp_path, OUTAGE + 1)
    assert silence.recent() is None and other.recent() is not None


def test_another_slurm_is_another_matter(tmp_path: Path) -> None:
    Outage(tmp_path, {"SLURM_CONF": "/a"}).note("x")
    assert Outage(tmp_path, {"SLURM_CONF": "/b"}).recent() is None
    assert Outage(tmp_path, {"SLURM_CONF": "/a"}, "east").recent() is None
    assert Outage(tmp_path, {"SLURM_CONF": "/a"}).recent() is not None


def test_without_a_place_for_the_note_each_asks_by_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    silence = Outage(tmp_path / "file" / "state", {})
    silence.note("x")
    assert silence.recent() is None
    silence.clear()


def test_the_screen_says_how_old_the_silence_is(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transom_cli.view.slurm_reasons import with_error
    from transom_cli.view.status import _slurm_source

    view = SCENES["unknown"](tmp_path)
    assert "query failed just now: x" in _slurm_source(with_error(view, "x"))
    assert "query failed 4.0 s ago: x" in _slurm_source(with_error(view, "x", view.now - 4.0))


WAITS = Job(7, JobState.PENDING, reason="Priority", nodes=("n1",), requirements=(("constraint", "a100"),))


def test_looks_at_a_waiting_job_share_an_answer(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = SCENES["unknown"](tmp_path)
    waits = replace(WAITS, job_id=view.job_id)
    slurm = Counted(waits)
    for _ in range(100):
        look(view, slurm, monkeypatch)
    assert slurm.asked == 1
    kept = Outage(state, os.environ, view.cluster).kept(view.job_id, 10.0)
    assert kept is not None and kept[0] == replace(waits, ahead=3)
    monkeypatch.setattr(slurm_query, "KEPT", 0.0)
    look(view, slurm, monkeypatch)
    assert slurm.asked == 2


def test_a_kept_answer_of_another_version_is_no_answer(tmp_path: Path) -> None:
    notes = Outage(tmp_path, {})
    notes.keep(WAITS)
    (file,) = tmp_path.glob("slurm-jobs-*.json")
    file.write_text(file.read_text().replace('"reason"', '"unheard_of"'))
    assert notes.kept(7, 10.0) is None
    file.write_text("[]")
    assert notes.kept(7, 10.0) is None


def test_looks_at_a_run_that_trains_ask_twice_a_minute(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = SCENES["healthy"](tmp_path)
    slurm = Counted(Job(view.job_id, JobState.RUNNING, nodes=view.nodes))
    for _ in range(100):
        assert look(view, slurm, monkeypatch) == ""
    assert slurm.asked == 1
    monkeypatch.setattr(slurm_query, "KEPT_RUNNING", 0.0)
    look(view, slurm, monkeypatch)
    assert slurm.asked == 2


def test_screen_says_since_when_slurm_is_silent(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = replace(SCENES["healthy"](tmp_path), now=time.time())
    slurm = Counted(SILENT)
    first = slurm_query.with_slurm(view, lambda *_: slurm)
    text = "".join(status_lines(first, 120))
    assert "Slurm has not answered" not in text and "no answer from Slurm now" in text, "it may only be slow"
    (note,) = state.glob("slurm-silent-*")
    note.write_text(f"{view.now - 45} {note.read_text().partition(' ')[2]}")
    older(state, OUTAGE + 1)
    seen = slurm_query.with_slurm(view, lambda *_: slurm)
    assert slurm.asked == 2 and seen.slurm_silent_since == pytest.approx(view.now - 45, abs=0.01)
    text = " ".join(" ".join(status_lines(seen, 120)).split())
    assert "Slurm has not answered for 45 s" in text and "Socket timed out" in text
    assert "RUNNING on 4 nodes, as last seen by the operator" in text
    assert seen.health == "healthy" and view_document(seen)["slurm_silent_since_utc"]
    older(state, SAME_SILENCE + 1)
    later = slurm_query.with_slurm(view, lambda *_: slurm).slurm_silent_since
    assert later is not None and later >= view.now, "nobody has asked for long: it may have answered meanwhile"


def test_job_that_runs_is_not_waited_for(state: Path, tmp_path: Path) -> None:
    view = SCENES["starting_again"](tmp_path)
    assert "waiting for Slurm to start the job" in view.next_steps[0].message
    runs = Job(view.job_id, JobState.RUNNING, nodes=("gpu001",))
    (step, *_) = slurm_query.with_slurm(view, lambda *_: Counted(runs)).next_steps
    assert step.message.endswith("waiting for the launcher to start the ranks")


def test_released_job_is_not_held_though_the_operator_has_not_looked(state: Path, tmp_path: Path) -> None:
    view = SCENES["held"](tmp_path)
    still = Job(view.job_id, JobState.PENDING, reason="JobHeldUser", held=True)
    assert slurm_query.with_slurm(view, lambda *_: Counted(still)).status == "held"
    slurm_query.Outage(state, os.environ)._answers.unlink(missing_ok=True)
    released = Job(view.job_id, JobState.PENDING, reason="BeginTime")
    seen = slurm_query.with_slurm(view, lambda *_: Counted(released))
    assert (seen.status, seen.verdict) == ("pending", "")


def test_answer_of_another_look_has_its_age(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = SCENES["pending"](tmp_path)
    slurm = Counted(Job(view.job_id, JobState.PENDING, reason="Resources"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    first = slurm_query.with_slurm(replace(view, now=now), lambda *_: slurm)
    monkeypatch.setattr(time, "time", lambda: now + 8.0)
    later = slurm_query.with_slurm(replace(view, now=now + 8.0), lambda *_: slurm)
    assert slurm.asked == 1 and (first.slurm_queried_at, later.slurm_queried_at) == (now, now)

"""A run whose operator is behind its nodes, or that has none: status, list and attach agree on what it does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from view_made import JOB, NOW, Made

from transom_cli.core import events as ev
from transom_cli.layout import RunDir
from transom_cli.view.document import Changes
from transom_cli.view.list_reader import Wanted, read_list
from transom_cli.view.model import RunView
from transom_cli.view.runs import list_lines
from transom_cli.view.status import status_lines
from transom_cli.view.text import plain


def listed(made: Made) -> RunView:
    with mock.patch("time.time", lambda: NOW):
        (view,) = read_list(made.run.path.parent, Wanted(), print).views
    return view


def submitted(folder: Path) -> Made:
    """As the launcher under plain sbatch begins its run: nobody asks Slurm."""
    return Made(folder).seen((95.0, ev.Started(0, 0)), (94.0, ev.Submitted(0, "submit", JOB, released=True)))


@pytest.mark.parametrize(("step", "phase", "shown"), [(-1, "starting", -1), (28, "training", 28)])
def test_run_without_an_operator_does_what_its_nodes_show(step: int, phase: str, shown: int, tmp_path: Path) -> None:
    made = submitted(tmp_path).beats(step)
    view, row = made.view(), listed(made)
    assert (view.status, view.step, len(view.node_views)) == (phase, shown, 4)
    assert (row.status, row.step, row.health) == (phase, shown, "unknown")
    assert any("the ranks start Python" in one for one in status_lines(view)) == (phase == "starting")
    assert [one.what for one in Changes().of(view)] == [phase]


def test_run_that_was_just_made_waits_for_its_operator(tmp_path: Path) -> None:
    made = submitted(tmp_path)
    made.run = RunDir(made.run.path.rename(tmp_path / "llama-70b-20261122-070953-c382"))  # seven seconds ago
    view = made.view()
    assert (view.status, listed(made).status, view.health) == ("pending", "pending", "healthy")
    assert not [one for one in (*status_lines(view), plain(list_lines([view], 120)[1])) if "no live operator" in one]
    waits = replace(view, operator_job=15, operator_state="PENDING")
    assert "job 15 will become the operator" in " ".join(" ".join(status_lines(waits)).split())
    assert "its job: 15" in plain(list_lines([waits], 120)[1])
    older = replace(view, now=NOW + 60.0)
    assert older.status == "unknown" and "no live operator" in " ".join(status_lines(older))


def test_nodes_that_have_ended_or_fallen_silent_show_nothing(tmp_path: Path) -> None:
    made = submitted(tmp_path).beats(28, ago=60.0)
    assert made.view().phase == listed(made).phase == "pending"


def test_first_step_is_training_before_the_operator_knows(tmp_path: Path) -> None:
    made = Made(tmp_path).seen((95.0, ev.Started(0, 1)), (94.0, ev.Submitted(0, "submit", JOB, True)))
    made.seen((30.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes)))
    made.seen((21.0, ev.LaunchSeen(0, f"{JOB}.0", 0, made.nodes, 32)))
    view = made.beats(2).operator().view()
    assert (view.status, view.step, view.next_steps) == ("training", 2, ())


def test_start_without_a_step_shows_no_count_of_an_earlier_one(tmp_path: Path) -> None:
    made = Made(tmp_path).began().operator()
    made.seen((50.0, ev.StepSeen(0, f"{JOB}.0", 40, since_start=True)), (40.0, ev.StopRequested(0, "ada")))
    made.seen((30.0, ev.JobSeen(0, JOB, 0, "CANCELLED")), (20.0, ev.Resumed(0, "ada")))
    made.seen((10.0, ev.Submitted(0, "submit/2", JOB + 1, True)))
    assert (made.view().phase, made.view().step) == ("pending", -1)


@pytest.mark.parametrize(("step", "status"), [(None, "preflight"), (-1, "starting"), (28, "training")])
def test_list_does_not_wait_for_an_operator_that_asks_slurm_less_often(
    step: int | None, status: str, tmp_path: Path
) -> None:
    made = submitted(tmp_path).seen((93.0, ev.JobSeen(0, JOB, 0, "PENDING"))).operator()
    attempt = made.run.attempt(JOB, 0)
    attempt.health.mkdir(parents=True, exist_ok=True)
    attempt.preflight.write_text('{"checked": 1, "of": 4}')
    if step is not None:
        (attempt.health / "preflight.json").write_text("{}")
        made.beats(step)
    assert listed(made).status == status


def test_launch_without_a_step_in_its_time_is_degraded_until_a_step(tmp_path: Path) -> None:
    made = Made(tmp_path).seen((95.0, ev.Started(0, 1)), (94.0, ev.Submitted(0, "submit", JOB, True)))
    made.seen((93.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes)))
    made.seen((90.0, ev.LaunchSeen(0, f"{JOB}.0", 0, made.nodes, 32)))
    words = "no step seen for 30 s: a hang, or a trainer that reports none (no `beat(step)`)"
    made.seen((60.0, ev.RecoverySeen(0, f"{JOB}.0", "", "late", words)))
    view = made.beats(-1).operator().view()
    assert (view.status, view.concern, view.health) == ("starting", "no step", "degraded")
    assert view.next_steps[0].message == f"{words}; transom does nothing about it"
    assert made.beats(3).view().health == "healthy"


def test_nodes_whose_ranks_end_since_the_run_is_stopped_are_no_suspects(tmp_path: Path) -> None:
    made = Made(tmp_path).began().stepped().beats(18430, dead={"gpu001": "X"}).operator()
    assert {one.node: one.state for one in made.view().node_views}["gpu001"] == "suspect"
    view = made.seen((4.0, ev.StopRequested(0, "ada"))).operator().view()
    assert (view.phase, {one.state for one in view.node_views}) == ("stopping", {"ok", "waiting"})


def test_list_names_a_full_disk_of_a_live_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom_cli.view.read._is_full", lambda folder: True)
    made = Made(tmp_path).began().stepped().operator()
    assert listed(made).disk_full
    made.seen((4.0, ev.StopRequested(0, "ada")), (2.0, ev.JobSeen(0, JOB, 0, "CANCELLED")))
    assert not listed(made).disk_full

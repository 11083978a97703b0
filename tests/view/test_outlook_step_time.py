"""When things were and how long a step takes, from the journal; what settings and Slurm add."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from view_made import JOB, NOW, Made
from view_scenes import SCENES

from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.config.sources import runs_root
from transom_cli.core import events as ev
from transom_cli.core.journal_times import RECENT, JournalTimes
from transom_cli.errors import UsageError
from transom_cli.slurm.port import Job, JobState
from transom_cli.slurm.tags import run_tag
from transom_cli.submit.render import render_script
from transom_cli.submit.rundir import new_run
from transom_cli.view.outlook import LONG, MANY, step_time
from transom_cli.view.read import RunSettings, read_run_settings, read_view
from transom_cli.view.slurm_reasons import limit_message, needs_query, pending_reason, reason_message, with_answer
from transom_cli.view.text import age, brief, day_time, span, utc


@given(st.floats(0.001, 100.0), st.integers(2, 50), st.integers(1, 9))
def test_steps_of_one_length_give_that_length(seconds: float, count: int, stride: int) -> None:
    made = stride * (count - 1)
    assume(made >= MANY or made * seconds > LONG)
    steps = tuple((1e9 + i * stride * seconds, i * stride) for i in range(count))
    assert step_time(steps) == pytest.approx(seconds, rel=1e-3)


def test_only_what_was_lately_counts() -> None:
    slow = tuple((10.0 * i, i) for i in range(100))
    fast = tuple((1000.0 + i, 100 + i) for i in range(2, int(2 * RECENT)))
    assert step_time((*slow, *fast)) == pytest.approx(1.0)
    assert step_time(((0.0, 1), (5000.0, 6))) == 1000.0, "the last two, however long ago"


def test_the_tables_step_counts_at_first() -> None:
    """In the first minute: later the journal has lines enough, and all of one clock."""
    assert step_time(((0.0, 1),), (10.0, 6)) == 2.0
    assert step_time(((0.0, 1),), (10.0, 1)) is None and step_time((), (10.0, 6)) is None
    assert step_time(((0.0, 1), (60.0, 31)), (9000.0, 40)) == 2.0


def test_step_that_the_operator_read_late_makes_no_step_longer() -> None:
    steps = tuple((2.0 * n, 10 * n) for n in range(3))
    assert step_time((*steps, (64.0, 30))) == pytest.approx(64 / 30)
    assert step_time((*steps, (64.0, 30)), (6.0, 30)) == pytest.approx(0.2)
    assert step_time((*steps, (6.0, 30)), (66.0, 30)) == step_time((*steps, (6.0, 30)), (1.0, 30)) == pytest.approx(0.2)
    assert step_time(((0.0, 2), (60.0, 10)), (2.0, 10)) == 0.25, "a hang after ten fast steps is no slow step"


def test_launch_and_attempt_start_the_times_again() -> None:
    seen = [
        ev.Submitted(1.0, "submit", 7),
        ev.JobSeen(2.0, 7, 0, "RUNNING"),
        ev.StepSeen(3.0, "7.0", 5),
        ev.CheckpointSeen(4.0, 5),
        ev.CheckpointSeen(5.0, 3),
        ev.JobSeen(6.0, 7, 1, "PENDING"),
        ev.JobSeen(7.0, 7, 1, "RUNNING"),
        ev.StepSeen(8.0, "7.1", 6),
        ev.LaunchSeen(9.0, "7.1", 1, ("n1",), 1),
        ev.StepSeen(10.0, "7.1", 7),
        ev.OutcomeSeen(11.0, "7.1", "left", "", durable=9),
    ]
    found = JournalTimes()
    for number, event in enumerate(seen):
        found.hear(event, "7.0" if number < 5 else "7.1")
    assert (found.submitted, found.durable, found.running) == (1.0, 11.0, 7.0)
    assert (found.launched, found.steps) == (9.0, ((10.0, 7),))
    before = JournalTimes()
    before.hear(ev.JobSeen(2.0, 7, 0, "RUNNING"), "")
    assert before == JournalTimes(begun=2.0)


def test_old_steps_are_dropped_and_the_step_time_stays() -> None:
    times, seen = JournalTimes(), [(60.0 * n, 30 * n) for n in range(1000)]
    for at, step in seen:
        times.hear(ev.StepSeen(at, "7.0", step), "7.0")
    assert len(times.steps) < 100
    assert step_time(times.steps) == step_time(tuple(seen)) == 2.0


def test_what_was_asked_for_is_read_as_the_model_has_it(tmp_path: Path) -> None:
    flags = {
        "steps": 900,
        "job.time": "1-02:00:00",
        "detect.node_silent": 4,
        "detect.first_step": 60,
        "checkpoint.directory": "/c",
    }
    settings = load(None, flags, site=None, user=tmp_path / "none")
    run = new_run(tmp_path, "r", datetime(2026, 3, 4, tzinfo=timezone.utc), settings, "#!/bin/sh\n")
    no_launcher = {"launcher": False}  # the script starts none
    assert read_run_settings(run) == RunSettings(Path("/c"), 900, 26 * 3600, True, 4.0, 60.0, **no_launcher)
    run.settings.write_text("steps = 'many'\n[job]\ntime = 'soon'\nsignal_before = 0\n")
    assert read_run_settings(run) == RunSettings(run.checkpoints, None, None, False, 10.0, 1800.0, **no_launcher)
    run.settings.write_text("not toml")
    assert read_run_settings(run) == RunSettings(run.checkpoints, **no_launcher)


def test_the_root_is_that_of_the_settings(tmp_path: Path) -> None:
    """Of the same layers, in the same order; what is wrong in one of them is told as always."""
    site, user = tmp_path / "site.toml", tmp_path / "x" / "transom" / "config.toml"
    user.parent.mkdir(parents=True)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "x")}
    cases = [("", ""), ('root = "/s"', ""), ('root = "/s"', 'root = "u"'), ("", "name = 'n'"), ("", 'root = "~/u"')]
    for of_site, of_user in cases:
        site.write_text(of_site)
        user.write_text(of_user)
        for variable in ({}, {"TRANSOM_ROOT": "/v"}, {"TRANSOM_ROOT": "v"}):
            asked = load(None, {}, {**environ, **variable}, site=site).root
            assert runs_root(None, {**environ, **variable}, site) == asked
    assert runs_root(Path("/x"), environ, site) == Path("/x")
    for wrong in ("root = 3", "root = ", "nonsense = 1\nroot = ''"):
        user.write_text(wrong)
        with pytest.raises(UsageError):
            runs_root(None, environ, site)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "other jobs have a higher priority (Priority)"),
        ("QOSMaxNodePerUserLimit", "your jobs have reached the limit of your QOS: nodes (QOSMaxNodePerUserLimit)"),
        (
            "AssocGrpGRES",
            "all jobs of your account together have reached its limit: GPUs or other gres (AssocGrpGRES)",
        ),
        ("BadConstraints", "too few nodes that match its constraints: it will not start (BadConstraints)"),
        (
            "ReqNodeNotAvail,_UnavailableNodes:gpu[1-3]",
            "required nodes are down, drained, or reserved for others (ReqNodeNotAvail,_UnavailableNodes:gpu[1-3])",
        ),
        ("Something_new", "Something new"),
    ],
)
def test_slurms_reasons_in_plain_words(reason: str, words: str) -> None:
    assert reason_message(reason) == words


def test_how_long_a_job_waits_for_a_switch() -> None:
    assert reason_message("Resources", switches="1@00:05:00") == (
        "next in the queue, waiting for free nodes on one switch; after 00:05:00 it accepts any switch (Resources)"
    )
    assert "free nodes on 2 switches; after" in reason_message("Resources", switches="2@00:05:00")
    assert reason_message("Priority", switches="1@00:05:00") == "other jobs have a higher priority (Priority)"


def test_a_reservation_that_is_gone() -> None:
    gone = "held, because its reservation has ended or was deleted; if released, it starts outside of it"
    assert reason_message("Reservation_r6_was_deleted") == f"{gone} (Reservation_r6_was_deleted)"
    assert reason_message("ReservationDeleted") == f"{gone} (ReservationDeleted)"


def test_what_slurm_says_of_a_job_beats_what_the_run_was_asked_for(tmp_path: Path) -> None:
    view = replace(SCENES["pending"](tmp_path), requirements="reservation `old`")
    asks = (("reservation", "new"), ("nodelist", "n[1-2]"), ("switches", "1@00:05:00"))
    told = with_answer(view, Job(JOB, JobState.PENDING, reason="BadConstraints", requirements=asks))
    assert (told.requirements, told.switches) == ("reservation `new`, nodelist `n[1-2]`", "1@00:05:00")
    assert "too few nodes with reservation `new`, nodelist `n[1-2]`" in pending_reason(told)
    assert with_answer(view, Job(JOB, JobState.PENDING)).requirements == "reservation `old`"
    assert pending_reason(with_answer(view, Job(JOB, JobState.RUNNING))) == ""


def test_what_no_node_is_left_for() -> None:
    assert reason_message("BadConstraints", "constraint `h100`", ("n1", "n2")) == (
        "too few nodes with constraint `h100` (excluded: n1, n2): it will not start (BadConstraints)"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxGRESPerUser", "your jobs have reached the limit of your QOS: GPUs or other gres"),
        ("QOSMaxJobsPerUserLimit", "your jobs have reached the limit of your QOS: running jobs"),
        ("AssocMaxJobsLimit", "your jobs have reached the limit of your account: running jobs"),
        ("QOSGrpSubmitJobsLimit", "all jobs of your QOS together have reached its limit: submitted jobs"),
        (
            "AssocGrpCPURunMinutesLimit",
            "all jobs of your account together have reached its limit: processor or node minutes",
        ),
        ("QOSMaxWallDurationPerJobLimit", "it requests more time than your QOS allows per job: it will not start"),
        ("QOSMaxNodePerJobLimit", "it requests more nodes than your QOS allows per job: it will not start"),
        ("QOSMaxCpuPerNode", "it requests more processors than your QOS allows per node: it will not start"),
        ("QOSMinGRES", "it requests less GPUs or other gres than your QOS requires of a job: it will not start"),
        ("QOSMinCpuNotSatisfied", "it requests less processors than your QOS requires of a job: it will not start"),
        ("MaxNodePerAccount", "your account's jobs have reached the limit of your QOS: nodes"),
        ("AssociationJobLimit", "your jobs have reached the limit of your account: running jobs"),
        ("QOSTimeLimit", "your jobs have reached the limit of your QOS: time"),
        ("QOSSomethingNew", "a limit of your QOS is reached"),
        ("MaxSomethingNew", ""),
        ("Resources", ""),
        ("", ""),
    ],
)
def test_limits_in_plain_words(reason: str, words: str) -> None:
    assert limit_message(reason) == words


def test_slurm_is_asked_only_where_it_knows_more(tmp_path: Path) -> None:
    asked, trains = set(), set()
    for name, scene in SCENES.items():
        (tmp_path / name).mkdir()
        view = scene(tmp_path / name)
        trains |= {name} if view.phase == "training" and view.operator and not view.slurm_lost else set()
        asked |= {name} if needs_query(view) else set()
    assert "healthy" in trains <= asked and "slurm_is_silent" not in asked
    assert asked - trains == {
        "pending", "pending_without_an_answer", "starting_again", "continues", "held", "held_by_its_launcher",
        "unknown", "unknown_and_slurm_too", "starved",
    }  # fmt: skip


def test_slurm_is_not_asked_by_who_looks_on_while_it_does_not_answer_the_operator(tmp_path: Path) -> None:
    view = replace(SCENES["pending"](tmp_path), slurm_lost="Socket timed out")
    assert view.operator and not needs_query(view)
    assert needs_query(replace(view, operator=False)), "nobody else asks"


def test_another_runs_job_of_the_same_number_is_not_ours(tmp_path: Path) -> None:
    """Job ids begin anew when a cluster is set up anew."""
    view = SCENES["starting_again"](tmp_path)
    other = with_answer(view, Job(JOB, JobState.RUNNING, comment=run_tag("another")))
    assert other.slurm_state == "PENDING" and "another run" in other.slurm_error
    ours = with_answer(view, Job(JOB, JobState.RUNNING, comment=run_tag(view.run_id) + " held: x"))
    assert ours.slurm_state == "RUNNING" and not ours.slurm_error


@pytest.mark.parametrize(
    ("start", "expected"), [("2026-11-22T07:11:00", NOW + 60), ("2026-11-22T07:09:00", None), ("x", None)]
)
def test_an_expected_start_is_in_the_future(start: str, expected: float | None, tmp_path: Path) -> None:
    view = with_answer(SCENES["starting_again"](tmp_path), Job(JOB, JobState.PENDING, start=start))
    assert view.slurm_start == expected


def test_an_operator_elsewhere_that_has_just_renewed_its_lease_is_not_waited_for(tmp_path: Path) -> None:
    made = Made(tmp_path).began().operator()
    told = json.loads(made.run.lease.read_text()) | {"boot": "another", "host": "login2"}
    for ago, alive in ((1.0, True), (40.0, False), (-40.0, False)):
        made.run.lease.write_text(json.dumps(told))
        os.utime(made.run.lease, (NOW - ago, NOW - ago))
        with mock.patch("time.time", lambda: NOW):
            assert read_view(made.run, patience=0.001).operator is alive
            assert read_view(made.run).operator is False, "without patience nothing but this host is trusted"


def test_numbers_as_people_read_them() -> None:
    assert [span(s) for s in (-1, 0.04, 9.96, 59.7, 185, 3600, 22320, 187200)] == [
        "0.0 s", "0.0 s", "10 s", "59 s", "3m 05s", "1h 00m", "6h 12m", "2d 4h",
    ]  # fmt: skip
    assert [age(s) for s in (23, 599, 600, 1022, 3600)] == ["23 s", "9m 59s", "10 min", "17 min", "1h 00m"]
    assert [brief(s) for s in (-1, 48, 61, 7199, 7200, 172799, 172800)] == [
        "0s",
        "48s",
        "1m",
        "119m",
        "2h",
        "47h",
        "2d",
    ]
    assert (day_time(NOW - 60, NOW), day_time(NOW - 90000, NOW)) == ("07:09:00", "21 Nov 06:10")
    assert utc(NOW) == "2026-11-22T07:10:00.000Z"


def test_stall_of_the_file_system_is_no_step_time() -> None:
    """Steps of 0.5 s are read 11 s late, when a finding writes the newest one down."""
    assert step_time(((0.0, 1), (11.0, 3))) is None
    assert step_time(((0.0, 1), (11.0, 3), (70.0, 141))) == pytest.approx(0.5)


def test_own_batch_script_has_a_launcher(tmp_path: Path) -> None:
    made = Made(tmp_path)
    script = render_script(Settings(), made.run.path, ["python", "train.py"])
    made.run.script.write_text(script)
    assert read_run_settings(made.run).launcher
    made.run.script.write_text("#!/bin/bash\ntransom launch -- python train.py\n")
    assert read_run_settings(made.run).launcher


def test_age_of_the_checkpoint_does_not_outlive_a_resume_from_an_older_one() -> None:
    times = JournalTimes()
    times.hear(ev.CheckpointSeen(5.0, 90), "7.0")
    times.hear(ev.Resumed(6.0, "ada", back_to=40), "")
    assert (times.durable_step, times.durable) == (40, None)
    times.hear(ev.CheckpointSeen(7.0, 60), "8.0")
    assert times.durable == 7.0

"""Which of the batch script's output tells of an attempt: a run's log as Slurm 22.05 left it, without pyxis."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.layout import AttemptDir, RunDir
from transom_cli.slurm.port import Job, JobState
from transom_cli.supervise import root_cause as examine_module
from transom_cli.supervise.operator.outputs import Outputs
from transom_cli.supervise.root_cause import error_in, examine, of_attempt

FIRST = """\
transom: checked: 1 node examined in 2.5 s, none is bad, 1 to monitor
transom: launch 0 of attempt 2.0: 1 rank on 1 node, logs in /runs/r/attempts/2.0/logs/0
srun: unrecognized option '--container-image=/nope/image.sqsh'
Try "srun --help" for more information
transom: l1 seen: the training step ended (srun exit code 255) without a word of its ranks
transom: failed: the training step ended (srun exit code 255) without a word of its ranks
slurmstepd-node1: error: *** JOB 2 ON node1 CANCELLED AT 2026-11-22T17:58:09 DUE TO JOB REQUEUE ***
"""
SETUP = "/var/spool/slurmd/job2/slurm_script: line 12: module: command not found\n"
NO_PROGRAM = """\
error: Neither apptainer nor singularity is here
  looked for on the PATH of the batch script, after `job.setup`

hint: load it there: --set 'job.setup=["module load apptainer"]'
"""


def lines(text: str, attempt: str) -> list[str]:
    return [line for line in of_attempt(text.encode(), attempt).decode().splitlines() if line]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(examine_module, "SETTLE", 0.0)
    return RunDir(tmp_path)


def test_what_srun_says_of_the_launch_is_kept_and_our_own_lines_are_not() -> None:
    told = FIRST[: FIRST.index("slurmstepd")]
    assert lines(told, "2.0") == [
        "srun: unrecognized option '--container-image=/nope/image.sqsh'",
        'Try "srun --help" for more information',
    ]
    assert of_attempt(told.encode(), "2.0").count(b"\n") == told.count("\n"), "a line keeps its number"


def test_an_earlier_attempt_tells_nothing() -> None:
    assert lines(FIRST, "2.1") == []
    assert lines(FIRST + SETUP, "2.1") == [SETUP.strip()], "it failed before its first launch"
    left = FIRST[: FIRST.index("slurmstepd")]  # of one that was left, slurmstepd says nothing
    assert lines(left + SETUP, "2.1") == [SETUP.strip()]


def test_an_earlier_launch_tells_nothing() -> None:
    again = FIRST[: FIRST.index("transom: failed")] + "transom: launch 1 of attempt 2.0: 1 rank\nsrun: error: new\n"
    assert lines(again, "2.0") == ["srun: error: new"]


def test_a_script_without_a_launcher_is_kept_whole() -> None:
    assert lines("step 1\nstep 2\n", "2.0") == ["step 1", "step 2"]


def test_of_our_own_errors_the_first_line_tells() -> None:
    assert error_in(NO_PROGRAM.encode()) == b"Neither apptainer nor singularity is here"
    assert error_in(NO_PROGRAM.encode() + b"srun: forcing job termination\n") == b"", "it did not end with it"
    assert error_in(b"step 1\n") == b""


def test_a_flag_that_srun_does_not_know_is_the_users_error(run: RunDir) -> None:
    run.job_log(2).write_text(FIRST[: FIRST.index("slurmstepd")])
    told = examine("k", run, run.attempt(2, 0), None, 5.0)
    assert (told.category, told.where) == ("user_code", "slurm-2.log")
    assert told.line == "srun: unrecognized option '--container-image=/nope/image.sqsh'"
    run.job_log(2).write_text(FIRST)
    assert examine("k", run, run.attempt(2, 1), None, 5.0).where == "no log", "nor is our own requeue a cause"


def test_our_own_error_is_told_by_what_happened(run: RunDir) -> None:
    run.job_log(2).write_text(NO_PROGRAM)
    assert examine("k", run, run.attempt(2, 0), None, 5.0).line == "Neither apptainer nor singularity is here"


def test_of_a_script_without_a_launcher_an_attempt_begins_where_the_last_one_was_over(run: RunDir) -> None:
    outputs, log = Outputs(run), run.job_log(7)
    first, second = AttemptDir(run.attempts / "7.0"), AttemptDir(run.attempts / "7.1")
    log.write_text("ValueError: of the first\n")
    assert outputs.before(first) == 0
    with log.open("a") as file:
        file.write("OSError: [Errno 28] No space left on device\n")
    since = outputs.before(second)
    assert since == len("ValueError: of the first\n")
    assert examine("k", run, second, None, 5.0, since=since).category == "storage_full"
    assert outputs.before(second) == since, "asked twice"
    assert outputs.before(AttemptDir(run.attempts / "8.0")) == 0, "another job has another log"


def test_the_output_of_a_users_own_script_is_found_in_the_run_directory(run: RunDir, tmp_path: Path) -> None:
    outputs, output = Outputs(run), tmp_path / "logs" / "train-7.out"
    job = Job(7, JobState.PENDING, output=str(output))
    outputs.link(job, ("--requeue",))
    outputs.link(job, ("--requeue",))
    output.parent.mkdir()
    output.write_text("ValueError: mine\n")
    assert run.job_log(7).read_text() == "ValueError: mine\n"
    outputs.link(Job(8, JobState.PENDING, output="/work/slurm-8_4294967294.out"), ("--requeue", "--array=3"))
    assert str(run.job_log(8).readlink()) == "/work/slurm-8_3.out"
    for number, nowhere in ((9, ""), (10, "/dev/null")):
        outputs.link(Job(number, JobState.PENDING, output=nowhere), ())
        assert not run.job_log(number).is_symlink()

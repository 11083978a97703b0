"""The operator as a job: what is submitted, when, and what its script does at each signal."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.core.operator.state import Phase, Policy
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.slurm.tags import of_run, run_tag
from transom_cli.submit.render import RUN_CONTINUES, operator_options, operator_script, operator_tag
from transom_cli.supervise.journal import fold, write_header
from transom_cli.supervise.lease import Lease, operator_alive
from transom_cli.supervise.operator.job import (
    await_next,
    await_operator,
    cancel_waiting,
    give_up_unsubmitted,
    stop_unsubmitted,
    submit_operator,
)

# Stands in for transom: notes its words, and ends with the code in `code` at TERM, or at once where `now` is.
STAND_IN = """\
#!/bin/bash
echo "$*" >> {folder}/words
case "$*" in *attach*) exit 0;; esac
trap 'exit $(cat {folder}/code)' TERM
touch {folder}/ready
[ -e {folder}/now ] && exit $(cat {folder}/code)
while :; do sleep 0.05; done
"""


def settings(**flags: object) -> Settings:
    return load(None, {k.replace("__", "."): v for k, v in flags.items()}, site=None, user=Path("/nonexistent"))


class Job:
    """The script in a shell, as slurmd would start it."""

    def __init__(self, folder: Path, code: int, *, ends: bool = False) -> None:
        self.folder = folder
        program = folder / "py thon"
        program.write_text(STAND_IN.format(folder=folder))
        program.chmod(0o755)
        (folder / "code").write_text(str(code))
        if ends:
            (folder / "now").touch()
        script = folder / "operator.sbatch"
        script.write_text(operator_script(RunDir(folder / "it's a run"), (str(program),)))
        self.process = subprocess.Popen(["bash", str(script)])

    def told(self, number: int) -> int:
        deadline = time.monotonic() + 20
        while not (self.folder / "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.process.send_signal(number)
        return self.process.wait(20)

    @property
    def words(self) -> list[str]:
        return (self.folder / "words").read_text().splitlines()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path


def test_before_its_time_limit_it_leaves_and_another_is_submitted(here: Path) -> None:
    job = Job(here, RUN_CONTINUES)
    assert job.told(signal.SIGUSR1) == 0
    run = here / "it's a run"
    assert job.words == [f"operate --run-dir {run}", f"attach --detach {run}"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGUSR1, 0), (signal.SIGUSR1, 11), (signal.SIGTERM, RUN_CONTINUES)]
)
def test_cancelled_or_at_the_runs_end_it_submits_none(here: Path, number: int, code: int) -> None:
    job = Job(here, code)
    assert job.told(number) == code
    assert len(job.words) == 1


@pytest.mark.parametrize("code", [0, 1, 21])
def test_its_exit_code_is_the_runs(here: Path, code: int) -> None:
    job = Job(here, code, ends=True)
    assert job.process.wait(20) == code and len(job.words) == 1


def test_what_sbatch_gets(here: Path) -> None:
    run = RunDir(here / "r%1")
    requested = settings(operator__where="job", operator__partition="cpu", operator__sbatch=["--mem=4G"])
    options = operator_options(run, requested.operator)
    assert f"--output={here}/r%%1/operator.log" in options and "--requeue" in options
    assert {"--partition=cpu", "--time=1-00:00:00", "--cpus-per-task=1"} <= set(options)
    assert options[-1] == "--mem=4G" and not any("dependency" in x for x in options)


def test_it_is_no_job_of_the_runs_own() -> None:
    assert not of_run(operator_tag("r1"), run_tag("r1"))


def test_one_is_enough_where_the_site_rewrites_comments(here: Path) -> None:
    run, slurm = RunDir(here), FakeSlurm()
    slurm.comment_rule = "project:physics"
    first = submit_operator(run, settings(), slurm, {})
    assert submit_operator(run, settings(), slurm, {}).job_id == first.job_id
    assert len(slurm.cluster.jobs) == 1


def test_no_second_operator_job_while_one_waits_or_runs(here: Path) -> None:
    run, slurm = RunDir(here), FakeSlurm()
    first = submit_operator(run, settings(), slurm, {})
    assert first.words == "the operator is job 1" and run.operator_job.read_text() == "1\n"
    assert run.operator_script.read_text().startswith("#!/bin/bash")
    assert submit_operator(run, settings(), slurm, {}).words == "the operator is job 1 (PENDING)"
    slurm.start_pending()
    assert submit_operator(run, settings(), slurm, {}).words == "the operator is job 1 (RUNNING)"
    assert submit_operator(run, settings(), slurm, {"SLURM_JOB_ID": "1"}).job_id == 2, "its own place"
    slurm.cancel(1)
    slurm.cancel(2)
    assert submit_operator(run, settings(), slurm, {}).words == "the operator is job 3"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    write_header(RunDir(tmp_path).journal, Policy(), 2)
    return RunDir(tmp_path)


class Turns:
    """Stands in for the clock: at each pause the next of these happens."""

    def __init__(self, *turns: object) -> None:
        self.turns = list(turns)
        self.paused = 0.0

    def __call__(self, seconds: float) -> None:
        self.paused += seconds
        if self.turns:
            turn = self.turns.pop(0)
            if callable(turn):
                turn()


def test_waiting_operator_job_is_reported_once(run: RunDir) -> None:
    slurm, told = FakeSlurm(), list[str]()
    job_id = submit_operator(run, settings(), slurm, {}).job_id
    turns = Turns(None, None, slurm.start_pending, lambda: Lease.take(run))
    await_operator(run, job_id, slurm, lambda job: told.append(job.state.value), turns)
    assert told == ["PENDING", "RUNNING"]
    assert not turns.turns


def test_a_job_that_ends_without_an_operator_is_an_error_that_quotes_its_log(run: RunDir) -> None:
    slurm = FakeSlurm()
    job_id = submit_operator(run, settings(), slurm, {}).job_id
    run.operator_log.write_text("bash: line 7: /opt/py: No such file or directory\n")
    with pytest.raises(TransomError) as caught:
        await_operator(run, job_id, slurm, lambda job: None, Turns(None, lambda: slurm.cancel(job_id)))
    assert f"its job {job_id}: CANCELLED" in caught.value.why and "/opt/py: No such file" in caught.value.why
    assert f"transom attach {run.run_id}" in caught.value.hint


def test_an_operator_that_begins_just_before_its_job_ends_is_no_error(run: RunDir) -> None:
    slurm = FakeSlurm()
    job_id = submit_operator(run, settings(), slurm, {}).job_id
    slurm.cancel(job_id)
    turns = Turns(None, lambda: Lease.take(run))
    await_operator(run, job_id, slurm, lambda job: None, turns)
    assert not turns.turns and slurm.job(job_id).state.ended and run.lease.exists()


def test_a_new_run_whose_operator_is_refused_is_over(run: RunDir) -> None:
    give_up_unsubmitted(run, "the operator's job: Slurm refused `sbatch`: Invalid partition name specified")
    state = fold(run.journal).state
    assert state.phase is Phase.FAILED and "Invalid partition name specified" in state.verdict
    assert "operator's job" in state.verdict


def test_a_run_that_no_operator_has_taken_is_stopped_without_slurm(run: RunDir) -> None:
    assert stop_unsubmitted(run, "ada")
    state = fold(run.journal).state
    assert state.phase is Phase.STOPPED and "never submitted" in state.verdict
    assert operator_alive(run) is None


def test_a_run_that_an_operator_has_taken_is_left_to_it(run: RunDir) -> None:
    lease = Lease.take(run)
    assert not stop_unsubmitted(run, "ada")
    lease.give_up()
    assert not stop_unsubmitted(run, "ada")  # it may have submitted the job
    assert fold(run.journal).state.phase is Phase.SUBMITTING


def test_what_still_waits_is_cancelled_and_what_runs_is_left_to_end(run: RunDir) -> None:
    slurm = FakeSlurm()
    first = submit_operator(run, settings(), slurm, {}).job_id
    assert cancel_waiting(run, slurm) == (first,) and slurm.job(first).state.ended
    assert cancel_waiting(run, slurm) == ()
    second = submit_operator(run, settings(), slurm, {}).job_id
    slurm.start_pending()
    assert cancel_waiting(run, slurm) == () and slurm.job(second).state.value == "RUNNING"


def test_the_next_one_is_waited_for_and_none_is_not_waited_for_long(run: RunDir) -> None:
    """One that leaves before its time limit submits it a moment later."""
    slurm = FakeSlurm()
    turns = Turns(None, lambda: submit_operator(run, settings(), slurm, {}), None, lambda: Lease.take(run))
    assert await_next(run, slurm, lambda job: None, turns) and not turns.turns
    for job in slurm.jobs():
        slurm.cancel(job.job_id)
    turns = Turns()
    assert not await_next(run, slurm, lambda job: None, turns)
    assert 10.0 <= turns.paused <= 60.0

"""The operator as a job: what is submitted, when, and what its script does at each signal."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.layout import RunDir
from transom_cli.slurm.fake import FakeSlurm
from transom_cli.slurm.tags import of_run, run_tag
from transom_cli.submit.operatorjob import GOES_ON, operator_options, operator_script, operator_tag
from transom_cli.supervise.operatorjob import submit_operator

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
    job = Job(here, GOES_ON)
    assert job.told(signal.SIGUSR1) == 0
    run = here / "it's a run"
    assert job.words == [f"-m transom_cli operate --run-dir {run}", f"-m transom_cli attach --detach {run}"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 0), (signal.SIGUSR1, 11), (signal.SIGTERM, GOES_ON)])
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
    asked = settings(operator__where="job", operator__partition="cpu", operator__sbatch=["--mem=4G"])
    options = operator_options(run, asked.operator)
    assert f"--output={here}/r%%1/operator.log" in options and "--requeue" in options
    assert {"--partition=cpu", "--time=1-00:00:00", "--cpus-per-task=1"} <= set(options)
    assert options[-1] == "--mem=4G" and not any("dependency" in x for x in options)


def test_it_is_no_job_of_the_runs_own() -> None:
    assert not of_run(operator_tag("r1"), run_tag("r1"))


def test_one_that_waits_or_runs_is_enough(here: Path) -> None:
    run, slurm = RunDir(here), FakeSlurm()
    first = submit_operator(run, settings(), slurm, {})
    assert first == "the operator is job 1"
    assert run.operator_script.read_text().startswith("#!/bin/bash")
    assert submit_operator(run, settings(), slurm, {}) == "the operator is job 1 (PENDING)"
    slurm.start_pending()
    assert submit_operator(run, settings(), slurm, {}) == "the operator is job 1 (RUNNING)"
    assert submit_operator(run, settings(), slurm, {"SLURM_JOB_ID": "1"}) == "the operator is job 2", "its own place"
    slurm.cancel(1)
    slurm.cancel(2)
    assert submit_operator(run, settings(), slurm, {}) == "the operator is job 3"

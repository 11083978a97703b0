"""Which jobs can be observed, and what their run is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.config.run_settings import read_settings
from transom_cli.errors import NotPermitted, UsageError
from transom_cli.slurm.port import Job, JobState
from transom_cli.submit.job_run import observe_job, require_observable
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import fold

JOB = Job(7, JobState.RUNNING, user="ann", name="plain", output="/home/ann/slurm-7.out")


@pytest.mark.parametrize(
    ("job", "kind", "words"),
    [
        (replace(JOB, user="bob"), NotPermitted, "belongs to bob"),
        (replace(JOB, part_of="array"), UsageError, "part of a job array"),
        (replace(JOB, part_of="het"), UsageError, "part of a heterogeneous job"),
        (replace(JOB, state=JobState.FAILED), UsageError, "transom diagnose /home/ann/slurm-7.out"),
        (replace(JOB, comment="transom:llama-1:after-3.0 held: x"), UsageError, "transom status llama-1"),
    ],
)
def test_what_is_not_an_own_living_job_is_refused(job: Job, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        require_observable(job, "ann")
    assert words in str(caught.value)


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED])
def test_an_own_job_that_lives_is_accepted_whatever_its_comment(state: JobState) -> None:
    require_observable(replace(JOB, state=state, comment="my comment"), "ann")


def test_the_run_of_a_job_observes_and_knows_its_log(tmp_path: Path) -> None:
    flags = {"root": str(tmp_path / "runs"), "run.mode": "observe", "name": "plain"}
    run = observe_job(JOB, load(None, flags, {}, site=None), "alps", tmp_path / "train.log")
    assert run.job_log(7).readlink() == tmp_path / "train.log"
    assert SubmissionRecord.load(run).observed == 7
    assert read_settings(run).run.mode == "observe" and fold(run.journal).state.policy.observe

"""A launcher without an operator gives its job back to Slurm, also to one that does not answer at first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from transom_cli import wiring
from transom_cli.layout import RunDir
from transom_cli.slurm.fake import FakeSlurm
from transom_cli.slurm.port import JobState, SlurmUnknown, Submission
from transom_cli.supervise import linger as module
from transom_cli.supervise.launchplan import Allocation
from transom_cli.supervise.lease import Lease


class Slow(FakeSlurm):
    """Does not answer the first `silent` times that it is asked to requeue."""

    silent = 0

    def requeue(self, job_id: int) -> None:
        self.silent -= 1
        if self.silent >= 0:
            raise SlurmUnknown("no answer", "Unable to contact slurm controller")
        super().requeue(job_id)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slow:
    made = Slow()
    monkeypatch.setattr(wiring, "slurm_client", lambda *_, **__: made)
    monkeypatch.setattr(module, "backoff", lambda _: 0.01)
    monkeypatch.setattr(module, "REQUEUED", 0.0)
    (tmp_path / "s").write_text("#!/bin/bash\n")
    return made


def running(slurm: Slow, folder: Path, *options: str) -> int:
    job = slurm.submit(Submission(folder / "s", ("--nodes=3", *options)))
    slurm.sleep(5.0)
    assert slurm.job(job).state is JobState.RUNNING
    return job


def test_the_job_is_requeued_or_held(slurm: Slow, tmp_path: Path) -> None:
    job = running(slurm, tmp_path)
    assert module.go_on(RunDir(tmp_path), job, "requeue", lambda: False) == "no operator lives: the job is requeued"
    assert (slurm.job(job).restarts, slurm.job(job).held) == (1, False)
    other = running(slurm, tmp_path)
    assert module.go_on(RunDir(tmp_path), other, "hold", lambda: False) == "no operator lives: the job is held"
    assert slurm.job(other).held


def test_a_slurm_that_does_not_answer_is_waited_for(slurm: Slow, tmp_path: Path) -> None:
    job = running(slurm, tmp_path)
    slurm.silent = 3
    assert module.go_on(RunDir(tmp_path), job, "requeue", lambda: False).endswith("requeued")
    assert slurm.job(job).restarts == 1


def test_an_operator_that_is_back_meanwhile_does_it(
    slurm: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(slurm, tmp_path)
    slurm.silent = 10**6
    monkeypatch.setattr(module, "LINGER", 0.3)
    with_operator = Lease.take(RunDir(tmp_path))
    assert "left to the operator" in module.go_on(RunDir(tmp_path), job, "requeue", lambda: False)
    with_operator.give_up()
    assert slurm.job(job).restarts == 0


def test_it_is_not_waited_for_when_the_job_is_to_end(slurm: Slow, tmp_path: Path) -> None:
    job = running(slurm, tmp_path)
    slurm.silent = 10**6
    assert "Slurm gives no answer: Unable to contact" in module.go_on(RunDir(tmp_path), job, "requeue", lambda: True)
    assert slurm.job(job).restarts == 0


def test_what_slurm_refuses_is_told(slurm: Slow, tmp_path: Path) -> None:
    job = running(slurm, tmp_path, "--no-requeue")
    assert "could not be requeued: Slurm said: Requested operation" in module.go_on(
        RunDir(tmp_path), job, "requeue", lambda: False
    )


@pytest.mark.parametrize("state", [JobState.TIMEOUT, JobState.PREEMPTED, JobState.CANCELLED, JobState.RUNNING])
def test_a_job_that_slurm_ends_is_told_from_one_that_is_cancelled(slurm: Slow, tmp_path: Path, state: JobState) -> None:
    job = running(slurm, tmp_path)
    seen = replace(slurm.job(job), state=state)
    slurm.job = lambda _: seen  # type: ignore[method-assign]
    assert module.ended_by_slurm(job) is (state in (JobState.TIMEOUT, JobState.PREEMPTED))


def test_dead_nodes_leave_the_job_before_its_end(slurm: Slow, tmp_path: Path) -> None:
    job = running(slurm, tmp_path)
    nodes = slurm.job(job).nodes
    module.give_up_nodes(Allocation(job, 0, nodes), nodes[2:])
    assert slurm.job(job).nodes == nodes[:2]


def test_an_operator_that_lives_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    assert module.linger(run, lambda: False), "there never was one"
    lease = Lease.take(run)
    monkeypatch.setattr(module, "LINGER", 0.3)
    assert not module.linger(run, lambda: False)
    monkeypatch.setattr(module, "OPERATOR_GONE", 0.1)
    assert module.linger(run, lambda: False), "its lease is not renewed"
    lease.give_up()
    assert module.linger(run, lambda: False)

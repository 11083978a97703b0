"""A launcher without an operator gives its job back to Slurm, also to one that does not answer, or does not requeue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, SlurmDenied, SlurmRefused, SlurmUnknown, Submission
from transom_cli.slurm.tags import run_tag
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.handoff_record import Handoff, read_handoff
from transom_cli.supervise.journal import write_header
from transom_cli.supervise.launcher import handoff as module
from transom_cli.supervise.launcher.journal import LauncherJournal
from transom_cli.supervise.launcher.node_release import release_nodes
from transom_cli.supervise.launcher.plan import Allocation
from transom_cli.supervise.lease import Lease

WHY = "rank 1 on n2 ended with exit code 1; 4 attempts in a row without a newer checkpoint"


class Slow(FakeSlurm):
    """Does not answer the first `silent` times that it is asked to requeue."""

    silent = 0

    def requeue(self, job_id: int) -> None:
        self.silent -= 1
        if self.silent >= 0:
            raise SlurmUnknown("no answer", "Unable to contact slurm controller")
        super().requeue(job_id)


class Journal:
    """A launcher's journal, and what stands in it of the job."""

    def __init__(self, run: RunDir, job_id: int, restart: int = 0) -> None:
        self.attempt = run.attempt(job_id, restart)
        self.attempt.path.mkdir(parents=True)
        self.log = LauncherJournal(self.attempt.launcher_journal)

    def __call__(self, kind: str, **fields: object) -> None:
        self.log.write(kind, 0, **fields)

    @property
    def handed(self) -> Handoff | None:
        return read_handoff(self.attempt)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slow:
    made = Slow()
    monkeypatch.setattr(module, "backoff", lambda _: 0.01)
    monkeypatch.setattr(module, "REQUEUED", 0.0)
    run = RunDir(tmp_path)
    run.script.write_text("#!/bin/bash\n")
    SubmissionRecord(("--open-mode=append",), chdir=str(tmp_path)).save(run)
    write_header(run.journal, Policy(), 3)
    return made


def running(slurm: Slow, folder: Path, *options: str) -> Allocation:
    tag = f"--comment={run_tag(folder.name)}"
    job = slurm.submit(Submission(RunDir(folder).script, ("--nodes=3", tag, *options)))
    slurm.sleep(5.0)
    assert slurm.job(job).state is JobState.RUNNING
    return Allocation(job, 0, slurm.job(job).nodes)


def hand_off(
    slurm: Slow, folder: Path, here: Allocation, again: str = "requeue", *, resubmit: bool = False, leave: bool = False
) -> tuple[str, Handoff | None]:
    """What was said, and what those who come after read."""
    journal = Journal(RunDir(folder), here.job_id, here.restart)
    journal.attempt.outcome.write_text(json.dumps({"status": "failed", "why": WHY}))
    wanted = module.NextAttempt(again, WHY, resubmit)
    words = module.hand_off(slurm, RunDir(folder), here, wanted, lambda: leave, journal)
    return words, journal.handed


def test_the_job_is_requeued(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path)
    words, handed = hand_off(slurm, tmp_path, here)
    assert words == "no operator lives: the job is requeued"
    assert (slurm.job(here.job_id).restarts, slurm.job(here.job_id).held) == (1, False)
    assert handed is not None and (handed.how, handed.start) == ("requeued", (here.job_id, 1))


def test_a_job_that_is_held_says_why(slurm: Slow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = running(slurm, tmp_path)
    words, handed = hand_off(slurm, tmp_path, here, "hold")
    assert words == "no operator lives: the job is held"
    job = slurm.job(here.job_id)
    assert job.held and job.comment == f"{run_tag(tmp_path.name)} held: {WHY}"
    assert handed is not None and (handed.how, handed.start, handed.why) == ("held", (here.job_id, 1), WHY)
    assert f"scontrol release {here.job_id}" in capsys.readouterr().out


def test_on_one_of_several_clusters_a_person_is_told_its_name(
    slurm: Slow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SubmissionRecord(("--open-mode=append",), chdir=str(tmp_path), requested_cluster="alps").save(RunDir(tmp_path))
    here = running(slurm, tmp_path)
    hand_off(slurm, tmp_path, here, "hold")
    assert f"continue with `scontrol -M alps release {here.job_id}`" in capsys.readouterr().out


def test_a_comment_that_slurm_refuses_does_not_stop_the_hold(
    slurm: Slow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = running(slurm, tmp_path)
    slurm.fail_next("set_comment", SlurmDenied("no", "Access/permission denied"))
    assert hand_off(slurm, tmp_path, here, "hold")[0].endswith("held")
    assert slurm.job(here.job_id).held
    assert "could not be set to the reason: Access/permission denied" in capsys.readouterr().out


@pytest.mark.parametrize("call", ["job", "set_comment", "requeue_hold"])
@pytest.mark.parametrize("after", [False, True])
def test_a_hold_waits_for_a_slurm_that_does_not_answer(slurm: Slow, tmp_path: Path, call: str, after: bool) -> None:
    here = running(slurm, tmp_path)
    slurm.fail_next(call, SlurmUnknown("no answer", "timed out"), after=after)
    assert hand_off(slurm, tmp_path, here, "hold")[0].endswith("held")
    job = slurm.job(here.job_id)
    assert (job.held, job.restarts, job.comment) == (True, 1, f"{run_tag(tmp_path.name)} held: {WHY}")


def test_once_released_the_words_of_the_hold_go(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path)
    hand_off(slurm, tmp_path, here, "hold")
    slurm.release(here.job_id)
    slurm.sleep(200.0)
    module.clear_hold(slurm, RunDir(tmp_path), Allocation(here.job_id, 1, here.nodes))
    assert slurm.job(here.job_id).comment == run_tag(tmp_path.name)
    calls = len(slurm.calls)
    module.clear_hold(slurm, RunDir(tmp_path), Allocation(here.job_id, 0, here.nodes))
    assert len(slurm.calls) == calls, "Slurm is not asked where nothing was held before"


def test_a_slurm_that_does_not_answer_is_waited_for(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path)
    slurm.silent = 3
    assert hand_off(slurm, tmp_path, here)[0].endswith("requeued")
    assert slurm.job(here.job_id).restarts == 1


def test_an_operator_that_is_back_meanwhile_does_it(
    slurm: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = running(slurm, tmp_path)
    slurm.silent = 10**6
    monkeypatch.setattr(module, "LINGER", 0.3)
    with_operator = Lease.take(RunDir(tmp_path))
    words, handed = hand_off(slurm, tmp_path, here)
    assert "takes over the job" in words and handed is None
    with_operator.give_up()
    assert slurm.job(here.job_id).restarts == 0


def test_it_is_not_waited_for_when_the_job_is_to_end(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path)
    slurm.silent = 10**6
    words, handed = hand_off(slurm, tmp_path, here, leave=True)
    assert "Slurm gives no answer: Unable to contact" in words and handed is None
    assert slurm.job(here.job_id).restarts == 0


def living(slurm: Slow) -> list[int]:
    return [job.job_id for job in slurm.jobs() if not job.state.ended]


@pytest.mark.parametrize("refused", [False, True])
def test_a_new_job_goes_on_where_that_is_wanted_or_a_requeue_is_refused(
    slurm: Slow, tmp_path: Path, refused: bool
) -> None:
    here = running(slurm, tmp_path, *(["--no-requeue"] if refused else []))
    words, handed = hand_off(slurm, tmp_path, here, resubmit=not refused)
    assert words == "no operator lives: job 2 takes the place of this one"
    assert handed is not None and (handed.how, handed.start) == ("resubmitted", (2, 0))
    assert living(slurm) == [2]
    successor = slurm.cluster.jobs[2]
    assert successor.comment == f"{run_tag(tmp_path.name)}:after-{here.job_id}.0"
    assert (successor.num_nodes, successor.held) == (3, False)
    assert "--open-mode=append" in successor.submission.options, "submitted as the run's first job was"
    slurm.sleep(5.0)
    assert slurm.job(2).state is JobState.RUNNING


@pytest.mark.parametrize("refused", [False, True])
def test_a_new_job_is_held_with_the_reason(slurm: Slow, tmp_path: Path, refused: bool) -> None:
    here = running(slurm, tmp_path, *(["--no-requeue"] if refused else []))
    words, handed = hand_off(slurm, tmp_path, here, "hold", resubmit=not refused)
    assert words == "no operator lives: job 2 takes the place of this one, held"
    assert handed is not None and (handed.how, handed.start, handed.why) == ("held", (2, 0), WHY)
    slurm.sleep(5.0)
    assert living(slurm) == [2] and slurm.job(2).held
    assert slurm.job(2).comment == f"{run_tag(tmp_path.name)}:after-{here.job_id}.0 held: {WHY}"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["jobs", "job", "submit", "release"])
def test_no_answer_leads_to_one_new_job_all_the_same(slurm: Slow, tmp_path: Path, call: str, after: bool) -> None:
    here = running(slurm, tmp_path)
    slurm.fail_next(call, SlurmUnknown("no answer", "timed out"), after=after)
    assert hand_off(slurm, tmp_path, here, resubmit=True)[0].startswith("no operator lives: job 2")
    slurm.sleep(5.0)
    assert living(slurm) == [2] and slurm.job(2).state is JobState.RUNNING


def test_what_slurm_refuses_is_told(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path, "--no-requeue")
    slurm.fail_next("submit", SlurmRefused("Slurm refused `sbatch`", "Slurm said: no submissions from compute nodes"))
    words, handed = hand_off(slurm, tmp_path, here)
    assert "could not be requeued: Slurm refused `sbatch`: Slurm said: no submissions from" in words and handed is None
    assert living(slurm) == [here.job_id]


def test_without_its_submission_a_job_cannot_be_submitted_again(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path, "--no-requeue")
    RunDir(tmp_path).submission.unlink()
    assert "submission.json" in hand_off(slurm, tmp_path, here)[0]


def test_a_job_that_cannot_end_itself_ends_all_the_same(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path)
    slurm.fail_next("cancel", SlurmUnknown("no answer", "timed out"))
    assert "job 2 takes the place" in hand_off(slurm, tmp_path, here, resubmit=True)[0]
    slurm.sleep(30.0)
    assert slurm.job(2).state is JobState.PENDING, "never two at once"
    slurm.finish(here.job_id, 1)
    slurm.sleep(5.0)
    assert slurm.job(2).state is JobState.RUNNING


@pytest.mark.parametrize("state", [JobState.TIMEOUT, JobState.PREEMPTED, JobState.CANCELLED, JobState.RUNNING])
def test_a_job_that_slurm_ends_is_told_from_one_that_is_cancelled(slurm: Slow, tmp_path: Path, state: JobState) -> None:
    job = running(slurm, tmp_path).job_id
    seen = replace(slurm.job(job), state=state)
    slurm.job = lambda _: seen  # type: ignore[method-assign]
    assert module.ended_by_slurm(slurm, job) is (state in (JobState.TIMEOUT, JobState.PREEMPTED))


def test_dead_nodes_leave_the_job_before_its_end(slurm: Slow, tmp_path: Path) -> None:
    here = running(slurm, tmp_path)
    release_nodes(slurm, here, here.nodes[2:])
    assert slurm.job(here.job_id).nodes == here.nodes[:2]


def test_an_operator_that_lives_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    assert module.await_operator(run, lambda: False), "there never was one"
    lease = Lease.take(run)
    monkeypatch.setattr(module, "LINGER", 0.3)
    assert not module.await_operator(run, lambda: False)
    monkeypatch.setattr(module, "OPERATOR_GONE", 0.1)
    assert module.await_operator(run, lambda: False), "its lease is not renewed"
    lease.give_up()
    assert module.await_operator(run, lambda: False)

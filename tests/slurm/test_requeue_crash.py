"""A crash before or after any call of a restart, then the same request again: the cluster is restarted once."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_fake_cluster import FakeNode
from slurm_worlds import FakeWorld, restart_request, start, submission, wait_for

from transom_cli.slurm.port import Job, JobCancelled, JobState, SlurmRefused, SlurmUnknown
from transom_cli.slurm.requeue import IN_VAIN, RestartRequest, RestartResult, restart_job


class Crash(BaseException):
    """The supervisor is killed here."""


def prepared(folder: Path, case: str) -> tuple[FakeWorld, RestartRequest]:
    world = FakeWorld(folder)
    job = start(world)
    dead: tuple[str, ...] = ()
    if case.endswith("dead node"):
        dead = (job.nodes[2],)
    elif case == "dead batch host":
        dead = (job.batch_host,)
    elif case == "stuck":  # a dead node that nobody knows of: only patience ends this
        world.kill_node(job.nodes[1])
    elif case == "failed":
        world.slurm.finish(job.job_id, 1)
    elif case == "not requeueable":
        world.slurm.cluster.jobs[job.job_id].requeue = False
    elif case == "forgotten":
        world.slurm.cancel(job.job_id)
        world.slurm.tick(5)
        world.slurm.forget(job.job_id)
    for node in dead:
        world.kill_node(node)
    world.slurm.calls.clear()
    return world, restart_request(world, job, dead, resubmit=case.startswith("resubmit"))


def run(world: FakeWorld, request: RestartRequest) -> RestartResult:
    return restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock, patience=1.5)


def live(world: FakeWorld) -> list[Job]:
    return [job for job in world.slurm.jobs() if not job.state.ended]


BY_SUCCESSOR = ["dead batch host", "stuck", "not requeueable", "forgotten", "resubmit", "resubmit, dead node"]
CASES = ["healthy", "dead node", "failed", *BY_SUCCESSOR]
HOW = dict.fromkeys(BY_SUCCESSOR, "successor")


def once(world: FakeWorld, request: RestartRequest, result: RestartResult) -> None:
    """What must hold however often the procedure was begun: counted on the cluster, not in our state."""
    world.slurm.tick(200)
    (job,) = live(world)
    assert job.job_id == result.job_id
    assert job.state is JobState.RUNNING and job.num_nodes == 3
    assert not set(job.nodes) & set(request.dead)
    assert job.restarts == (0 if result.how == "successor" else 1)
    submitted = [j for j in world.slurm.jobs() if request.tag in j.comment]
    assert sum(bool(j.nodes) for j in submitted) == (result.how == "successor")


@pytest.mark.parametrize("case", CASES)
def test_without_a_crash(case: str, tmp_path: Path) -> None:
    world, request = prepared(tmp_path, case)
    result = run(world, request)
    assert result.how == HOW.get(case, "requeued")
    assert set(world.slurm.job(result.job_id).excluded) == set(request.exclude)
    once(world, request, result)


@pytest.mark.parametrize("absence", [0.0, 5.0, 400.0])
@pytest.mark.parametrize("error", [Crash(), SlurmUnknown("no answer")])
@pytest.mark.parametrize("case", CASES)
def test_a_crash_at_every_call(case: str, error: BaseException, absence: float, tmp_path: Path) -> None:
    world, request = prepared(tmp_path, case)
    run(world, request)
    calls = len(world.slurm.calls)
    assert calls >= 5
    for number in range(calls):
        for after in (False, True):
            world, request = prepared(tmp_path, case)
            world.slurm.fail_call(number, error, after=after)
            with pytest.raises(type(error)):
                run(world, request)
            world.slurm.tick(absence)
            result = run(world, request)
            assert run(world, request).job_id == result.job_id
            once(world, request, result)


def test_a_requeue_by_slurm_is_patched_while_it_waits(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "healthy")
    request = restart_request(world, world.slurm.job(request.job_id), exclude=("n2",))
    world.slurm.requeue_behind(request.job_id)
    result = run(world, request)
    assert (result.how, result.restarts) == ("already", 1)
    assert "requeue_hold" not in [call[0] for call in world.slurm.calls]
    job = wait_for(world, request.job_id, lambda job: job.state is JobState.RUNNING, timeout=5)
    assert "n2" not in job.nodes


def test_hold_by_someone_else_stays(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "healthy")
    world.slurm.requeue_behind(request.job_id)
    world.slurm.hold_behind(request.job_id)
    assert run(world, request).how == "already"
    world.slurm.tick(200)
    assert world.slurm.job(request.job_id).held


def test_deliberate_hold_and_its_reason_stay_until_released(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "healthy")
    world.slurm.set_comment(request.job_id, "transom:test held: no progress")
    world.slurm.requeue_hold(request.job_id)
    assert run(world, replace(request, held=(request.job_id, 1))).how == "already"
    world.slurm.tick(200)
    assert world.slurm.job(request.job_id).held
    assert run(world, request).how == "already"
    job = world.slurm.job(request.job_id)
    assert (job.held, job.comment) == (False, "transom:test"), "nobody holds it on purpose: our own requeue, cut off"


def test_deliberately_held_successor_stays_held(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "resubmit")
    world.slurm.submit(submission(world, f"--comment={request.tag} held: no progress", "--hold"))
    result = run(world, replace(request, held=(2, 0)))
    assert (result.job_id, result.how, world.slurm.job(2).held) == (2, "successor", True)
    assert world.slurm.job(request.job_id).state is JobState.CANCELLED


def test_a_job_that_waits_already_is_not_resubmitted(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "resubmit")
    world.slurm.requeue_behind(request.job_id)
    assert (run(world, request).how, len(world.slurm.jobs())) == ("already", 1)


def test_a_job_that_a_person_cancelled_is_not_brought_back(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "healthy")
    world.slurm.cancel(request.job_id)
    world.slurm.tick(30)
    with pytest.raises(SlurmRefused, match="was cancelled"):
        run(world, request)
    assert world.slurm.job(request.job_id).state is JobState.CANCELLED
    assert "submit" not in [call[0] for call in world.slurm.calls[-3:]]


@pytest.mark.parametrize("silent", [False, True])
def test_of_a_forgotten_job_accounting_knows_that_a_person_cancelled_it(tmp_path: Path, silent: bool) -> None:
    world, request = prepared(tmp_path, "forgotten")
    world.slurm.accounting = not silent
    if silent:
        assert run(world, replace(request, since=0.0)).how == "successor"
        return
    with pytest.raises(JobCancelled, match="Job 1 was cancelled"):
        run(world, replace(request, since=0.0))
    assert [call[0] for call in world.slurm.calls] == ["jobs", "job", "history"], "asked once, and nothing submitted"
    assert run(world, request).how == "successor", "not asked"


def test_of_a_forgotten_job_any_other_end_is_followed_by_a_successor(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "failed")
    world.slurm.accounting = True
    world.slurm.tick(5)
    world.slurm.forget(request.job_id)
    result = run(world, replace(request, since=0.0))
    assert result.how == "successor"
    assert run(world, replace(request, since=0.0)) == result, "its successor is there: nobody is asked of the old one"


def test_an_older_job_with_the_same_id_is_not_ours(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "forgotten")
    world.slurm.accounting = True
    assert run(world, replace(request, since=1e6)).how == "successor"


def test_a_running_later_attempt_is_left_alone(tmp_path: Path) -> None:
    world, request = prepared(tmp_path, "healthy")
    world.slurm.requeue_behind(request.job_id)
    world.slurm.tick(130)
    world.slurm.calls.clear()
    assert run(world, request).how == "already"
    assert {call[0] for call in world.slurm.calls} == {"jobs", "job"}


def test_other_exclusions_are_kept_and_expired_ones_of_ours_go(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path)
    job = start(world, "--exclude=n3,n4", nodes=1)
    request = restart_request(world, job, exclude=("n1",), drop=("n4", "n1"), num_nodes=1)
    run(world, request)
    assert world.slurm.job(job.job_id).excluded == ("n3", "n1")


def test_a_submission_that_arrives_late_never_starts(tmp_path: Path) -> None:
    """sbatch's answer was lost, and Slurm took the job only after we had looked for it and submitted again."""
    world, request = prepared(tmp_path, "dead batch host")
    result = run(world, request)
    late = world.slurm.submit(submission(world, f"--comment={request.tag}", "--hold"))
    world.slurm.tick(5)
    assert run(world, request) == result
    assert world.slurm.job(late).state is JobState.CANCELLED
    assert world.slurm.job(result.job_id).state is JobState.RUNNING


def test_the_new_start_is_a_second_away_from_the_old(tmp_path: Path) -> None:
    """Without the pause the fake, as Slurm does, fails the new start: "Job credential revoked"."""
    world, request = prepared(tmp_path, "failed")
    job_id = request.job_id
    world.slurm.requeue_hold(job_id)
    world.slurm.release(job_id)
    world.slurm.tick(0.6)
    world.slurm.start_now(job_id)
    world.slurm.start_pending()
    assert world.slurm.job(job_id).state is JobState.FAILED
    assert run(*prepared(tmp_path, "failed")).how == "requeued"


@pytest.mark.parametrize(("case", "taken", "next_call"), [
    ("dead batch host", "submit", "release"),
    ("resubmit", "submit", "release"),
    ("healthy", "requeue_hold", "release"),
    ("dead node", "requeue_hold", "update_pending"),
    ("healthy", "requeue_hold", "job"),
])  # fmt: skip
def test_a_controller_that_comes_back_without_its_last_seconds(
    case: str, taken: str, next_call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slurmctld that is killed knows what it had saved: the job that it took, or its requeue, never was."""
    world, request = prepared(tmp_path, case)
    slurm, saved = world.slurm, []
    take, then = getattr(slurm, taken), getattr(slurm, next_call)

    def save_before(*words: object, **more: object) -> object:
        saved.append(copy.deepcopy(slurm.cluster))
        return take(*words, **more)

    def killed_before(*words: object, **more: object) -> object:
        if len(saved) == 1:
            slurm.cluster = saved[0]
            saved.append(None)
        return then(*words, **more)

    monkeypatch.setattr(slurm, taken, save_before)
    monkeypatch.setattr(slurm, next_call, killed_before)
    with pytest.raises(SlurmUnknown, match="Slurm has forgotten"):
        run(world, request)
    monkeypatch.undo()
    once(world, request, run(world, request))


@pytest.mark.parametrize(("nodes", "how", "most"), [(7, "requeued", 3.0), (8, "successor", IN_VAIN + 1.0)])
def test_what_would_be_waited_for_in_vain_is_not_waited_for_long(
    nodes: int, how: str, most: float, tmp_path: Path
) -> None:
    """Of a step on 8 nodes a living slurmstepd waits a minute for the dead one below it."""
    world = FakeWorld(tmp_path)
    world.slurm.cluster.nodes.update({f"n{i}": FakeNode(f"n{i}") for i in range(5, 11)})
    job = start(world, nodes=nodes)
    dead = (job.nodes[-1],)
    world.kill_node(dead[0])
    request = restart_request(world, job, dead, num_nodes=nodes, submission=submission(world, nodes=nodes))
    began = world.clock()
    result = restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock)
    assert result.how == how and world.clock() - began < most
    going = wait_for(world, result.job_id, lambda job: job.state is JobState.RUNNING, timeout=90)
    assert dead[0] not in going.nodes and len(going.nodes) == nodes


@pytest.mark.parametrize("case", ["healthy", "resubmit"])
def test_a_node_to_keep_off_that_was_deleted_meanwhile_keeps_the_job_from_nothing(case: str, tmp_path: Path) -> None:
    """Slurm refuses the whole list for one name that it does not know."""
    world, request = prepared(tmp_path, case)
    del world.slurm.cluster.nodes[world.nodes[3]]
    world.slurm.cluster.nodes["spare"] = FakeNode("spare")
    request = replace(request, exclude=(world.nodes[3], world.nodes[0]))
    once(world, request, run(world, request))
    (job,) = live(world)
    assert world.slurm.job(job.job_id).excluded == (world.nodes[0],)

"""One suite for every adapter of the `Slurm` protocol, and for the restart procedure on top of it.

Its worlds are in conftest.py; `make test-slurm` runs it on each release of Slurm, and makes a table of it.
"""

from __future__ import annotations

import os
import signal

import pytest
from slurm_worlds import (
    FakeWorld,
    RealWorld,
    World,
    restart_request,
    running,
    start,
    submission,
    wait_for,
    write_script,
)

from transom_cli.slurm.port import (
    Job,
    JobState,
    NoSuchJob,
    SlurmDenied,
    SlurmRefused,
    SlurmUnknown,
    Submission,
)
from transom_cli.slurm.requeue import SETTLE, restart_job
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.operator.drain import drain, is_ours, reason


def end_with(world: World, *codes: int) -> list[Job]:
    """For each exit code a job of one node whose script has ended with it."""
    numbers = []
    for code in codes:
        numbers.append(world.slurm.submit(submission(world, nodes=1, text=f"#!/bin/bash\nexit {code}\n")))
        if isinstance(world, FakeWorld):
            wait_for(world, numbers[-1], running)
            world.slurm.finish(numbers[-1], code)
    return [wait_for(world, number, lambda job: job.state.ended and not job.completing) for number in numbers]


def restart(world: World, request):  # type: ignore[no-untyped-def]
    return restart_job(world.slurm, request, sleep=world.sleep, clock=world.clock)


def test_submitted_jobs_are_seen_in_one_call(world: World) -> None:
    tagged = submission(world, "--comment=transom:r1 x=y", "--job-name=a b=c", f"--exclude={world.nodes[3]}")
    first = world.slurm.submit(tagged)
    second = world.slurm.submit(submission(world, "--hold", nodes=1))
    wait_for(world, first, running)
    jobs = {job.job_id: job for job in world.slurm.jobs()}
    assert jobs.keys() >= {first, second}
    assert jobs[first].state is JobState.RUNNING and not jobs[first].held
    assert (jobs[first].comment, jobs[first].name) == ("transom:r1 x=y", "a b=c")
    assert jobs[first].nodes == world.nodes[:3] and jobs[first].batch_host == world.nodes[0]
    assert (jobs[first].restarts, jobs[first].num_nodes) == (0, 3)
    assert jobs[second].state is JobState.PENDING and jobs[second].held
    one = world.slurm.job(first)
    assert one.excluded == (world.nodes[3],)
    assert (one.state, one.nodes, one.comment, one.name) == (
        jobs[first].state, jobs[first].nodes, jobs[first].comment, jobs[first].name
    )  # fmt: skip


def test_exit_codes_are_reported_unchanged(world: World) -> None:
    """221 is no 93, the code with which a trainer asks not to be restarted."""
    codes = (7, 93, 128, 137, 221)
    jobs = end_with(world, *codes)
    assert [(job.state, job.exit_code, job.exit_signal) for job in jobs] == [(JobState.FAILED, c, 0) for c in codes]
    listed = {job.job_id: job.exit_code for job in world.slurm.jobs()}
    assert [listed[job.job_id] for job in jobs] == list(codes)


def test_requeue_by_hand_in_the_only_order_that_works(world: World) -> None:
    job = start(world)
    with pytest.raises(SlurmRefused, match="refused"):
        world.slurm.update_pending(job.job_id, exclude=[world.nodes[0]])
    world.slurm.requeue_hold(job.job_id)
    held = wait_for(world, job.job_id, lambda j: j.state is JobState.PENDING and not j.completing)
    assert held.held and held.restarts == 1 and held.reason == "job_requeued_in_held_state"
    world.slurm.requeue_hold(job.job_id)
    world.slurm.update_pending(job.job_id, exclude=[world.nodes[0]], num_nodes=3)
    world.slurm.release(job.job_id)
    world.slurm.release(job.job_id)
    waiting = world.slurm.job(job.job_id)
    assert not waiting.held and waiting.restarts == 1
    assert (waiting.excluded, waiting.num_nodes) == ((world.nodes[0],), 3)
    world.slurm.update_pending(job.job_id, exclude=[])
    assert world.slurm.job(job.job_id).excluded == ()


def test_a_job_that_its_partition_cannot_start_is_released_all_the_same(world: World) -> None:
    """scontrol tells that it cannot start, with an exit code, and has released it."""
    job_id = world.slurm.submit(submission(world, "--hold", nodes=99))
    assert world.slurm.job(job_id).held
    world.slurm.release(job_id)
    waiting = world.slurm.job(job_id)
    assert waiting.state is JobState.PENDING and not waiting.held
    world.slurm.cancel(job_id)


def test_a_plain_requeue_waits_for_slurm(world: World) -> None:
    job = start(world)
    world.slurm.requeue(job.job_id)
    waiting = wait_for(world, job.job_id, lambda j: j.state is JobState.PENDING and not j.completing)
    assert not waiting.held and waiting.restarts == 1
    world.slurm.requeue(job.job_id)
    assert world.slurm.job(job.job_id).restarts == 1
    with pytest.raises(SlurmRefused, match="refused"):
        world.slurm.requeue(start(world, "--no-requeue").job_id)


@pytest.mark.parametrize(
    "options",
    [(), ("--gres=gpu:1",), ("--cpus-per-task=2", "--gres=gpu:1")],
    ids=["plain", "gpu", "cpus and gpu"],
)
def test_node_count_update_also_sets_the_tasks(world: World, options: tuple[str, ...]) -> None:
    job = start(world, *options, nodes=4)
    world.slurm.requeue_hold(job.job_id)
    wait_for(world, job.job_id, lambda j: j.state is JobState.PENDING and not j.completing)
    world.slurm.update_pending(job.job_id, exclude=[world.nodes[3]], num_nodes=3, num_tasks=3)
    world.slurm.release(job.job_id)
    world.sleep(SETTLE)
    world.slurm.start_now(job.job_id)
    again = wait_for(world, job.job_id, running)
    assert len(again.nodes) == 3 and world.nodes[3] not in again.nodes


def test_restart_excludes_and_does_not_wait_two_minutes(world: World) -> None:
    job = start(world, f"--exclude={world.nodes[3]}")
    request = restart_request(world, job, exclude=(world.nodes[1],), drop=(world.nodes[3],))
    begun = world.clock()
    result = restart(world, request)
    assert (result.job_id, result.restarts, result.how) == (job.job_id, 1, "requeued")
    again = wait_for(world, job.job_id, lambda j: running(j) or j.state.ended)
    assert world.clock() - begun < 60
    assert again.state is JobState.RUNNING  # a start in the second of the last end would have failed
    assert again.excluded == (world.nodes[1],) and world.nodes[1] not in again.nodes

    assert restart(world, request).how == "already"
    assert world.slurm.job(job.job_id).restarts == 1 and running(world.slurm.job(job.job_id))


def test_a_dead_node_does_not_hold_the_job(world: World) -> None:
    job = start(world, f"--exclude={world.nodes[3]}")
    dead = job.nodes[2]
    world.kill_node(dead)
    result = restart(world, restart_request(world, job, (dead,), drop=(world.nodes[3],)))
    assert (result.job_id, result.how) == (job.job_id, "requeued")
    again = wait_for(world, job.job_id, running)
    assert dead not in again.nodes and len(again.nodes) == 3 and again.num_nodes == 3


def test_a_dead_batch_host_gets_a_successor(world: World) -> None:
    job = start(world, f"--exclude={world.nodes[3]}")
    dead = job.batch_host
    world.kill_node(dead)
    with pytest.raises(SlurmRefused, match="refused"):
        world.slurm.shrink(job.job_id, [node for node in job.nodes if node != dead])
    request = restart_request(world, job, (dead,), drop=(world.nodes[3],))
    result = restart(world, request)
    assert result.how == "successor" and result.job_id != job.job_id and result.restarts == 0
    again = wait_for(world, result.job_id, running)
    assert dead not in again.nodes and again.comment == request.tag
    assert not running(world.slurm.job(job.job_id))

    assert restart(world, request) == result
    alive = [j for j in world.slurm.jobs() if j.state in (JobState.PENDING, JobState.RUNNING) and not j.completing]
    assert [j.job_id for j in alive] == [result.job_id]


def test_a_job_that_has_failed_is_requeued_too(world: World) -> None:
    (failed,) = end_with(world, 7)
    result = restart(world, restart_request(world, failed, num_nodes=1))
    assert (result.job_id, result.restarts, result.how) == (failed.job_id, 1, "requeued")


def test_successor_of_a_forgotten_job_must_have_a_higher_id(world: World) -> None:
    """Else slurmctld has lost its state. (A successor of a forgotten job: test_requeue_crash, e2e/test_slurm_away.)"""
    job = start(world, nodes=1)
    world.slurm.cancel(job.job_id)
    request = restart_request(world, job, job_id=60_000_000)
    with pytest.raises(NoSuchJob):
        world.slurm.job(request.job_id)
    for _ in range(2):
        with pytest.raises(SlurmRefused, match="Slurm's job ID counter was reset"):
            restart(world, request)
    tagged = [job for job in world.slurm.jobs() if request.tag in job.comment]
    assert tagged and all(job.state is JobState.CANCELLED and not job.nodes for job in tagged), "taken back, never run"


def test_a_script_that_names_the_bad_node_waits_for_it(world: World) -> None:
    """sbatch refuses the two together, which must not be the end of the run: a person may lift the exclusion."""
    job = start(world, f"--nodelist={world.nodes[1]}", nodes=1)
    asks = submission(world, f"--nodelist={job.nodes[0]}", nodes=1)
    request = restart_request(world, job, num_nodes=1, resubmit=True, exclude=job.nodes, submission=asks)
    result = restart(world, request)
    assert result.how == "successor" and restart(world, request).job_id == result.job_id
    waits = wait_for(world, result.job_id, lambda one: one.held and one.reason.startswith("BadConstraints"))
    assert waits.excluded == job.nodes
    world.slurm.update_pending(result.job_id, exclude=())
    world.slurm.release(result.job_id)
    assert wait_for(world, result.job_id, running).nodes == job.nodes


@pytest.mark.parametrize("resubmit", [False, True], ids=["without", "resubmitted"])
def test_a_job_without_requeue_or_to_be_resubmitted_gets_a_successor(world: World, resubmit: bool) -> None:
    job = start(world, "--requeue" if resubmit else "--no-requeue")
    request = restart_request(world, job, resubmit=resubmit)
    result = restart(world, request)
    assert result.how == "successor"
    assert world.slurm.job(job.job_id).state is not JobState.RUNNING
    assert restart(world, request) == result


def test_a_comment_is_set_while_the_job_runs_and_while_it_is_held(world: World) -> None:
    job = start(world, "--comment=transom:r1", nodes=1)
    words = """transom:r1 held: it's "so" (100 %), $HOME; StdErr: none, ../a\\b"""
    world.slurm.set_comment(job.job_id, words)
    assert world.slurm.job(job.job_id).comment == words
    world.slurm.requeue_hold(job.job_id)
    held = wait_for(world, job.job_id, lambda j: j.state is JobState.PENDING and not j.completing)
    assert held.held and held.comment == words, "a requeue keeps it"
    assert next(j for j in world.slurm.jobs() if j.job_id == job.job_id).comment == words
    world.slurm.set_comment(job.job_id, "transom:r1")
    assert world.slurm.job(job.job_id).comment == "transom:r1"
    with pytest.raises(NoSuchJob):
        world.slurm.set_comment(99_999_999, "x")


def test_a_job_that_waits_for_another_starts_once_that_one_has_ended(world: World) -> None:
    first = start(world, nodes=1)
    second = world.slurm.submit(submission(world, f"--dependency=afterany:{first.job_id}", nodes=1))
    waiting = wait_for(world, second, lambda j: j.reason == "Dependency")
    assert waiting.state is JobState.PENDING and not waiting.held
    world.slurm.cancel(first.job_id)
    wait_for(world, second, running)
    assert not world.slurm.job(first.job_id).completing


def test_cancel_twice_and_of_a_forgotten_job(world: World) -> None:
    job = start(world)
    world.slurm.cancel(job.job_id)
    world.slurm.cancel(job.job_id)
    world.slurm.cancel(99_999_999)
    assert wait_for(world, job.job_id, lambda j: not j.completing).state is JobState.CANCELLED


@pytest.mark.root
def test_an_ordinary_user_may_not_drain(world: World) -> None:
    if os.geteuid() != 0 and not isinstance(world, FakeWorld):
        pytest.skip("this user owns the sandbox; another user can be made only by root")
    with pytest.raises(SlurmDenied) as raised:
        world.slurm.drain(world.nodes[0], "transom: i1")
    assert "Invalid user id" in raised.value.why and raised.value.exit_code == 13


def test_drain_keeps_a_foreign_reason_and_undrain_leaves_it(world: World) -> None:
    node = world.nodes[1]
    world.admin.drain(node, "transom: lost (r1)")
    world.admin.drain(node, "another")
    (seen,) = world.slurm.nodes([node])
    assert seen.drain and not seen.usable and seen.reason == "transom: lost (r1)"
    with pytest.raises(SlurmRefused, match=r"refused|another reason") as raised:
        world.admin.undrain(node, reason="another")
    assert "transom: lost (r1)" in raised.value.why
    world.admin.undrain(node, reason="transom: lost (r1)")
    world.admin.undrain(node, reason="transom: lost (r1)")
    assert not world.slurm.nodes([node])[0].drain
    assert {n.name for n in world.slurm.nodes()} == set(world.nodes)


def test_drain_reason_round_trips_and_allows_resume(world: World) -> None:
    run = "it's.a-run-20260101-120000-ab12"
    odd = """xid: it's "so" (100 %), $HOME = /x; a=b Comment=none [root@x] \\n, """ + "x" * 200
    node = world.nodes[1]
    assert drain(world.admin, (), node, reason(odd, run)) == ("drained", "")
    (seen,) = world.slurm.nodes([node])
    assert seen.drain and seen.reason == reason(odd, run) and is_ours(seen, run)
    assert drain(world.admin, (), node, reason("another", "r2")) == ("drained", "")
    assert world.slurm.nodes([node])[0].reason == seen.reason
    world.admin.undrain(node, reason=seen.reason)
    assert not world.slurm.nodes([node])[0].drain


@pytest.mark.parametrize("down", [False, True], ids=["drained", "down"])
def test_node_drained_by_someone_else_is_left_alone(world: World, down: bool) -> None:
    node, why = world.nodes[2], "fans: ticket 12 (ann)"
    if down:
        world.take_down(node, why)
    else:
        world.admin.drain(node, why)
    (before,) = world.slurm.nodes([node])
    how, detail = drain(world.slurm, (), node, reason("xid: 79", "r1"))
    assert how == "drained" and detail == f"by {before.reason_user}: {why}"
    assert world.slurm.nodes([node]) == [before]


def test_refusals_quote_slurm(world: World) -> None:
    with pytest.raises(SlurmRefused) as raised:
        world.slurm.submit(submission(world, "--partition=nope"))
    assert "Invalid partition name specified" in raised.value.why
    with pytest.raises(SlurmRefused) as raised:
        world.slurm.submit(Submission(world.folder / "no such.sbatch"))
    assert "Unable to open file" in raised.value.why and "no such.sbatch" in raised.value.why
    with pytest.raises(SlurmRefused, match="refused") as raised:
        world.slurm.nodes(["nowhere"])
    assert "nowhere" in raised.value.why


def test_no_accounting_is_unknown_and_not_an_empty_history(world: World) -> None:
    job = start(world, nodes=1)
    with pytest.raises(SlurmUnknown):
        world.slurm.history(job.job_id)


def test_odd_paths_arguments_and_environment_reach_the_job(real_world: RealWorld) -> None:
    script = write_script(real_world, name='-s it\'s\n"x" $HOME.sbatch')
    out = real_world.folder / "what it\ngot"
    args = (str(out), "a  b", "$two", "th'r\"ee", "four\nfive")
    job_id = real_world.slurm.submit(
        Submission(
            script,
            ("--mem=100", "--output=/dev/null", "--comment=a\nb"),
            args,
            {"EXTRA": "b ar\n'"},
            chdir=real_world.folder,
        )
    )
    job = wait_for(real_world, job_id, lambda job: running(job) and out.exists() and out.read_text() != "")
    assert out.read_text() == "".join(f"{word}\n" for word in (*args, "b ar\n'"))
    assert job.name == script.name
    assert next(j for j in real_world.slurm.jobs() if j.job_id == job_id).name == script.name


def test_a_stuck_controller_is_unknown_and_the_job_lives(real_world: RealWorld) -> None:
    job = start(real_world, nodes=1)
    hasty = real_world.client(Runner(env=real_world.env, prefix=real_world.prefix, timeout=1.5))
    controller = int((real_world.sandbox.dir / "run" / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        for ask in (hasty.jobs, lambda: hasty.job(job.job_id), lambda: hasty.requeue_hold(job.job_id)):
            with pytest.raises(SlurmUnknown) as raised:
                ask()
            assert raised.value.exit_code == 12 and "ping" in raised.value.hint
    finally:
        os.kill(controller, signal.SIGCONT)
    wait_for(real_world, job.job_id, lambda j: j.state in (JobState.RUNNING, JobState.PENDING))

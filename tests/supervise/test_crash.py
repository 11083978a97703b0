"""kill -9 at every point of an incident: what the cluster saw is counted afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_world import Operator, World

from transom_cli.core import events as ev
from transom_cli.core.operator.state import Phase, State
from transom_cli.slurm.port import JobState, SlurmUnknown
from transom_cli.supervise.journal import read_events

WORKER, BATCH_HOST = "n2", "n1"


def check(world: World, state: State) -> None:
    assert state.phase is Phase.DONE, state.verdict
    jobs = list(world.slurm.cluster.jobs.values())
    told = read_events(world.run.journal)
    starts = [p for p in world.slurm.cluster.past if p.nodes]
    assert world.victim not in starts[-1].nodes, "started on the dead node again"
    assert sorted(j.state.value for j in jobs) in (["COMPLETED"], ["CANCELLED", "COMPLETED"])
    ended_well = next(j for j in jobs if j.state is JobState.COMPLETED)
    requeues = sum(j.restarts for j in jobs)
    assert requeues + (ended_well is not jobs[0]) == 1, "not exactly one requeue or one successor"
    if world.victim == WORKER:
        assert len(jobs) == 1
    assert len(starts) == 2
    isolated = [e.node for e in told if isinstance(e, ev.Isolated)]
    assert isolated in ([world.victim], []), isolated
    drained = [n.name for n in world.slurm.cluster.nodes.values() if n.drain]
    assert drained in ([world.victim], [])
    assert len([i for i in state.incidents if i.result == "recovered"]) == 1


def fresh(folder: Path, victim: str) -> World:
    folder.mkdir(parents=True)
    return World(folder, victim)


def points(folder: Path, victim: str) -> int:
    """How many points an incident has at which the operator may be killed."""
    world = fresh(folder, victim)
    state = world.live((10**6,), 0.0)
    check(world, state)
    left = world.slurm.fuse.left
    assert left is not None
    return 10**6 - left


@pytest.mark.parametrize("absence", [0.0, 400.0], ids=["back at once", "back after minutes"])
@pytest.mark.parametrize("victim", [WORKER, BATCH_HOST])
def test_killed_at_every_point(tmp_path: Path, victim: str, absence: float) -> None:
    count = points(tmp_path / "whole", victim)
    assert count > 60
    for at in range(count):
        world = fresh(tmp_path / str(at), victim)
        state = world.live((at,), absence)
        assert world.operators == 2
        check(world, state)


@pytest.mark.parametrize("victim", [WORKER, BATCH_HOST])
def test_killed_again_and_again(tmp_path: Path, victim: str) -> None:
    """Every operator dies after a few points more; the incident still gets to its end."""
    for life in (3, 5, 8, 13):
        world = fresh(tmp_path / str(life), victim)
        check(world, world.live((life,) * 15, 0.2))


@pytest.mark.parametrize("taken", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("victim", [WORKER, BATCH_HOST])
def test_any_answer_of_slurm_is_lost(tmp_path: Path, victim: str, taken: bool) -> None:
    """A call that Slurm did not answer, whether it took effect or not, is tried again and takes effect once."""
    world = fresh(tmp_path / "whole", victim)
    world.live((), 0.0)
    for number in range(len(world.slurm.calls)):
        world = fresh(tmp_path / str(number), victim)
        world.slurm.fail_call(number, SlurmUnknown("Slurm did not answer", "Socket timed out"), after=taken)
        check(world, world.live((), 0.0))


def test_an_ordinary_user_excludes_what_it_may_not_drain(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    world = World(tmp_path / "run", WORKER, admin=False)
    state = world.live((), 0.0)
    check(world, state)
    assert [(x.node, x.how, x.until) for x in state.isolation.exclusions] == [(WORKER, "excluded", None)]
    assert not any(n.drain for n in world.slurm.cluster.nodes.values())


def test_stop_in_the_middle_of_a_restart_leaves_no_job(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    world = World(tmp_path / "run", WORKER)
    operator = Operator(world)
    perform = operator.hands._perform

    def stopped_meanwhile(action: object) -> ev.Event:
        if type(action).__name__ == "Restart":
            operator._hear(ev.StopRequested(world.slurm.clock(), "ann"))
        return perform(action)  # type: ignore[arg-type]

    operator.hands._perform = stopped_meanwhile  # type: ignore[method-assign, assignment]
    state = operator.work()
    assert (state.phase, state.exit_code, state.verdict) == (Phase.STOPPED, 130, "stopped by ann")
    assert [j.state for j in world.slurm.cluster.jobs.values()] == [JobState.CANCELLED]

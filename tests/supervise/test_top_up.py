"""A launch on the nodes of two jobs, and the job that brings the second ones."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core.launcher import Event, SubmitTopUp, TopUpEnded, TopUpStarted, TopUpSubmitted
from transom_cli.layout import RunDir
from transom_cli.slurm.port import SlurmRefused, SlurmUnknown, Submission
from transom_cli.submit.render import top_up_comment
from transom_cli.supervise.agent.rank_wrapper import Options, across_jobs, rank_environment
from transom_cli.supervise.launcher import top_up
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions, agent_argv, training_argv
from transom_cli.supervise.launcher.top_up import TopUps

NODES = ("n1", "n2")


def options(run: RunDir, **more: Any) -> LaunchOptions:
    return LaunchOptions(run, "srun", ("true",), (sys.executable,), tasks_per_node=2, **more)


def test_a_launch_on_two_jobs_is_one_step_in_each() -> None:
    run, allocation = RunDir(Path("run")), Allocation(7, 0, NODES, borrowed={"m1": 8})
    nodes = ("n1", "m1", "n2")
    assert allocation.by_job(nodes) == {7: ("n1", "n2"), 8: ("m1",)}
    words = {
        job: training_argv(
            allocation, options(run), run.attempt(7, 0), 3, part, wrapper=Path("w"), master="n1", every=nodes
        )
        for job, part in allocation.by_job(nodes).items()
    }
    assert "--jobid=8" in words[8] and not any(word.startswith("--jobid") for word in words[7])
    assert {"--nodelist=m1", "--ntasks=2", "--overlap"} <= set(words[8])
    assert all(argv[argv.index("--hosts") + 1] == "n1,m1,n2" for argv in words.values())
    assert "--jobid=8" in agent_argv(allocation, options(run), run.attempt(7, 0), "m1")
    env = {"PATH": "/bin", "SLURM_CONF": "c", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SBATCH_X": "1"}
    assert allocation.step_env(env, 8) == {"PATH": "/bin", "SLURM_CONF": "c"} and allocation.step_env(env, 7) == env


def test_a_run_that_grew_again_does_not_wait_for_what_its_lost_node_still_holds() -> None:
    run, allocation = RunDir(Path("run")), Allocation(7, 0, NODES)
    about = (run.attempt(7, 0), 2, NODES)
    argv = training_argv(allocation, options(run, min_nodes=1), *about, wrapper=Path("w"), master="n1")
    assert {"--overlap", "--mem=0"} <= set(argv)
    assert "--overlap" not in training_argv(allocation, options(run), *about, wrapper=Path("w"), master="n1")


@pytest.mark.parametrize(("node", "task", "rank"), [("n1", 1, 1), ("m1", 0, 2), ("n2", 1, 5)])
def test_ranks_of_two_jobs_are_numbered_as_in_one_step(
    monkeypatch: pytest.MonkeyPatch, node: str, task: int, rank: int
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", node)
    argv = ["--attempt-dir", "/run/attempts/7.1", "--hosts", "n1,m1,n2", "--tasks-per-node", "2", "--", "true"]
    chosen = Options(argv)
    slurm = {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), "SLURM_NTASKS": "2", "SLURM_JOB_ID": "8"}
    env = rank_environment(across_jobs(slurm, chosen), chosen)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == (str(rank), "6", str(task))
    assert (env["SLURM_PROCID"], env["SLURM_NTASKS"], env["LOCAL_WORLD_SIZE"]) == (str(rank), "6", "2")
    assert (env["SLURM_JOB_ID"], env["SLURM_RESTART_COUNT"]) == ("7", "1"), "ranks name shared things by it"


class NoAgents:
    """Agents that answer at once."""

    def __init__(self) -> None:
        self.added: list[str] = []

    def add(self, nodes: tuple[str, ...], *_: object) -> None:
        self.added += nodes

    def ask(self, *_: object, **__: object) -> dict[str, object]:
        return {"ok": True}


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.slurm = FakeSlurm(("n1", "n2", "n3", "n4"))
        run = RunDir(tmp_path / "run-1")
        self.attempt = run.attempt(1, 0)
        self.attempt.path.mkdir(parents=True)
        self.script = tmp_path / "job.sh"
        self.script.write_text("#!/bin/bash\n")
        job_id = self.slurm.submit(Submission(self.script, ("--nodes=2",)))
        self.slurm.start_pending()
        self.allocation = replace(Allocation(job_id, 0, self.slurm.job(job_id).nodes), borrowed={})
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.agents = NoAgents()
        wanted = options(run, top_up=("--job-name=top-up",), min_nodes=1)
        self.jobs = TopUps(
            self.allocation, wanted, self.attempt, self.agents, lambda _: self.slurm, self.events  # type: ignore[arg-type]
        )  # fmt: skip
        self.comment = top_up_comment(run.run_id, self.attempt.name)

    def ours(self) -> list[int]:
        return [job.job_id for job in self.slurm.jobs() if job.comment == self.comment and not job.state.ended]

    def until(self, kind: type[Event], ready: Callable[[Any], bool] = lambda _: True) -> Any:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            event = self.events.get(timeout=60)
            if isinstance(event, kind) and ready(event):
                return event
        raise AssertionError(kind)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(top_up, "SOON", 0.01)
    return World(tmp_path)


def test_a_top_up_job_brings_other_nodes_than_the_runs_own(world: World) -> None:
    world.jobs.submit(SubmitTopUp(1, 2))
    answer = world.until(TopUpSubmitted)
    world.slurm.start_pending()
    started = world.until(TopUpStarted)
    assert (started.job_id, started.nodes) == (answer.job_id, ("n3", "n4")) and world.ours() == [answer.job_id]
    assert world.agents.added == ["n3", "n4"] and world.allocation.borrowed == {
        "n3": started.job_id,
        "n4": started.job_id,
    }
    world.slurm.cancel(started.job_id)
    assert world.until(TopUpEnded).job_id == started.job_id and not world.allocation.borrowed
    world.jobs.stop()


def test_a_submission_without_an_answer_is_found_again_and_not_repeated(world: World) -> None:
    world.slurm.fail_next("submit", SlurmUnknown("no answer"), after=True)
    world.jobs.submit(SubmitTopUp(1, 1))
    assert world.until(TopUpSubmitted).job_id == 0
    (known,) = world.ours()
    world.jobs.submit(SubmitTopUp(1, 1))
    assert world.until(TopUpSubmitted).job_id == known and world.ours() == [known]
    world.jobs.stop()
    assert world.ours() == []


def test_a_refusal_is_reported_with_slurms_reason(world: World) -> None:
    world.slurm.fail_next("submit", SlurmRefused("sbatch", "QOSMaxSubmitJobPerUserLimit"))
    world.jobs.submit(SubmitTopUp(1, 1))
    answer = world.until(TopUpSubmitted)
    assert answer.job_id == 0 and "QOSMaxSubmitJobPerUserLimit" in answer.words and world.ours() == []


def test_no_other_job_is_cancelled(world: World) -> None:
    other = world.slurm.submit(Submission(world.script, ("--nodes=1", "--comment=mine")))
    world.jobs.cancel(other)
    world.jobs.stop()
    assert not world.slurm.job(other).state.ended
    assert not world.slurm.job(world.allocation.job_id).state.ended

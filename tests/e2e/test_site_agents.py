"""Agents where a site binds tasks to cores, ends steps soon after their first task, and requests GPUs per task."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over
from slurm_support import release_home, require_slurm

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.fault_processes import find_agent

pytestmark = pytest.mark.sandbox
WAIT = 3


@pytest.fixture
def cluster(short_dir: Path) -> Iterator[Sandbox]:
    require_slurm()
    extra = {"TaskPlugin": "task/affinity", "WaitTime": str(WAIT)}
    sandbox = Sandbox.up(SandboxSpec(short_dir / "bound", 2, 2, extra=extra, home=release_home()))
    yield sandbox
    sandbox.down()


@pytest.mark.long
def test_agents_use_every_cpu_see_every_gpu_and_outlive_one_that_is_killed(person: Person, cluster: Sandbox) -> None:
    """What was seen: agents on CPU 0 alone, one GPU of two, and all agents ended when one was killed."""
    person = replace(person, env={**person.env, **cluster.env()})
    asked = ("-N", "2", "--tasks-per-node", "2", "--set", 'job.sbatch=["--gpus-per-task=1"]')
    run = person.start(*asked, "--", *COMMAND, "--steps", "150")
    view = person.wait(run, at_step(5))
    job, nodes = view["job_id"], ("node1", "node2")
    agents = {node: find_agent(cluster, job, node)[0] for node in nodes}
    for agent in agents.values():
        assert os.sched_getaffinity(agent.pid) == os.sched_getaffinity(0)
        assert agent.environ["SLURM_CPU_BIND_TYPE"] == "none", "a job's two cores may be all that this machine has"
        assert agent.environ["SLURM_STEP_GPUS"] == "0,1"
    faults.kill_agent(cluster, job, "node1")
    time.sleep(WAIT + 3.0)
    assert find_agent(cluster, job, "node2")[0].pid == agents["node2"].pid, "the other agent's death ended it"
    view = person.wait(run, over)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 0, []), view["verdict"]


@pytest.mark.long
def test_agents_and_their_snapshot_daemons_keep_to_the_cpus_that_are_set(person: Person, cluster: Sandbox) -> None:
    person = replace(person, env={**person.env, **cluster.env()})
    run = person.start("-N", "1", "--set", "launch.agent_cpus=1", "--", *COMMAND, "--steps", "60")
    job = person.wait(run, at_step(5))["job_id"]
    family = find_agent(cluster, job, "node1")
    assert len(family) > 1, "its snapshot daemon"
    assert {cpu for process in family for cpu in os.sched_getaffinity(process.pid)} == {1}
    assert person.wait(run, over)["phase"] == "done"

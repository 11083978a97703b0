"""Hot spares on a real Slurm: they take the place of a node that fails, without the queue."""

from __future__ import annotations

import json

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox


def launches(run: RunDir, job_id: int) -> list[list[str]]:
    lines = run.attempt(job_id, 0).launcher_journal.read_text().splitlines()
    return [r["nodes"] for r in map(json.loads, lines) if r["type"] == "launch"]


def ready(run: RunDir, job_id: int, words: str = "") -> bool:
    lines = run.attempt(job_id, 0).launcher_journal.read_text().splitlines()
    return any(r["type"] == "spare" and r["words"].startswith(words) for r in map(json.loads, lines))


@pytest.mark.long
def test_a_spare_takes_the_place_of_a_dead_node(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "3", "--spares", "1", "--", *COMMAND, "--steps", "100")
    job_id = person.wait(run, at_step(10))["job_id"]
    person.wait(run, lambda _: ready(run, job_id, "warm: "))
    faults.kill_node(sandbox, "node2")
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 100, 0), "the job was never requeued"
    assert launches(run, job_id) == [["node1", "node2", "node3"], ["node1", "node4", "node3"]]
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered" and "swapped" in [m[1] for m in incident["marks"]]
    assert [(x[0], x[1]) for x in view["excluded"]] == [("node2", "drained")]
    resumed = (run.attempt(job_id, 0).logs(1) / "rank-0.log").read_text()
    assert "goes on from step" in resumed and "from step 0" not in resumed


def places(run: RunDir, job_id: int, launch: int) -> dict[int, tuple[str, ...]]:
    """By rank what it said of itself: its node, and what Slurm and the wrapper gave it."""
    found = {}
    for log in run.attempt(job_id, 0).logs(launch).glob("rank-*.log"):
        line = next(line for line in log.read_text().splitlines() if line.startswith("I am "))
        rank, *where = line.removeprefix("I am ").split()
        assert log.name == f"rank-{rank}.log"
        found[int(rank)] = tuple(where)
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_ranks_on_healthy_nodes_keep_their_numbers_when_a_spare_replaces_a_node(
    person: Person, sandbox: Sandbox
) -> None:
    tell = 'echo "I am $RANK $SLURMD_NODENAME proc=$SLURM_PROCID local=$LOCAL_RANK of=$LOCAL_WORLD_SIZE/$WORLD_SIZE"'
    command = ("sh", "-c", f'{tell}; exec "$@"', "sh", *COMMAND, "--steps", "100")
    run = person.start("-N", "3", "--tasks-per-node", "2", "--spares", "1", "--", *command)
    job_id = person.wait(run, at_step(10), 180)["job_id"]
    person.wait(run, lambda _: ready(run, job_id, "warm: "), 180)
    faults.kill_node(sandbox, "node2")
    view = person.wait(run, over, 300)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 100, 0)
    before, after = places(run, job_id, 0), places(run, job_id, 1)
    assert before[2][0] == before[3][0] == "node2" and after[2][0] == after[3][0] == "node4"
    assert {r: after[r] for r in (0, 1, 4, 5)} == {r: before[r] for r in (0, 1, 4, 5)}
    assert [after[r][1:] for r in range(6)] == [before[r][1:] for r in range(6)]
    exits = {n: json.loads((run.attempt(job_id, 0).exits(1) / f"rank-{n}.json").read_text())["node"] for n in range(6)}
    assert exits == {n: after[n][0] for n in range(6)}


@pytest.mark.long
def test_dead_spare_does_not_affect_the_run(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--spares", "1", "--", *COMMAND, "--steps", "150")
    view = person.wait(run, at_step(10))
    person.wait(run, lambda _: ready(run, view["job_id"]))
    spare = launches(run, view["job_id"])
    assert spare == [["node1", "node2"]]
    faults.kill_node(sandbox, "node3")
    person.wait(run, lambda v: v["step"] >= 60)
    faults.kill_rank(sandbox, view["job_id"], 0)
    view = person.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 0)
    assert launches(run, view["job_id"]) == [["node1", "node2"]] * 2


@pytest.mark.long
def test_a_node_that_an_admin_drains_is_left_with_a_checkpoint(person: Person, sandbox: Sandbox) -> None:
    """This trainer has no Checkpointer that could be asked: it is left at its own next checkpoint."""
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "450")
    view = person.wait(run, at_step(10))
    sandbox.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan")
    view = person.wait(run, lambda v: v["starts"] == 1 and v["step"] > 0)
    left = json.loads(run.attempt(view["job_id"], 0).outcome.read_text())
    assert (left["status"], left["cause"]) == ("left", "maintenance")
    assert "node2 is being drained; the newest durable step is" in left["why"]
    assert "node2" not in view["nodes"] and view["excluded"] == []
    resumed = (run.attempt(view["job_id"], 1).logs(0) / "rank-0.log").read_text()
    assert f"goes on from step {left['durable']}" in resumed
    assert person.transom("stop", run.run_id).returncode == 0


@pytest.mark.long
def test_drained_node_is_released_and_the_run_continues(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--spares", "1", "--", *COMMAND, "--steps", "700")
    job_id = person.wait(run, at_step(10))["job_id"]
    person.wait(run, lambda _: ready(run, job_id))
    sandbox.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan")

    def given_back(_: object) -> bool:
        return "State=IDLE+DRAIN" in sandbox.slurm("scontrol", "show", "node", "node2")

    view = person.wait(run, given_back, patience=150)
    assert launches(run, job_id) == [["node1", "node2"], ["node1", "node3"]] and view["starts"] == 0
    person.wait(run, lambda v: v["step"] >= 500)
    faults.kill_rank(sandbox, job_id, 1)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 700, 0, [])
    assert launches(run, job_id)[2:] == [["node1", "node3"]], "a relaunch in the smaller job"
    lines = [json.loads(x) for x in run.attempt(job_id, 0).launcher_journal.read_text().splitlines()]
    assert [r["words"] for r in lines if r["type"] == "give back"] == [
        "node2 is given back: it is being drained, and runs no rank any more"
    ]
    assert not [r for r in lines if r["type"] == "agent"], "no agent is started where the job is no more"


@pytest.mark.long
def test_old_ranks_on_a_node_that_was_frozen_are_ended_when_it_comes_back(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--spares", "1", "--", *COMMAND, "--steps", "500")
    job_id = person.wait(run, at_step(10))["job_id"]
    person.wait(run, lambda _: ready(run, job_id))
    faults.stop_node(sandbox, "node2")
    person.wait(run, lambda _: len(launches(run, job_id)) == 2)
    faults.cont_node(sandbox, "node2")

    def freed(_: object) -> list[str]:
        lines = run.attempt(job_id, 0).launcher_journal.read_text().splitlines()
        return [r["words"] for r in map(json.loads, lines) if r["type"] == "leftovers"]

    person.wait(run, lambda v: bool(freed(v)))
    assert freed(None) == ["node2 answers again: no process of launch 0 remains there"]
    told = json.loads((run.attempt(job_id, 0).exits(0) / "rank-1.json").read_text())
    assert told["node"] == "node2" and told["signal"] in (9, 15), "by us, or by Slurm where srun could still ask for it"
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 500, 0), "and the present launch was left alone"
    assert launches(run, job_id)[1:] == [["node1", "node3"]]

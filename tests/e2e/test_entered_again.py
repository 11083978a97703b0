"""Ranks that survive a fault stay on a real Slurm: they enter their training again, and the result is the same."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from e2e.support import STEPS, Person, at_step, over, remembering
from e2e.test_agents import wait_for
from e2e.test_spares import launches, ready
from integrations.test_replicas import assert_exact

from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir
from transom_cli.sandbox import faults, processes
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.fault_processes import find_rank

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(600)]


def logs(attempt: AttemptDir, launch: int) -> str:
    return "".join(path.read_text() for path in sorted(attempt.logs(launch).glob("rank-*.log")))


def recoveries(attempt: AttemptDir) -> list[dict[str, object]]:
    lines = (attempt.path / "launcher.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["type"] == "recovery"]


def test_survivors_stay_and_only_the_lost_rank_is_started(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    run = person.start("-N", "2", "--set", "launch.recoverable=true", "--", *remembering(tmp_path / "final"))
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    faults.kill_rank(sandbox, job, 1)
    wait_for(lambda: "goes on from step" in logs(attempt, 1), "no rank of launch 1")
    view = person.wait(run, over, 240)
    print(logs(attempt, 1)[-3000:])
    print(*recoveries(attempt), sep="\n")
    print(*[p.read_text() for p in attempt.exits(1).glob("*.json")], sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (tmp_path / "final").read_text() == undisturbed
    assert "rank 0 goes on from step" in logs(attempt, 1) and "entry 1" in logs(attempt, 1)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a process has outlived the run")


def test_only_the_hung_rank_is_replaced(person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str) -> None:
    run = person.start("-N", "2", "--set", "launch.recoverable=true", "--", *remembering(tmp_path / "final"))
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    (survivor, *_), (hung, *_) = (find_rank(sandbox, job, rank) for rank in (0, 1))
    faults.stop_rank(sandbox, job, 1)
    wait_for(lambda: "goes on from step" in logs(attempt, 1), "no rank of launch 1")
    assert find_rank(sandbox, job, 0)[0].ident == survivor.ident, "it was started again"
    assert hung.ident not in [proc.ident for proc in processes.of_job(sandbox.cluster, job)]
    view = person.wait(run, over, 240)
    print(*recoveries(attempt), sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (tmp_path / "final").read_text() == undisturbed
    assert "rank 0 goes on from step" in logs(attempt, 1) and "entry 1" in logs(attempt, 1)
    (recovered,) = [one["words"] for one in recoveries(attempt) if one["what"] == "recovered"]
    assert "a new process took rank 1, 1 survivor re-entered" in str(recovered)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a process has outlived the run")


def test_stuck_survivor_is_killed_and_replaced_alone(person: Person, sandbox: Sandbox, tmp_path: Path) -> None:
    run = person.start("-N", "3", "--set", "launch.recoverable=true", "--", *remembering(tmp_path / "final"))
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    stuck, stays = (find_rank(sandbox, job, rank)[0].ident for rank in (0, 2))
    faults.stop_rank(sandbox, job, 0)
    faults.kill_rank(sandbox, job, 1)
    wait_for(lambda: "rank 2 goes on from step" in logs(attempt, 1), "rank 2 is not in launch 1")
    assert find_rank(sandbox, job, 2)[0].ident == stays, "it was started again"
    assert stuck not in [proc.ident for proc in processes.of_job(sandbox.cluster, job)]
    view = person.wait(run, over, 240)
    print(logs(attempt, 1)[-3000:], *recoveries(attempt), sep="\n")
    assert (view["phase"], view["step"], view["starts"], len(launches(run, job))) == ("done", STEPS, 0, 2)
    (recovered,) = [one["words"] for one in recoveries(attempt) if one["what"] == "recovered"]
    assert "new processes took ranks 0, 1, 1 survivor re-entered" in str(recovered)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a process has outlived the run")


def test_survivor_stays_once_more_if_another_rank_dies_before_the_first_step(
    person: Person, sandbox: Sandbox, tmp_path: Path
) -> None:
    run = person.start("-N", "3", "--set", "launch.recoverable=true", "--", *remembering(tmp_path / "final"))
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    stays = find_rank(sandbox, job, 0)[0].ident
    faults.kill_rank(sandbox, job, 1)
    entered = [attempt.logs(1) / f"rank-{rank}.log" for rank in (0, 2)]
    wait_for(lambda: all(path.exists() for path in entered), "ranks 0 and 2 are not in launch 1")
    faults.kill_rank(sandbox, job, 2)
    wait_for(lambda: "rank 0 goes on from step" in logs(attempt, 2), "rank 0 is not in launch 2")
    assert find_rank(sandbox, job, 0)[0].ident == stays, "it was started again"
    view = person.wait(run, over, 240)
    print(logs(attempt, 1)[-3000:], logs(attempt, 2)[-3000:], *recoveries(attempt), sep="\n")
    assert (view["phase"], view["step"], view["starts"], len(launches(run, job))) == ("done", STEPS, 0, 3)
    (recovered,) = [one["words"] for one in recoveries(attempt) if one["what"] == "recovered"]
    assert "took ranks 1, 2, 1 survivor re-entered" in str(recovered)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a process has outlived the run")


def test_survivors_go_on_from_their_own_state_without_a_snapshot(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    command = remembering(tmp_path / "final", "--every", "1000")
    run = person.start("-N", "2", "--set", "launch.recoverable=true", "--", *command)
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    faults.kill_rank(sandbox, job, 1)
    view = person.wait(run, over, 240)
    print(logs(attempt, 0)[-3000:], logs(attempt, 1)[-3000:], *recoveries(attempt), sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert "from the live state of 1 of 2 ranks" in logs(attempt, 1)
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.parametrize(
    ("nodes", "shards", "lost", "trains"), [(3, 1, 1, (0, 2)), (4, 2, 0, (2, 3))], ids=["ddp", "hsdp"]
)
def test_replica_is_lost_and_the_others_train_on_until_its_replacement_joins(
    person: Person, sandbox: Sandbox, tmp_path: Path, nodes: int, shards: int, lost: int, trains: tuple[int, ...]
) -> None:
    import torch

    folder = tmp_path / "out"
    folder.mkdir()
    person.env |= {"PAUSE": "0.2", "SHARDS": str(shards)}
    worker = Path(__file__).parents[1] / "integrations" / "replicas_worker.py"
    command = (sys.executable, str(worker), str(folder), "kept", "1000000")
    run = person.start("-N", str(nodes), "--set", "launch.recoverable=true", "--", *command)
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    faults.kill_rank(sandbox, job, lost)
    wait_for(lambda: any(one["what"] == "joined" for one in recoveries(attempt)), "it did not join")
    last = 30 + json.loads((folder / f"report-{trains[0]}").read_text().splitlines()[-1])["step"]
    publish_text(folder / "last", str(last))
    view = person.wait(run, over, 240)
    print(logs(attempt, 1)[-3000:], *recoveries(attempt), sep="\n")
    assert (view["phase"], view["step"], view["starts"]) == ("done", last, 0)
    said = [one["words"] for one in recoveries(attempt) if one["what"] == "recovered"]
    assert len(said) == 1 and f"a new process took rank {lost}, {nodes - 1} survivors re-entered" in said[0]
    for rank in trains:
        found = [json.loads(line) for line in (folder / f"report-{rank}").read_text().splitlines()]
        assert [one["step"] for one in found] == list(range(1, last + 1)), "a step of a survivor was lost or repeated"
        print(f"rank {rank}: longest step", max(b["at"] - a["at"] for a, b in itertools.pairwise(found)))
    assert_exact(torch.load(folder / "final-0"), last)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a process has outlived the run")


def test_spare_takes_the_rank_of_a_dead_node_and_the_other_rank_stays(
    person: Person, sandbox: Sandbox, tmp_path: Path, undisturbed: str
) -> None:
    command = remembering(tmp_path / "final", "--persist", "5", "--delay", "0.3")
    run = person.start("-N", "2", "--spares", "1", "--set", "launch.recoverable=true", "--", *command)
    job = person.wait(run, at_step(10), 180)["job_id"]
    attempt = run.attempt(job, 0)
    person.wait(run, lambda _: ready(run, job), 180)
    faults.kill_node(sandbox, "node2")
    wait_for(lambda: "rank 1 goes on from step" in logs(attempt, 1), "no rank 1 of launch 1")
    sandbox.slurm("scontrol", "update", "nodename=node2", "state=down", "reason=test")  # Slurm itself takes minutes
    view = person.wait(run, over, 240)
    print(*recoveries(attempt), sep="\n")
    print(logs(attempt, 1)[-2000:])
    assert (view["phase"], view["step"], view["starts"]) == ("done", STEPS, 0)
    assert (tmp_path / "final").read_text() == undisturbed
    assert launches(run, job) == [["node1", "node2"], ["node1", "node3"]]
    assert "rank 0 goes on from step" in logs(attempt, 1) and "entry 1" in logs(attempt, 1)
    wait_for(lambda: not processes.of_job(sandbox.cluster, job), "a process has outlived the run")

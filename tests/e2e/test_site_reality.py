"""What sites do to a run on a real Slurm: switches, reservations, features, partitions and limits, while it waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.site_support import ACCOUNT, QOS, admin, manage, site
from e2e.support import COMMAND, Person, at_step

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
LONG = 150.0  # seconds: Slurm looks for nodes by itself every minute only


@pytest.fixture(scope="module")
def sandbox(short_dir: Path) -> Iterator[Sandbox]:
    with site(short_dir / "site") as cluster:
        yield cluster


def says(*words: str) -> Callable[[dict[str, Any]], bool]:
    return lambda view: all(one in view["pending_reason"] for one in words)


def runs_on(*nodes: str) -> Callable[[dict[str, Any]], bool]:
    return lambda view: view["phase"] == "training" and view["starts"] > 0 and view["nodes"] == list(nodes)


def without(node: str) -> Callable[[dict[str, Any]], bool]:
    return lambda view: view["phase"] == "training" and view["starts"] > 0 and node not in view["nodes"]


def stop(person: Person, run: RunDir) -> None:
    done = person.transom("stop", run.run_id)
    assert done.returncode == 0, done.stderr


def test_a_run_stays_on_one_switch_and_says_so_where_none_has_enough_nodes(person: Person, sandbox: Sandbox) -> None:
    asked = ("-N", "2", "-x", "node5", "--set", 'job.sbatch=["--switches=1"]')
    run = person.start(*asked, "--", *COMMAND, "--steps", "3000")
    assert person.wait(run, at_step(5))["nodes"] == ["node1", "node2"]
    faults.kill_node(sandbox, "node2")
    person.wait(run, runs_on("node3", "node4"))
    faults.kill_node(sandbox, "node4")
    view = person.wait(run, says("to become free on one switch", "00:05:00", "(Resources)"))
    assert (view["phase"], view["switches"]) == ("recovering", "1@00:05:00")
    screen = person.transom("status", run.run_id).stdout
    assert f"scontrol update jobid={view['job_id']} switches=999" in screen, screen
    admin(sandbox, "update", f"jobid={view['job_id']}", "switches=999")
    person.wait(run, runs_on("node1", "node3"), LONG)
    stop(person, run)


def test_a_spare_on_the_same_switch_takes_over_and_its_rank_learns_its_place(person: Person, sandbox: Sandbox) -> None:
    told = person.cwd / "place.sh"
    told.write_text('#!/bin/bash\necho "rank $SLURM_PROCID at $SLURM_TOPOLOGY_ADDR"\nexec "$@"\n')
    told.chmod(0o755)
    asked = ("-N", "2", "--spares", "1", "--set", 'job.sbatch=["--switches=1"]')
    run = person.start(*asked, "--", str(told), *COMMAND, "--steps", "3000")
    view = person.wait(run, at_step(10))
    assert (view["nodes"], view["spares"]) == (["node3", "node4"], ["node5"]), "the one switch with three nodes"
    journal = run.attempt(view["job_id"], 0).launcher_journal
    person.wait(run, lambda _: '"spare"' in journal.read_text())
    faults.kill_node(sandbox, "node4")

    def place(rank: int, launch: int) -> str:
        log = run.attempt(view["job_id"], 0).logs(launch) / f"rank-{rank}.log"
        return log.read_text().partition("\n")[0] if log.exists() else ""

    person.wait(run, lambda _: "rank 1" in place(1, 1), LONG)
    assert [place(rank, 0) for rank in (0, 1)] == ["rank 0 at spine.leaf2.node3", "rank 1 at spine.leaf2.node4"]
    assert [place(rank, 1) for rank in (0, 1)] == ["rank 0 at spine.leaf2.node3", "rank 1 at spine.leaf2.node5"]


def test_the_last_node_of_a_reservation_dies(person: Person, sandbox: Sandbox) -> None:
    admin(
        sandbox,
        "create",
        "reservation",
        "reservationname=r1",
        "nodes=node3",
        "users=root",
        "starttime=now",
        "duration=60",
    )
    try:
        asked = ("-N", "1", "--set", "job.reservation=r1")
        run = person.start(*asked, "--", *COMMAND, "--steps", "3000")
        assert person.wait(run, at_step(5))["nodes"] == ["node3"]
        faults.kill_node(sandbox, "node3")
        view = person.wait(run, lambda v: v["phase"] == "held", LONG)
        assert "no nodes for the job but those that are kept away: node3" in view["verdict"]
        assert "too few nodes with reservation `r1` (excluded:" in view["pending_reason"]
        assert "transom nodes --lift node3" in person.transom("status", run.run_id).stdout
        assert "transom nodes --lift node3" in person.transom("explain", run.run_id).stdout
        admin(sandbox, "update", "reservation=r1", "nodes=node[3,5]")
        assert f"new nodes   scontrol release {view['job_id']}" in person.transom("status", run.run_id).stdout
        admin(sandbox, "release", str(view["job_id"]))
        person.wait(run, runs_on("node5"), LONG)
        stop(person, run)
    finally:
        faults.heal(sandbox)
        admin(sandbox, "delete", "reservation=r1")


def test_a_reservation_ends_while_its_job_waits(person: Person, sandbox: Sandbox) -> None:
    words = ("reservationname=r2", "nodes=node3", "users=root", "starttime=now", "duration=1")
    admin(sandbox, "create", "reservation", *words)
    run = person.start("-N", "1", "--set", "job.reservation=r2", "--", *COMMAND, "--steps", "3000")
    job = person.wait(run, at_step(5))["job_id"]
    admin(sandbox, "requeuehold", str(job))
    view = person.wait(run, says("its reservation is over or was deleted"), LONG)
    assert (view["phase"], view["slurm_state"]) == ("held", "PENDING"), view
    assert f"scontrol release {job}" in person.transom("status", run.run_id).stdout
    admin(sandbox, "release", str(job))
    admin(sandbox, "update", f"jobid={job}", "starttime=now")  # spares Slurm's two minutes after a requeue
    person.wait(run, runs_on("node1"), LONG)
    stop(person, run)


def test_the_last_node_with_a_feature_dies_under_a_script_of_the_users_own(person: Person, sandbox: Sandbox) -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --constraint=h100\n"
    (person.cwd / "own.sbatch").write_text(f"{script}exec srun {' '.join(COMMAND)} --steps 3000\n")
    admin(sandbox, "update", "nodename=node4", "availablefeatures=h100", "activefeatures=h100")
    run = person.start("own.sbatch")
    assert person.wait(run, at_step(5))["nodes"] == ["node4"]
    faults.kill_node(sandbox, "node4")
    view = person.wait(run, lambda v: v["phase"] == "held", LONG)
    assert "too few nodes with constraint `h100`" in view["pending_reason"], view["pending_reason"]
    faults.restore_node(sandbox, "node4")
    lifted = person.transom("nodes", "--lift", "node4")
    assert lifted.returncode == 0, lifted.stderr
    person.wait(run, runs_on("node4"), LONG)
    stop(person, run)


def test_a_partition_that_closes_and_allows_less_time_under_a_requeued_run(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "-t", "60", "--", *COMMAND, "--steps", "3000")
    person.wait(run, at_step(5))
    try:
        for change, words in (
            ("state=down", "its partition is down (PartitionDown)"),
            ("state=inactive", "its partition is closed (PartitionInactive)"),
            ("state=up maxtime=1", "it asks for more time than its partition allows: it will not start"),
        ):
            admin(sandbox, "update", "partition=debug", *change.split())
            if change == "state=down":
                faults.kill_node(sandbox, "node2")
            view = person.wait(run, says(words), LONG)
            assert (view["phase"], view["health"]) == ("recovering", "degraded")
    finally:
        admin(sandbox, "update", "partition=debug", "state=up", "maxtime=infinite")
    person.wait(run, without("node2"), LONG)
    stop(person, run)


def test_limits_of_a_qos_and_an_account_that_come_while_a_run_is_requeued(person: Person, sandbox: Sandbox) -> None:
    asked = ("-N", "2", "-t", "60", "-A", ACCOUNT, "-q", QOS)
    run = person.start(*asked, "--", *COMMAND, "--steps", "3000")
    person.wait(run, at_step(5))
    limits = (
        ("qos", QOS, "GrpTRES=node=", "1", "all jobs of your QOS together have reached its limit: nodes"),
        ("qos", QOS, "MaxTRESPerJob=node=", "1", "it requests more nodes than your QOS allows per job"),
        ("qos", QOS, "MaxWall=", "10", "it requests more time than your QOS allows per job"),
        ("account", ACCOUNT, "GrpJobs=", "0", "all jobs of your account together have reached its limit: running"),
    )
    manage(sandbox, "modify", *limits[0][:2], "set", "".join(limits[0][2:4]))
    faults.kill_node(sandbox, "node2")
    for i, (what, name, limit, most, words) in enumerate(limits):
        if i:
            manage(sandbox, "modify", what, name, "set", limit + most)
        view = person.wait(run, says(words), LONG)
        assert (view["phase"], view["health"]) == ("recovering", "degraded")
        manage(sandbox, "modify", what, name, "set", f"{limit}-1")
    person.wait(run, without("node2"), LONG)
    stop(person, run)

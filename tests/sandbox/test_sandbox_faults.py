"""Faults are real, hit what they name and nothing else, and can be undone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from slurm_support import client, sleepers, submit, wait_sleepers

from transom_cli.errors import UsageError
from transom_cli.inject import Fault
from transom_cli.sandbox import fault_processes, faults, processes
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.processes import Ident, Proc

pytestmark = pytest.mark.sandbox


def test_a_killed_node_says_nothing_to_slurm_and_comes_back(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun sleep 300", "-N3", "--ntasks-per-node=2", "--no-kill")
    wait_sleepers(sb, job, 6)
    assert faults.kill_node(sb, "node2") >= 4  # slurmd, slurmstepd, two tasks
    assert processes.on_node(sb.cluster, "node2") == []
    assert len(sleepers(sb, job)) == 4
    assert {row.name: row.state for row in sb.daemons()}["node2"] == "dead"
    assert [row.state for row in sb.nodes() if row.name == "node2"] == ["mixed"]  # Slurm has not noticed
    assert [fault.undo for fault in faults.active(sb)] == ["restore-node node2"]
    faults.restore_node(sb, "node2")
    assert faults.active(sb) == []


def test_the_death_of_the_batch_host_ends_nothing_on_other_nodes(healed_sandbox: Sandbox) -> None:
    """Its sruns die with it, and get no chance to end their steps elsewhere, as on a machine that loses power."""
    sb = healed_sandbox
    job = submit(sb, "srun --overlap sleep 300 & srun --overlap sleep 300 & wait", "-N3", "--ntasks-per-node=2")
    wait_sleepers(sb, job, 12)
    faults.kill_node(sb, "node1")
    time.sleep(2.0)
    assert len(sleepers(sb, job)) == 8


def test_children_die_before_their_parents(healed_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun sleep 300", "-N2", "-w", "node1,node2", "--ntasks-per-node=2")
    wait_sleepers(sb, job, 4)
    parents = {proc.pid: proc.ppid for proc in processes.on_node(sb.cluster, "node1")}
    killed: list[int] = []
    real = processes.signal_one

    def signal_one(ident: Ident, number: int) -> bool:
        killed.extend([ident.pid] if number == signal.SIGKILL else [])
        return real(ident, number)

    monkeypatch.setattr(processes, "signal_one", signal_one)
    faults.kill_node(sb, "node1")
    order = {pid: n for n, pid in enumerate(killed)}
    assert len(order) >= 7, "slurmd, slurmstepds, the script, srun and its second process, two tasks"
    assert all(order[pid] < order[parent] for pid, parent in parents.items() if pid in order and parent in order)


def test_a_restored_node_is_usable_but_keeps_a_drain(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    faults.kill_node(sb, "node1")
    sb.slurm("scontrol", "update", "nodename=node1", "state=down", "reason=Not responding")  # as after SlurmdTimeout
    sb.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=a person's own")
    faults.restore_node(sb, "node1")
    faults.restore_node(sb, "node2")
    assert {row.name: row.state for row in sb.nodes()}["node2"] == "drained"
    assert client(sb, "srun", "-w", "node1", "true").returncode == 0
    faults.restore_node(sb, "node2", undrain=True)
    assert client(sb, "srun", "-w", "node2", "true").returncode == 0


def test_stopped_node_pauses_until_continued(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun sleep 300", "-N2", "-w", "node1,node3")
    wait_sleepers(sb, job, 2)
    assert faults.stop_node(sb, "node3") >= 3
    assert {proc.state for proc in processes.on_node(sb.cluster, "node3")} == {"T"}
    assert "T" not in {proc.state for proc in processes.on_node(sb.cluster, "node1")}
    faults.cont_node(sb, "node3")
    assert "T" not in {proc.state for proc in processes.on_node(sb.cluster, "node3")}


def test_one_rank_stops_slows_and_dies_alone(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun bash -c 'sleep 300; true'", "-N2", "--ntasks-per-node=2", "--no-kill")
    wait_sleepers(sb, job, 4)
    pid = faults.stop_rank(sb, job, 2)
    family = fault_processes.find_rank(sb, job, 2)
    assert family[0].pid == pid and [p.comm for p in family] == ["bash", "sleep"]
    assert family[0].environ["SLURM_PROCID"] == "2"
    deadline = time.monotonic() + 20  # a process that is running stops at its next turn
    while (states := {p.state for p in fault_processes.find_rank(sb, job, 2)}) != {"T"}:
        assert time.monotonic() < deadline, states
    assert {p.state for rank in (0, 1, 3) for p in fault_processes.find_rank(sb, job, rank)} == {"S"}
    assert [fault.undo for fault in faults.active(sb)] == [f"cont-rank --job {job} 2"]
    faults.cont_rank(sb, job, 2)
    assert "T" not in {p.state for p in fault_processes.find_rank(sb, job, 2)}

    faults.slow_rank(sb, job, 1, 0.5)
    seen: set[str] = set()
    deadline = time.monotonic() + 20
    while not ({"T"} < seen) and time.monotonic() < deadline:
        seen.add(fault_processes.find_rank(sb, job, 1)[0].state)
    assert {"T"} < seen, "it is neither always stopped nor never"
    assert faults.unslow_rank(sb, job, 1) and not faults.unslow_rank(sb, job, 1)
    assert "T" not in {p.state for p in fault_processes.find_rank(sb, job, 1)}

    victim = fault_processes.find_rank(sb, job, 3)
    faults.kill_rank(sb, job, 3)
    assert not any(processes.alive(proc.ident) for proc in victim)
    with pytest.raises(UsageError, match="no running rank 3") as missing:
        faults.kill_rank(sb, job, 3)
    assert missing.value.why.startswith("its running ranks: 0, 1, 2")


def test_the_rank_is_the_trainer_not_what_launched_it() -> None:
    def proc(pid: int, ppid: int, **environ: str) -> Proc:
        return Proc(Ident(pid, pid), ppid, 1, "S", "python", environ)

    step = {"SLURM_STEP_ID": "0"}
    batch = proc(10, 1, SLURM_PROCID="0")
    wrapped = [
        batch,
        proc(20, 2, **step, SLURM_PROCID="1"),
        proc(21, 20, **step, SLURM_PROCID="1", TRANSOM_ROLE="rank"),
        proc(22, 21, **step, SLURM_PROCID="1", TRANSOM_ROLE="rank"),
        proc(30, 2, SLURM_STEP_ID="1", SLURM_PROCID="1", TRANSOM_ROLE="agent"),
    ]
    assert {rank: p.pid for rank, p in fault_processes.rank_tops(wrapped).items()} == {1: 21}
    torchrun = [
        proc(20, 2, **step, SLURM_PROCID="1"),
        proc(21, 20, **step, SLURM_PROCID="1", RANK="2"),
        proc(22, 20, **step, SLURM_PROCID="1", RANK="3"),
        proc(23, 22, **step, SLURM_PROCID="1", RANK="3"),
    ]
    assert {rank: p.pid for rank, p in fault_processes.rank_tops(torchrun).items()} == {2: 21, 3: 22}
    assert fault_processes.rank_tops([batch]) == {}


def wait_saved(sb: Sandbox) -> None:
    """slurmctld writes its jobs down a few seconds after they change; a kill before that loses them, as anywhere."""
    saved, requested = sb.dir / "state" / "job_state", time.time()
    deadline = time.monotonic() + 30
    while not saved.exists() or saved.stat().st_mtime < requested:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_dead_controller_comes_back_with_its_jobs(healed_sandbox: Sandbox) -> None:
    sb = healed_sandbox
    job = submit(sb, "srun sleep 300", "-N1")
    wait_sleepers(sb, job, 1)
    wait_saved(sb)
    assert faults.kill_controller(sb) >= 1
    assert [fault.undo for fault in faults.active(sb)] == ["start-controller"]
    assert len(sleepers(sb, job)) == 1
    faults.start_controller(sb)
    assert sb.slurm("squeue", "-h", "-o", "%A %T").split() == [str(job), "RUNNING"]
    assert faults.active(sb) == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_is_full_and_then_is_not(sandbox: Sandbox, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    assert faults.fill_disk(sandbox, disk, size_mb=1) == 2**20
    try:
        with pytest.raises(OSError, match="No space left"):
            (disk / "file").write_bytes(b"x" * 4096)
        faults.free_disk(sandbox, disk)
        (disk / "file").write_bytes(b"x" * 4096)
        faults.fill_disk(sandbox, disk)  # it is a small disk already: filled, not mounted again
        assert sandbox.disks() == (str(disk),)
    finally:
        faults.free_disk(sandbox, disk, unmount=True)
    assert sandbox.disks() == () and list(disk.iterdir()) == []
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "precious").touch()
    with pytest.raises(UsageError, match="Cannot mount a small disk"):
        faults.fill_disk(sandbox, tmp_path / "used")


def test_an_unknown_node_is_refused(sandbox: Sandbox) -> None:
    for fault in (faults.kill_node, faults.stop_node, faults.cont_node, faults.restore_node):
        with pytest.raises(UsageError, match="no node 'node9'"):
            fault(sandbox, "node9")


def test_a_node_that_computes_wrong_is_listed_until_it_is_undone(sandbox: Sandbox) -> None:
    faults.corrupt(sandbox, "node2", {"where": "weight", "bit": 3})
    faults.corrupt(sandbox, "node1", {"where": "weight", "bit": 4})
    assert [one.undo for one in faults.active(sandbox)] == ["uncorrupt node1", "uncorrupt node2"]
    file = Path(sandbox.env()["TRANSOM_INJECT"])
    assert [Fault(**one).node for one in json.loads(file.read_text())] == ["node2", "node1"]
    faults.uncorrupt(sandbox, "node1")
    assert [one.undo for one in faults.active(sandbox)] == ["uncorrupt node2"]
    faults.uncorrupt(sandbox)
    assert faults.active(sandbox) == []
    with pytest.raises(UsageError, match="no node 'node77'"):
        faults.corrupt(sandbox, "node77", {})

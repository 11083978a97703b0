"""The sandbox itself, on the real daemons: up, down, what a crash or a reboot leaves, other users."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from slurm_support import OrdinaryUser, client, require_slurm, submit, wait_sleepers

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.sandbox import faults, processes, state
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

pytestmark = pytest.mark.sandbox


def test_tasks_run_on_every_node_with_gpus_counted(healed_sandbox: Sandbox) -> None:
    words = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    done = client(healed_sandbox, "srun", "-N4", "--gres=gpu:2", "bash", "-c", words)
    assert sorted(done.stdout.splitlines()) == [f"node{i} 0,1" for i in range(1, 5)], done.stderr
    refused = client(healed_sandbox, "srun", "-N1", "--gres=gpu:3", "true")
    assert refused.returncode != 0 and "not available" in refused.stderr


def test_up_again_is_the_same_cluster_and_another_shape_is_refused(sandbox: Sandbox) -> None:
    before = sandbox.daemons()
    assert Sandbox.up(sandbox.spec).daemons() == before
    with pytest.raises(UsageError, match="already up, with another configuration") as refused:
        Sandbox.up(replace(sandbox.spec, nodes=2))
    assert "requested: 2 nodes" in refused.value.why
    assert sandbox.daemons() == before


def test_down_ends_jobs_and_job_ids_continue(short_dir: Path) -> None:
    require_slurm()
    spec = SandboxSpec(short_dir / "d", nodes=2, gpus_per_node=0, extra={"KillWait": "11"})
    sb = Sandbox.up(spec)
    try:
        assert "KillWait                = 11" in sb.slurm("scontrol", "show", "config")
        first = submit(sb, "srun bash -c 'trap : TERM; (sleep 300 &); sleep 300; true'", "-N2")
        wait_sleepers(sb, first, 4)
        faults.stop_node(sb, "node2")
        sb.down()
        assert processes.of_sandbox(sb.cluster) == []
        assert not sb.status().up and not Sandbox.at(spec.dir).is_up
        sb.down()  # twice is fine
        again = Sandbox.up(spec)
        assert submit(again, "true") > first
    finally:
        Sandbox.at(spec.dir).down()


def test_user_without_a_name_is_refused(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was started with a bare user id."""
    require_slurm()

    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(TransomError, match="a user with a name") as raised:
        Sandbox.up(SandboxSpec(short_dir / "noname", nodes=1))
    assert f"user ID {os.geteuid()}" in raised.value.why and "/etc/passwd" in raised.value.hint


@pytest.mark.parametrize("then", ["down", "up"])
def test_up_that_was_killed_half_way_leaves_nothing_behind(short_dir: Path, then: str) -> None:
    require_slurm()
    spec = SandboxSpec(short_dir / f"crash-{then}", nodes=2)
    save = state.save

    def save_until_the_controller(where: Path, known: state.State) -> None:
        if "slurmctld" in known.daemons:  # it runs, and nobody ever writes down its pid
            os.kill(os.getpid(), signal.SIGKILL)
        save(where, known)

    pid = os.fork()
    if pid == 0:
        state.save = save_until_the_controller
        Sandbox.up(spec)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    half = Sandbox.at(spec.dir)
    comms = {proc.comm for proc in processes.of_sandbox(half.cluster)}
    assert {"munged", "slurmctld"} <= comms and "slurmctld" not in {row.name for row in half.daemons()}
    try:
        if then == "up":
            assert {node.state for node in Sandbox.up(spec).nodes()} == {"idle"}
    finally:
        half.down()
    assert processes.of_sandbox(half.cluster) == []


def test_after_a_reboot_recorded_pids_mean_nothing(short_dir: Path) -> None:
    require_slurm()
    spec = SandboxSpec(short_dir / "boot", nodes=1)
    Sandbox.up(spec).down()
    known = state.load(spec.dir)
    me = processes.read(os.getpid())
    assert known is not None and me is not None
    known.boot, known.daemons = "an earlier boot", {"munged": me.ident}
    state.save(spec.dir, known)
    assert not Sandbox.at(spec.dir).is_up
    Sandbox.at(spec.dir).down()  # would kill this very test if it believed the pid
    try:
        assert Sandbox.up(spec).is_up
    finally:
        Sandbox.at(spec.dir).down()


def test_a_recycled_pid_is_not_ours() -> None:
    me = processes.read(os.getpid())
    assert me is not None and processes.alive(me.ident)
    earlier = processes.Ident(me.pid, me.ident.start - 1)
    assert not processes.alive(earlier) and not processes.signal_one(earlier, signal.SIGKILL)


def test_two_sandboxes_do_not_touch_each_other(healed_sandbox: Sandbox, short_dir: Path) -> None:
    other = Sandbox.up(SandboxSpec(short_dir / "o", nodes=2))
    try:
        before = healed_sandbox.daemons()
        faults.kill_node(other, "node1")
        assert [row.state for row in other.daemons() if row.name == "node1"] == ["dead"]
        assert healed_sandbox.daemons() == before
    finally:
        other.down()
    assert client(healed_sandbox, "srun", "-N4", "true").returncode == 0


def test_a_taken_port_is_named(healed_sandbox: Sandbox) -> None:
    known = state.load(healed_sandbox.dir)
    assert known is not None
    faults.kill_node(healed_sandbox, "node4")
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the dead linger on it
        squatter.bind(("127.0.0.1", known.ports.nodes + 3))
        squatter.listen()
        with pytest.raises(TransomError, match=f"port {known.ports.nodes + 3} is used by another program"):
            faults.restore_node(healed_sandbox, "node4")


def test_secrets_stay_secret_and_clients_reach_what_they_need(sandbox: Sandbox) -> None:
    mode = {name: (sandbox.dir / name).stat().st_mode & 0o777 for name in ("keys", "sandbox.json", "slurm.conf")}
    assert mode == {"keys": 0o700, "sandbox.json": 0o600, "slurm.conf": 0o644}
    assert (sandbox.dir / "keys/munge.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.root
def test_another_user_submits_and_may_not_drain(healed_sandbox: Sandbox, ordinary_user: OrdinaryUser) -> None:
    sb, user = healed_sandbox, ordinary_user
    done = user.run(["srun", "-N2", "id", "-un"], sb.env())
    assert done.stdout.split() == [user.name, user.name], done.stderr
    drain = ["scontrol", "update", "nodename=node1", "state=drain", "reason=test"]
    refused = user.run(drain, sb.env())
    assert refused.returncode == 1 and "Invalid user id" in refused.stderr
    assert "idle" in {node.state for node in sb.nodes() if node.name == "node1"}
    assert user.run(["cat", str(sb.dir / "keys/munge.key")], {}).returncode != 0
    job = int(user.run(["sbatch", "--parsable"], sb.env(), stdin="#!/bin/sh\nsrun sleep 300\n").stdout)
    wait_sleepers(sb, job, 1)
    with pytest.raises(AssertionError, match="belongs to another user"):
        user.call(lambda: Sandbox.at(sb.dir).down())


@pytest.mark.root
def test_an_ordinary_user_has_a_sandbox_of_their_own(ordinary_user: OrdinaryUser) -> None:
    require_slurm()
    spec = SandboxSpec(ordinary_user.home / "sb", nodes=2)

    def life() -> None:
        assert os.geteuid() != 0
        sb = Sandbox.up(spec)
        try:
            job = submit(sb, "srun sleep 300", "-N2", "--no-kill", "--gres=gpu:1")
            wait_sleepers(sb, job, 2)
            owners = {Path(f"/proc/{proc.pid}").stat().st_uid for proc in processes.of_sandbox(sb.cluster)}
            assert owners == {os.geteuid()}
            assert faults.kill_node(sb, "node2") >= 3
            assert processes.on_node(sb.cluster, "node2") == []
            faults.heal(sb)
            assert {node.state for node in sb.nodes()} == {"idle"}
        finally:
            sb.down()
        assert processes.of_sandbox(sb.cluster) == []

    ordinary_user.call(life)


@pytest.mark.root
def test_a_folder_of_someone_else_is_refused(ordinary_user: OrdinaryUser, short_dir: Path) -> None:
    require_slurm()
    (short_dir / "roots").mkdir(mode=0o755)

    def attempt() -> None:
        for folder, words in ((short_dir / "roots", "Cannot write in"), (short_dir / "roots/new", "Cannot create")):
            with pytest.raises(NotPermitted, match=words):
                Sandbox.up(SandboxSpec(folder))

    ordinary_user.call(attempt)

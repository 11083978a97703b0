"""A sandbox belongs to the user who starts it: nobody else can run anything through it. Root's serves all users."""

from __future__ import annotations

import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser, client, release_home, require_slurm

from transom_cli.sandbox import state
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.root]


@pytest.fixture(scope="module")
def own_sandbox(ordinary_user: OrdinaryUser) -> Iterator[Sandbox]:
    """A sandbox that an ordinary user runs, in a folder that others could read and enter before."""
    spec = SandboxSpec(ordinary_user.home / "own", nodes=1, gpus_per_node=0, home=release_home())

    def up() -> None:
        spec.dir.mkdir()
        spec.dir.chmod(0o755)
        Sandbox.up(spec)

    ordinary_user.call(up)
    yield Sandbox.at(spec.dir)
    ordinary_user.call(lambda: Sandbox.at(spec.dir).down())


def test_its_owner_runs_jobs_in_it(own_sandbox: Sandbox, ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(["srun", "id", "-un"], own_sandbox.env())
    assert done.stdout.split() == [ordinary_user.name], done.stderr


@pytest.mark.long  # Slurm's commands look for a slurm.conf elsewhere for a minute
@pytest.mark.parametrize(
    "command", [["srun", "id", "-un"], ["sbatch", "--parsable", "--wrap=id"], ["sinfo"]], ids=" ".join
)
def test_another_users_commands_do_not_reach_it(
    own_sandbox: Sandbox, other_user: OrdinaryUser, command: list[str]
) -> None:
    done = other_user.run(command, own_sandbox.env())
    assert done.returncode != 0 and done.stdout == ""


def test_knowing_its_ports_and_socket_is_not_enough(own_sandbox: Sandbox, other_user: OrdinaryUser) -> None:
    """Ports can be listed by everybody: a slurm.conf is soon written from them."""
    copy = other_user.home / "slurm.conf"
    shutil.copy(own_sandbox.dir / "slurm.conf", copy)
    copy.chmod(0o644)
    done = other_user.run(["srun", "id", "-un"], {"SLURM_CONF": str(copy)})
    assert done.returncode != 0 and done.stdout == ""
    assert "munge" in done.stderr.lower()


def test_another_user_cannot_connect_to_its_munge_socket(own_sandbox: Sandbox, other_user: OrdinaryUser) -> None:
    """Not even where the owner opens the folder."""

    def attempt() -> None:
        with socket.socket(socket.AF_UNIX) as knocking, pytest.raises(PermissionError):
            knocking.connect(str(own_sandbox.dir / "munge.sock"))

    other_user.call(attempt)
    own_sandbox.dir.chmod(0o755)
    try:
        other_user.call(attempt)
    finally:
        own_sandbox.dir.chmod(0o700)


def test_another_user_reads_no_file_of_it(own_sandbox: Sandbox, other_user: OrdinaryUser) -> None:
    def attempt() -> None:
        for path in ("keys/munge.key", "keys", "slurm.conf", "sandbox.json", "log/slurmctld.log", "state", "spool", ""):
            with pytest.raises(PermissionError):
                list((own_sandbox.dir / path).iterdir()) if "." not in path else (own_sandbox.dir / path).read_bytes()

    other_user.call(attempt)
    assert stat.S_IMODE(own_sandbox.dir.stat().st_mode) == 0o700


def test_a_sandbox_that_was_open_to_others_is_closed_by_the_next_up(
    own_sandbox: Sandbox, ordinary_user: OrdinaryUser
) -> None:
    own_sandbox.dir.chmod(0o755)
    (own_sandbox.dir / "munge.sock").chmod(0o777)
    ordinary_user.call(lambda: Sandbox.up(own_sandbox.spec) and None)
    modes = {name: stat.S_IMODE((own_sandbox.dir / name).stat().st_mode) for name in ("", "munge.sock")}
    assert modes == {"": 0o700, "munge.sock": 0o700}


def test_who_finds_anothers_sandbox_is_sent_to_one_of_their_own(own_sandbox: Sandbox, other_user: OrdinaryUser) -> None:
    with pytest.raises(AssertionError, match="belongs to another user") as refused:
        other_user.call(lambda: Sandbox.at(own_sandbox.dir).down())
    assert "transom sandbox up --dir" in str(refused.value) and "SLURM_CONF" not in str(refused.value)


def test_roots_sandbox_runs_each_users_job_as_that_user(sandbox: Sandbox, ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(["srun", "id", "-un"], sandbox.env())
    assert done.stdout.split() == [ordinary_user.name], done.stderr
    assert client(sandbox, "srun", "id", "-u").stdout.split() == ["0"]


def test_database_requires_the_password(short_dir: Path, other_user: OrdinaryUser) -> None:
    """MariaDB's own accounts have no password at first, and its root writes files as the owner of the sandbox."""
    require_slurm(accounting=True)
    sb = Sandbox.up(SandboxSpec(short_dir / "db", nodes=1, gpus_per_node=0, accounting=True, home=release_home()))
    try:
        known = state.load(sb.dir)
        assert known is not None
        ask = ["mariadb", "--no-defaults", "--protocol=tcp", f"--port={known.ports.database}", "-N", "-e", "select 1"]
        for user in ("root", "", "slurm", "mysql"):
            for host in ("127.0.0.1", "localhost", "::1"):
                done = other_user.run([*ask, f"--user={user}", f"--host={host}"], {})
                assert done.returncode != 0 and done.stdout == "", (user, host)
        assert client(sb, "sacct", "-n").returncode == 0  # slurmdbd itself has the password
    finally:
        sb.down()

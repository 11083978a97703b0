"""Site profiles: how they combine, what this machine cannot have, and that users come and go with the cluster."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from transom_cli.errors import TransomError, UsageError
from transom_cli.sandbox import sites
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.conf import Ports, slurm_conf
from transom_cli.sandbox.users import create, remove

PORTS = Ports(21000, 21001, 21002, 21003)


def conf(*names: str) -> dict[str, str]:
    spec = SandboxSpec(Path("/tmp/sb"), site=names, accounting="strict" in names)
    text = slurm_conf(spec, cluster="sandbox0a1b2c3d", user="root", ports=PORTS, first_job=1)
    return dict(line.split("=", 1) for line in text.splitlines())


def test_profiles_add_up() -> None:
    both = conf("strict", "rewriting", "slow-prolog")
    assert both["JobSubmitPlugins"] == "lua" and both["AccountingStorageEnforce"] == "associations,limits,qos"
    assert both["Prolog"] == "/tmp/sb/site/prolog"
    lua = sites.files(("strict", "rewriting"))["job_submit.lua"]
    assert (
        "job.comment" in lua.partition("slurm_job_modify")[0] and "begin_time" in lua.partition("slurm_job_modify")[2]
    )
    assert sites.env(("no-export", "purging"), Path("/sb")) == {
        "SBATCH_EXPORT": "NONE", "SLURM_EXPORT_ENV": "NONE", "TRANSOM_ROOT": "/sb/scratch",
    }  # fmt: skip


def test_profile_removes_settings_of_the_sandbox() -> None:
    walled = conf("firewalled")
    assert "CommunicationParameters" not in walled and walled["SlurmctldHost"] == "localhost(10.79.10.26)"
    assert "NodeAddr=10.79.10.27" in walled["NodeName"]
    bound = conf("cgroup")
    assert "SlurmdParameters" not in bound and f"CPUs={os.cpu_count()} " in bound["NodeName"]


def test_unknown_and_impossible_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such site profile: friendly"):
        sites.find(["strict", "friendly"])
    refused = "non-root" if os.geteuid() == 0 else "ad-users"
    assert sites.why_not(["no-export"]) == ""
    with pytest.raises(TransomError, match=f"{refused}: needs"):
        sites.check(["no-export", refused])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to add users")
def test_users_with_names_of_active_directory_come_and_go(tmp_path: Path) -> None:
    before = {name: Path(f"/etc/{name}").read_text() for name in ("passwd", "group")}
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    users = create(first, "0001", odd_names=True)
    others = create(second, "0002", odd_names=True)
    try:
        assert pwd.getpwuid(users["alice"].uid).pw_name == "corp\\alice0001"
        assert grp.getgrgid(users["bob"].gid).gr_name == "domain users" == grp.getgrgid(others["bob"].gid).gr_name
        remove(users)
        assert grp.getgrgid(others["bob"].gid).gr_name == "domain users", "another sandbox uses it"
    finally:
        remove(users)
        remove(others)
    assert {name: Path(f"/etc/{name}").read_text() for name in ("passwd", "group")} == before


@pytest.mark.sandbox
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to add users")
def test_cluster_with_several_profiles(short_dir: Path) -> None:
    cluster = Sandbox.up(SandboxSpec(short_dir / "sites", 2, 0, site=("ad-users", "contended")))
    alice = cluster.users()["alice"].uid
    try:
        assert set(cluster.users()) == {"alice", "bob", "carol", "dave"}
        assert "corp\\" not in cluster.slurm("squeue", "-h", "-o", "%u"), "the crowd is bob's"
        assert "@corp.example" in cluster.slurm("squeue", "-h", "-o", "%u")
    finally:
        cluster.down()
    with pytest.raises(KeyError):
        pwd.getpwuid(alice)

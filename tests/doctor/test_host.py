"""What `doctor --site` reads on this host, and how it judges readings of other hosts."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from transom_cli.doctor import host as module
from transom_cli.doctor.host import (
    Limits,
    Quota,
    Root,
    of_exports,
    of_groups,
    of_limits,
    of_purge,
    of_quota,
    of_reach,
    quota_of,
    read_quota,
    read_reach,
    read_root,
    sample,
)
from transom_cli.doctor.symptom import Grade
from transom_cli.health.system import Mount
from transom_cli.slurm.port import Node

DAY = 86400.0


def test_slurmds_are_sampled_from_all_over_the_cluster_and_only_where_slurm_calls_them_good() -> None:
    nodes = [Node(f"n{n}", "down" if n % 2 else "idle") for n in range(1000)]
    found = sample(nodes)
    assert len(found) == 8 and all(node.state == "idle" for node in found)
    assert found[0].name == "n0" and int(found[-1].name[1:]) > 800
    assert sample([]) == [] and sample([Node("n1", "idle", not_responding=True)]) == []


def test_connections_are_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        there = Node("n1", "idle", address="127.0.0.1", port=server.getsockname()[1])
        gone = Node("n2", "idle", address="127.0.0.1", port=closed.getsockname()[1])
        assert read_reach([there, gone]) == {"n1": True, "n2": False}


def test_firewall_costs_a_login_node_its_probes_and_a_batch_host_more() -> None:
    none = {"n1": False, "n2": False}
    assert of_reach({"n1": True}, "this host").grade is Grade.OK
    here = of_reach(none, "this host")
    assert here.grade is Grade.NOTE and 'operator.where = "job"' in here.hint
    assert of_reach(none, "a batch host").grade is Grade.WARN
    some = of_reach({"n1": True, "n2": False}, "this host")
    assert some.grade is Grade.WARN and "of n2 (1 of 2 answer)" in some.words
    assert of_reach({}, "this host").grade is Grade.NOTE


def test_group_names_of_a_directory_service_are_reported_and_harmless() -> None:
    assert of_groups(["ada", "gpu-users"]).words == "2 groups, all with plain names"
    odd = of_groups(["domain users", "a(b)", "ada"])
    assert odd.grade is Grade.OK and "'domain users', 'a(b)'" in odd.words


@pytest.mark.parametrize(
    ("environ", "grade"),
    [
        ({}, Grade.OK),
        ({"SBATCH_EXPORT": "ALL"}, Grade.OK),
        ({"SLURM_EXPORT_ENV": "ALL,X=1"}, Grade.OK),
        ({"SBATCH_EXPORT": "NONE"}, Grade.NOTE),
        ({"SLURM_EXPORT_ENV": "NONE"}, Grade.NOTE),
        ({"SRUN_EXPORT_ENV": "PATH"}, Grade.NOTE),
    ],
)
def test_variables_that_limit_what_jobs_inherit(environ: dict[str, str], grade: Grade) -> None:
    found = of_exports(environ)
    assert found.grade is grade
    assert all(f"{name}={value}" in found.words for name, value in environ.items()) or grade is Grade.OK


def purge(path: str, days: float | None = None, source: str = "filer:/vol1") -> Grade:
    return of_purge(Root(path, Mount("/x", "nfs4", source), None if days is None else days * DAY)).grade


def test_purged_file_systems_are_known_by_name_and_disproved_by_old_files() -> None:
    assert purge("/scratch/ada") is purge("/pscratch/ada") is purge("/tmp/x") is Grade.WARN
    assert purge("/x/ada", source="filer:/scratch") is Grade.WARN
    assert purge("/project/templates/ada") is purge("/x/attempts", days=30) is Grade.NOTE
    assert purge("/scratch/ada", days=200) is Grade.OK
    assert of_purge(Root("/x", None)).hint.startswith("ask the site")


def test_age_of_the_oldest_file_counts_its_last_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "old").touch()
    monkeypatch.setattr(module.time, "time", lambda: os.stat(run / "old").st_ctime + 100 * DAY)  # noqa: PTH116
    found = read_root(tmp_path)
    assert found.oldest is not None and 99 * DAY < found.oldest < 101 * DAY and found.mount is not None
    assert read_root(tmp_path / "not" / "yet").oldest is None, "what is above it says nothing"


QUOTA = """\
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
filer:/home 52428800* 52428800 57671680 1700000000   1200       0       0       0
filer:/home2     100       0       0       0      90     100     120       0
"""


def test_quota_is_read_of_the_file_system_of_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "quota"
    program.write_text(f'#!/bin/sh\n[ "$*" = "--no-wrap --raw-grace" ] && cat <<"X"\n{QUOTA}X\nexit 1\n')
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    home = Mount("/home", "nfs4", "filer:/home")
    assert read_quota(home) == Quota(52428800, 52428800, 1200, 0)
    assert quota_of(QUOTA, "filer:/home2") == Quota(100, 0, 90, 100)
    assert quota_of(QUOTA, "filer:/hom") is quota_of("garbage\n", "x") is None
    full = of_quota(home, read_quota(home), 1 << 40)
    assert full.grade is Grade.WARN and "100% of the quota is used (50 of 50 GiB)" in full.words
    assert of_quota(home, quota_of(QUOTA, "filer:/home2"), 0).grade is Grade.WARN, "of the files"
    assert of_quota(home, Quota(1, 100, 1, 100), 0).grade is of_quota(home, Quota(1, 0, 1, 0), 0).grade is Grade.OK
    assert of_quota(home, None, 5 << 30).words == "home is on nfs4, 5 GiB free; no quota is known"


def test_limits_of_the_login_node_below_what_an_operator_takes() -> None:
    assert of_limits(Limits(None, None)).grade is of_limits(Limits(4096, 8 << 30)).grade is Grade.OK
    for limits in (Limits(100, None), Limits(None, 100 << 20)):
        found = of_limits(limits)
        assert found.grade is Grade.WARN and 'operator.where = "job"' in found.hint

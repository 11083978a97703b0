"""`doctor --site --job` on site profiles, as an ordinary user: what is unusual is named, with what follows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser

from transom_cli.bootstrap.slurm import slurm_client
from transom_cli.doctor.examine import Site, _packages, examine
from transom_cli.sandbox import sites
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.slurm.port import BackendTrial
from transom_cli.slurm.runner import Runner

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to add users"),
]

Lines = dict[str, tuple[str, str, str]]


def examined(cluster: Sandbox) -> Lines:
    """Return grade, words and hint of each line, as alice finds them."""
    alice = cluster.users()["alice"]
    user = OrdinaryUser(alice.name, alice.uid, alice.gid, Path(alice.home))
    env, result = cluster.env(), Path(alice.home) / "lines.json"

    def look() -> None:
        for name in [key for key in os.environ if key.startswith(("SLURM_", "SBATCH_"))]:
            del os.environ[name]
        os.environ.update(env, TRANSOM_STATE_DIR=f"{alice.home}/state")
        os.chdir(alice.home)
        root = Path(env.get("TRANSOM_ROOT", alice.home))
        site = Site(("--mem=100",))
        found = examine(slurm_client(), Runner(), lambda: root, lambda: BackendTrial(why_not="x"), site=lambda: site)
        lines = [(one.about, one.grade.value, one.words, one.hint) for one in found]
        result.write_text(json.dumps(lines))

    list(_packages())  # load what the user may not be able to read
    "localhost".encode("idna")
    user.call(look)
    return {about: (grade, words, hint) for about, grade, words, hint in json.loads(result.read_text())}


def look_at(folder: Path, *names: str, **conf: str) -> Lines:
    reason = sites.why_not(names)
    if reason:
        pytest.skip(reason)
    cluster = Sandbox.up(SandboxSpec(folder, 2, 0, site=names, extra=conf))
    try:
        lines = examined(cluster)
        assert not cluster.slurm("squeue", "-h", "-t", "PD,R", "-o", "%i"), "the job is cancelled"
        return lines
    finally:
        cluster.down()


def test_site_that_restricts_rewrites_and_purges(short_dir: Path) -> None:
    names = ("strict", "rewriting", "no-export", "purging", "slow-prolog")
    lines = look_at(short_dir / "strict", *names, WaitTime="30", KillWait="10")
    assert {about: line for about, line in lines.items() if line[0] == "fail"} == {}
    assert lines["comment"][1].startswith("the site rewrites it: 'project:physics'")
    assert lines["modify"][0] == "note" and "you may not set StartTime=now" in lines["modify"][1]
    assert "SBATCH_EXPORT=NONE, SLURM_EXPORT_ENV=NONE" in lines["environment"][1]
    assert lines["step environment"][0] == "note" and "--export=ALL" in lines["step environment"][2]
    assert lines["purge"][0] == "warn" and "suggests that old files are purged" in lines["purge"][1]
    assert "task-prolog" in lines["prolog"][1] and "WaitTime=30" in lines["wait time"][1]
    assert lines["kill wait"][0] == "warn" and lines["drain"][0] == "note"
    seconds = float(lines["start"][1].split()[0])
    assert seconds > 4, "the prolog takes four seconds"
    assert lines["requeue job"][0] == lines["shared root"][0] == lines["from a batch host"][0] == "ok"


def test_login_node_behind_a_firewall(short_dir: Path) -> None:
    lines = look_at(short_dir / "wall", "firewalled", "ad-users")
    assert lines["from this host"][0] == "note" and "reaches no slurmd (2 tried)" in lines["from this host"][1]
    assert lines["probe"][0] == "note" and 'operator.where = "job"' in lines["probe"][2]
    assert lines["from a batch host"][0] == "ok"
    assert "'domain users'" in lines["groups"][1] and lines["groups"][0] == "ok"
    assert {about: line for about, line in lines.items() if line[0] == "fail"} == {}


def test_steps_confined_by_cgroups(short_dir: Path) -> None:
    lines = look_at(short_dir / "cgroup", "cgroup", "strict")
    assert "task/cgroup" in lines["cgroups"][1]
    assert {about: line for about, line in lines.items() if line[0] == "fail"} == {}

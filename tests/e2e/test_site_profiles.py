"""Runs on site profiles, as an ordinary user of the site: what is normal at real sites stops none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.support import TRAINER, Person, at_step, over
from slurm_support import release_home, require_slurm

from transom_cli.sandbox import faults, sites
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.users import User

pytestmark = pytest.mark.sandbox
# The tests' Python may not be readable to others. The trainer needs the standard library and transom only.
PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"


@contextmanager
def site(folder: Path, *names: str) -> Iterator[Sandbox]:
    require_slurm()
    reason = sites.why_not(names)
    if reason:
        pytest.skip(reason)
    cluster = Sandbox.up(SandboxSpec(folder, 3, 0, home=release_home(), site=names))
    try:
        yield cluster
    finally:
        cluster.down()


class Resident(Person):
    """Alice, at a shell of the site."""

    def __init__(self, cluster: Sandbox, where: Path) -> None:
        self.user: User = cluster.users()["alice"]
        packages = [path for path in sys.path if path.endswith("site-packages")]
        venv = where / "python"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(venv)], check=True)
        (target,) = venv.glob("lib/python*/site-packages")
        repository = Path(__file__).resolve().parents[2]
        (target / "packages.pth").write_text("".join(f"{path}\n" for path in [*packages, str(repository)]))
        self.python = str(venv / "bin" / "python")
        env = {**cluster.env(), **self.user.env(), "TRANSOM_HEALTH__PROBE": "false"}
        env |= {"TRANSOM_STATE_DIR": f"{self.user.home}/state"}
        super().__init__(env, Path(self.user.home, "runs"), Path(self.user.home))

    def transom(self, *words: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "transom_cli", *words],
            env={**os.environ, **self.env, "TRANSOM_ROOT": str(self.root)}, cwd=self.cwd, capture_output=True,
            text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL, **self.user.identity(),
        )  # fmt: skip


def loses_a_node(cluster: Sandbox, person: Resident) -> dict[str, Any]:
    setup = ("--set", 'job.setup=["export OF_THE_JOB=yes"]')  # the ranks get it also where nothing is exported
    train = ("sh", "-c", '[ "$OF_THE_JOB" = yes ] && exec "$@"', "sh", person.python, str(TRAINER))
    run = person.start("-N", "2", *setup, "--", *train, "--steps", "60")
    view = person.wait(run, at_step(12), 180.0)
    faults.kill_node(cluster, view["nodes"][-1])
    return person.wait(run, over, 240.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to add users")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("ad-users", "no-export"), marks=pytest.mark.long),
        pytest.param(("strict", "no-export"), marks=pytest.mark.long),
        pytest.param(("strict", "ad-users"), marks=pytest.mark.long),
        *(pytest.param((name,), marks=pytest.mark.long) for name in ("ad-users", "no-export", "strict", "rewriting")),
        *(pytest.param((name,), marks=pytest.mark.long) for name in ("firewalled", "contended", "slow-prolog")),
        *(pytest.param((name,), marks=pytest.mark.long) for name in ("purging", "cgroup", "suspending")),
    ],
    ids="+".join,
)
def test_run_of_an_ordinary_user_survives_the_death_of_a_node(short_dir: Path, names: tuple[str, ...]) -> None:
    folder = short_dir / "profiles"
    with site(folder, *names) as cluster:
        person = Resident(cluster, short_dir / f"py-{'-'.join(names)}")
        view = loses_a_node(cluster, person)
        assert (view["phase"], view["step"]) == ("done", 60), view["verdict"]
        (incident,) = view["incidents"]
        assert incident["result"] == "recovered", incident

"""The worlds in which the contract is tried: each case names its own in the results, for scripts/slurm_contract.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slurm_support import asked_release
from slurm_worlds import FakeWorld, RealWorld, World

from transom_cli.sandbox.release.known import RELEASES, ReleaseHome

# pyslurm where the session's cluster is of a release that has it: TRANSOM_SANDBOX_TEST_RELEASE=forky
PYSLURM = ["pyslurm"] if asked_release() in RELEASES and RELEASES[asked_release()].pyslurm else []
WORLDS = ["fake", *(pytest.param(how, marks=pytest.mark.sandbox) for how in ("commands", *PYSLURM))]


def record(request: pytest.FixtureRequest, slurm: str) -> None:
    """For --junitxml: the world of this case, and the case without its world."""
    rest = request.node.callspec.id.removeprefix(request.param).removeprefix("-")
    case = request.node.originalname + (f"[{rest}]" if rest else "")
    request.node.user_properties += [("slurm", slurm), ("by", request.param), ("case", case)]


@contextmanager
def real(request: pytest.FixtureRequest) -> Iterator[RealWorld]:
    record(request, request.getfixturevalue("sandbox_slurm"))
    sandbox, short_dir = request.getfixturevalue("healed_sandbox"), request.getfixturevalue("short_dir")
    python = ReleaseHome(Path(sandbox.spec.home)).python if request.param == "pyslurm" else None
    if python and not python.exists():
        pytest.skip("pyslurm could not be built for it: see build.log in the release's folder")
    prefix: tuple[str, ...] = ()
    home = short_dir
    if os.geteuid() == 0:
        user = request.getfixturevalue("ordinary_user")
        prefix = ("setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--inh-caps=-all")
        home = user.home
    folder = short_dir / 'it\'s a "folder"\nof two lines'
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    world = RealWorld(sandbox, folder, prefix, home, str(python or ""))
    yield world
    world.bury()
    world.close()


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "fake":
        record(request, "")
        yield FakeWorld(tmp_path)
    else:
        with real(request) as world:
            yield world


@pytest.fixture(params=WORLDS)
def real_world(request: pytest.FixtureRequest) -> Iterator[RealWorld]:
    if request.param == "fake":
        record(request, "")
        pytest.skip("the fake starts no processes, neither a job's nor a controller's")
    with real(request) as world:
        yield world

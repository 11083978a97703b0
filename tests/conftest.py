"""Fixtures that any test may ask for; none acts unasked, but that nothing is written into the user's own history.

`sandbox`         one real Slurm (4 nodes, 2 GPUs each) for the whole test session.
`sandbox_slurm`   the version of that Slurm.
`healed_sandbox`  the same, with every fault undone and no job left, before and after the test.
`slurm_env`       this process's environment points at that Slurm during the test.
`ordinary_user`   a user without rights, made for the session (needs root).
`other_user`      a second one, for what one user may not do to another.
`short_dir`       a folder for the session with a short path that other users can enter.

Without Slurm on the machine these tests are skipped; with TRANSOM_REQUIRE_SLURM=1 they fail instead.
TRANSOM_SANDBOX_TEST_RELEASE=trixie|forky: the Slurm of `sandbox` is that of another release (make test-slurm).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from slurm_support import OrdinaryUser, release_home

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

# Where a change is judged, the same examples each time; everywhere else, new ones. A busy machine fails none of them.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m "... and sandbox", import only files with such tests: the others take 20 s of CPU in each worker."""
    if not config.option.markexpr.endswith(" and sandbox") or collection_path.suffix != ".py":
        return None
    near = (collection_path, collection_path.with_name("conftest.py"))
    return None if any("mark.sandbox" in path.read_text() for path in near if path.exists()) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In CI, try a third of each test's examples: they are the same ones each time."""
    for item in items if os.environ.get("CI") else ():
        test = getattr(item, "function", None)
        if own := getattr(test, "_hypothesis_internal_use_settings", None):
            few = settings(own, max_examples=max(20, own.max_examples // 3))
            test._hypothesis_internal_use_settings = few  # type: ignore[union-attr]


@pytest.fixture(scope="session", autouse=True)
def own_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSOM_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def short_dir() -> Iterator[Path]:
    """A folder with a short path that other users can enter: Unix sockets need the one, their tests the other."""
    path = Path(tempfile.mkdtemp(prefix="tsm-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def sandbox(short_dir: Path) -> Iterator[Sandbox]:
    cluster = Sandbox.up(SandboxSpec(short_dir / "sb", home=release_home()))
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def sandbox_slurm(sandbox: Sandbox) -> str:
    """The version of its Slurm: 22.05.8."""
    return sandbox.slurm("sinfo", "--version").split()[-1]


@pytest.fixture
def healed_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    faults.heal(sandbox)
    yield sandbox
    faults.heal(sandbox)


@pytest.fixture
def slurm_env(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in [key for key in os.environ if key.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)


@pytest.fixture(scope="session")
def ordinary_user(short_dir: Path) -> Iterator[OrdinaryUser]:
    with _new_user(short_dir / "home", f"transom{os.getpid()}") as user:
        yield user


@pytest.fixture(scope="session")
def other_user(short_dir: Path) -> Iterator[OrdinaryUser]:
    with _new_user(short_dir / "other", f"transom{os.getpid()}b") as user:
        yield user


@contextlib.contextmanager
def _new_user(home: Path, name: str) -> Iterator[OrdinaryUser]:
    if os.geteuid() != 0:
        pytest.skip("needs root to make another user")
    home.mkdir()
    subprocess.run(["useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", name], check=True)
    entry = pwd.getpwnam(name)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    yield OrdinaryUser(name, entry.pw_uid, entry.pw_gid, home)
    subprocess.run(["userdel", "--force", name], check=False, capture_output=True)

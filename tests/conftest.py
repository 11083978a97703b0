"""Fixtures that any test may ask for; none acts unasked.

`sandbox`         one real Slurm (4 nodes, 2 GPUs each) for the whole test session.
`healed_sandbox`  the same, with every fault undone and no job left, before and after the test.
`slurm_env`       this process's environment points at that Slurm during the test.

Without Slurm on the machine these tests are skipped; with TRANSOM_REQUIRE_SLURM=1 they fail instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from transom_cli.errors import SlurmUnreachable
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.tools import find_tools


def require_slurm(*, accounting: bool = False) -> None:
    """Skip the test (or fail it, where Slurm is required) when Slurm is not installed."""
    try:
        find_tools(accounting)
    except SlurmUnreachable as missing:
        if os.environ.get("TRANSOM_REQUIRE_SLURM") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def short_dir() -> Iterator[Path]:
    """A folder with a short path that other users can enter: Unix sockets need the one, their tests the other."""
    path = Path(tempfile.mkdtemp(prefix="tsm-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def sandbox(short_dir: Path) -> Iterator[Sandbox]:
    require_slurm()
    cluster = Sandbox.up(SandboxSpec(short_dir / "sb"))
    yield cluster
    cluster.down()


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

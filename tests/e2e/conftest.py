"""A person with a real Slurm, and runs that no test leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import Person, remembering

from transom_cli.heartbeat import paths
from transom_cli.layout import RunDir
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.supervise.lease import read_holder


@pytest.fixture
def person(healed_sandbox: Sandbox, short_dir: Path, tmp_path: Path) -> Iterator[Person]:
    root = short_dir / f"runs-{tmp_path.name}"
    state = short_dir / f"state-{tmp_path.name}"  # each with a history of nodes of its own
    env = {
        **healed_sandbox.env(),
        "TRANSOM_STATE_DIR": str(state),
        "TRANSOM_HEALTH__PROBE": "false",
    }  # torch takes seconds
    yield Person(env, root, tmp_path)
    for path in root.iterdir() if root.is_dir() else ():
        holder = read_holder(RunDir(path))
        if holder is not None and holder.here() and holder.alive_here():
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the final state of `remembering` on two ranks, without Slurm, faults and pauses."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("undisturbed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, paths.CHECKPOINT_DIR: str(folder), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    command = remembering(folder / "final", "--delay", "0")
    ranks = [subprocess.Popen(command, env={**env, "MASTER_PORT": str(port), "RANK": str(n)}) for n in range(2)]
    assert [rank.wait(300) for rank in ranks] == [0, 0]
    return (folder / "final").read_text()

"""A person with a real Slurm, and runs that no test leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import Person

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

"""What a node asks of the shared file system, counted by strace: bounded, and the same however many nodes there are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from agent_files import measured

STATED = 11.0  # operations a second, docs/operations.md; fewer on a machine that is busy, never more
SLACK = 1.3  # what comes once in some seconds may fall in
SECONDS = 12.0


@pytest.fixture(autouse=True)
def strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"nothing can be traced here: {tried.stderr.strip()}")


@pytest.mark.parametrize("nodes", [1, 500])
def test_a_nodes_operations_are_bounded_and_do_not_grow_with_the_run(nodes: int) -> None:
    found = measured(SECONDS, 2, nodes)
    assert 1.0 < float(str(found["a_second"])) <= STATED * SLACK, found
    assert float(str(found["logs_a_second"])) <= 2 * 2.0 * SLACK, found

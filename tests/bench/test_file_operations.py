"""What a node asks of the shared file system, counted by strace: bounded, and the same however many nodes there are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from agent_files import measured

STATED = {False: 1.5, True: 9.0}  # operations a second, docs/operations.md; fewer on a busy machine, never more
SLACK = 1.3  # what comes once in some seconds may fall in
SECONDS = 12.0


@pytest.fixture(autouse=True)
def strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"nothing can be traced here: {tried.stderr.strip()}")


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "alone"), [(1, True), (500, False)])
def test_a_nodes_operations_are_bounded_and_do_not_grow_with_the_run(nodes: int, alone: bool) -> None:
    """alone: no launcher fetches its heartbeat tables."""
    found = measured(SECONDS, 2, nodes, alone=alone)
    assert 0.2 < float(str(found["a_second"])) <= STATED[alone] * SLACK, found
    assert float(str(found["logs_a_second"])) <= 2 * 2.0 * SLACK, found

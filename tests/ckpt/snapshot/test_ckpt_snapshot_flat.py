"""However many saves a training makes, it and its daemon stay as large as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[1] / "ckpt_flat_worker.py"
GROWTH = 8 << 20  # bytes of resident memory that allocators may take between the two looks


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "last", "persist"), [(100, 300, 50), pytest.param(1000, 10_000, 100, marks=pytest.mark.long)]
)
def test_many_saves_leave_nothing_behind(tmp_path: Path, first: int, last: int, persist: int) -> None:
    words = [sys.executable, str(WORKER), str(tmp_path / "c"), str(first), str(last), str(persist)]
    tests = os.pathsep.join((str(WORKER.parents[1]), os.environ.get("PYTHONPATH", "")))
    ran = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": tests})
    assert ran.returncode == 0, ran.stderr
    before, after = json.loads(ran.stdout.splitlines()[-1])
    assert after["memories"] == before["memories"] == [3]
    assert after["files"] == before["files"]
    for what in ("descriptors", "threads"):
        for few, many in zip(before[what], after[what], strict=True):
            assert many <= few + 2  # what comes and goes with a durable one
    for few, many in zip(before["resident"], after["resident"], strict=True):
        assert many <= few + GROWTH

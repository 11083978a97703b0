"""kill -9 at any instant costs a training that keeps every step in memory one step at the most, and never a wrong bit.

Which kills there are, and what each may cost, stands in the driver: ckpt_memory_kill_driver.py DIR SEED KILLS [RANKS].
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOST = re.compile(r"(\d+): (.+?) (\(.+\)|\(\)|) *: at (\d+), restored \{(\d+)\}, lost (-?\d+)$", re.M)


@pytest.mark.parametrize(
    ("kills", "ranks"),
    [
        (10, 1),
        pytest.param(5, 2, marks=pytest.mark.long),
        pytest.param(100, 1, marks=pytest.mark.long),
        pytest.param(50, 2, marks=pytest.mark.long),
    ],
)
def test_a_kill_costs_one_step_at_the_most(tmp_path: Path, kills: int, ranks: int) -> None:
    driver = Path(__file__).parents[1] / "ckpt_memory_kill_driver.py"
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path / "c"), "1", str(kills), str(ranks)],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    lost = {what: int(steps) for _, what, _, _, _, steps in LOST.findall(done.stdout)}
    assert sum(1 for _ in LOST.finditer(done.stdout)) == kills, done.stdout
    assert all(steps <= 1 for what, steps in lost.items() if what != "both"), done.stdout

"""kill -9 at any instant of a save: a restore finds a whole checkpoint, and never an older one than was promised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ckpt_made import names_in


def test_kill_9_never_leads_to_a_wrong_restore(tmp_path: Path):
    driver = Path(__file__).with_name("ckpt_kill_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path / "c"), "1"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [int(word) for word in done.stdout.split()]
    assert len(found) == 10 and found == sorted(found) and found[-1] > 0, found
    leftovers = [name for name in names_in(tmp_path / "c") if name.startswith(".") and "fence" not in name]
    assert all("-7.9-" in name for name in leftovers), leftovers  # those of older attempts were cleaned up

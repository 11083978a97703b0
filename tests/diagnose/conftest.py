from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

SCENARIOS = ("skips", "subgroups", "other_type")


@pytest.fixture(scope="session")
def real_hangs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of SCENARIOS, with what real ranks left there: see hang_ranks.py."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("hangs")
    command = [sys.executable, str(Path(__file__).parent / "hang_ranks.py"), str(folder), *SCENARIOS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return folder

"""Puts tests/ on the search path: benches share the fake Slurm and the simulated GPUs with the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

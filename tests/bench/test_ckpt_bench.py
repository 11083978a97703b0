"""bench/ckpt.py as a whole, on a tiny state: every number is there, every load is right, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)  # processes that import torch, one after another: seconds each, but not on a busy machine
def test_a_round_of_three_methods_on_two_ranks(tmp_path: Path) -> None:
    words = ["--gib", "0.001", "--ranks", "2", "--rounds", "1", "--saves", "1", "--step-ms", "2"]
    words += ["--only", "transom,torch-save,dcp,nvrx-local", "--dir", str(tmp_path), "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(ROOT / "bench" / "ckpt.py"), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schema"], told["bench"], told["unit"]) == (1, "ckpt", "s")
    (case,) = told["cases"]
    assert (case["case"]["ranks"], case["case"]["sharded"]) == (2, True)
    methods = case["methods"]
    assert list(methods)[:3] == ["transom", "torch-save", "dcp"]
    for name in ("transom", "torch-save", "dcp"):
        row = methods[name]
        assert 0 < row["stall"] <= row["durable"], name
        assert row["first"] > 0 and row["warm"] > 0 and row["cold"] > 0, name
        assert row["identical"] is True and row["survived"]["silent"] == [], name
    assert methods["torch-save"]["survived"]["lost"] == methods["dcp"]["survived"]["lost"] == [0]
    assert methods["transom"]["survived"]["lost"] in ([0], [1])
    assert methods["transom"]["survived"]["from"] == ["memory"]
    assert methods["transom"]["memory"] > 0
    assert methods["torch-save"]["memory"] is methods["dcp"]["memory"] is None
    assert methods["transom"]["speed"] > 0 and methods["dcp"]["speed"] is None
    assert {row["to"] for row in case["ratios"] if row["method"] == "dcp"} >= {"transom", "floor"}
    assert case["floors"]["copy"] > 0
    if "nvrx-local" not in methods:
        assert "nvidia-resiliency-ext, then --peers DIR" in told["not_measured"][0]
    assert list(tmp_path.iterdir()) == []

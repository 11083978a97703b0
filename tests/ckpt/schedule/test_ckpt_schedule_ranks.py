"""`every="auto"` over real gloo ranks that train at different paces: all save the same steps, without being told."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rank_server import Forked

from transom_cli.ckpt.inventory import candidates, verify
from transom_cli.ckpt.schedule.cadence import START


def _train(ranks: int, directory: Path, saves: int, seed: int) -> tuple[list[dict], str]:
    """What each rank found, and what rank 0 said on stderr."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    worker = Path(__file__).parents[1] / "ckpt_auto_worker.py"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    clean |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(ranks)}
    running = [
        Forked(
            [sys.executable, str(worker), str(directory), str(saves), str(seed)],
            env={**clean, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        done = [rank.communicate(timeout=200) for rank in running]
    finally:
        for rank in running:
            rank.kill()
    assert [rank.returncode for rank in running] == [0] * ranks, "\n".join(err for _, err in done)
    assert not any("saves every" in err for _, err in done[1:]), "rank 0 speaks for all"
    return [json.loads(out.splitlines()[-1]) for out, _ in done], done[0][1]


@pytest.mark.long
def test_all_ranks_save_the_same_steps_and_restart_the_same(tmp_path: Path):
    found, said = _train(3, tmp_path, 5, seed=1)
    first = found[0]["saved"]
    assert all(rank["saved"] == first and rank["held"] == found[0]["held"] for rank in found)
    assert first[0] == START and len(first) == 5
    held = found[0]["held"]
    assert len(set(held)) >= 2, "the interval did change"
    assert [steps for steps in held if steps != START and f"saves every {steps} steps: " not in said] == []
    assert "step-15 was not saved: not all ranks save this step" in said
    differ = "The ranks would save at different steps: of `every` they have: rank 0 10, rank 1 'auto'"
    assert {rank["refused"] for rank in found} == {differ}
    kept = [candidate.step for candidate in candidates(tmp_path) if verify(candidate).good]
    assert kept == first[::-1], "and nothing was lost, or saved besides"

    again, _ = _train(3, tmp_path, 1, seed=2)
    assert all(rank["saved"] == again[0]["saved"] for rank in again)
    assert again[0]["saved"] == [first[-1] + START], "what was learned is forgotten alike"

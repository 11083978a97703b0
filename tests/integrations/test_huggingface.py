"""The Hugging Face Trainer, with the real package: the time limit's warning, and resumes from complete checkpoints."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rank_server import Forked

from transom_cli.ckpt.names import SEAL

WORKER = Path(__file__).with_name("huggingface_worker.py")


def train(folder: Path, *words: object, ranks: int = 1) -> list[str]:
    """Train with one rank or more; return what each printed last."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = []
    for rank in range(ranks):
        world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, str(WORKER), str(folder), *map(str, words)]
        env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | (world if ranks > 1 else {})
        started.append(Forked(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ends = [(*one.communicate(timeout=240), one.returncode) for one in started]
    assert [code for *_, code in ends] == [0] * ranks, "\n\n".join(err for _, err, code in ends if code)
    return [out.splitlines()[-1] for out, _, _ in ends]


@pytest.mark.long
def test_ranks_save_at_the_same_step_when_one_is_warned_and_the_next_start_continues_there(tmp_path: Path) -> None:
    assert train(tmp_path, 6, 4, 1, ranks=2) == ["from None to 4"] * 2
    assert train(tmp_path, 6, ranks=2) == ["from 4 to 6"] * 2


@pytest.mark.long
def test_interrupted_checkpoint_is_not_resumed_from(tmp_path: Path) -> None:
    assert train(tmp_path, 6) == ["from None to 6"]
    (tmp_path / "checkpoint-6" / SEAL).unlink()
    assert train(tmp_path, 7) == ["from 3 to 7"]

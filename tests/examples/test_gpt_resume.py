"""The example, run for real: interrupted or not, the final state has the same bits."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_server import Forked

pytest.importorskip("torch")
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "train.py"
SMALL = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--every", "5", "--log-every", "1")
STEPS = 40
LONG = pytest.mark.long
PATIENCE = 120  # seconds until a rank that should have ended, or said something, counts as hung


class Ranks:
    """`world` processes of the example on this machine, with a log each."""

    def __init__(self, folder: Path, world: int, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TRANSOM_"))}
        self.logs = [folder / f"rank-{rank}.log" for rank in range(world)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            env = {**kept, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if world > 1:
                env |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            with log.open("w") as out:
                command = [sys.executable, str(TRAIN), *SMALL, *flags]
                self.processes.append(Forked(command, env=env, stdout=out, stderr=subprocess.STDOUT))

    def codes(self) -> list[int]:
        try:
            return [process.wait(PATIENCE) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def wait_for(self, line: str) -> None:
        """Until rank 0 has said `line`."""
        patience = time.monotonic() + PATIENCE
        while line not in self.logs[0].read_text():
            assert time.monotonic() < patience, self.text()
            assert self.processes[0].poll() is None, self.text()
            time.sleep(0.02)

    def text(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)


def train(folder: Path, world: int, *flags: str) -> str:
    """Train to the end and return the hash of the final state."""
    result = folder / "final.json"
    ranks = Ranks(folder, world, "--steps", str(STEPS), "--final-hash", str(result), *flags)
    assert ranks.codes() == [0] * world, ranks.text()
    final = json.loads(result.read_text())
    assert final["step"] == STEPS
    assert final["tensors"] == 4 * 28  # a parameter, its two moments and its step count
    return str(final["sha256"])


@pytest.mark.parametrize(
    ("world", "flags"),
    [(1, ()), pytest.param(3, ("--ddp",), marks=LONG), pytest.param(2, ("--fsdp",), marks=LONG)],
    ids=["alone", "ddp", "fsdp"],
)
def test_a_killed_and_resumed_training_ends_with_the_same_bits(
    tmp_path: Path, world: int, flags: tuple[str, ...]
) -> None:
    """The last rank is killed with -9; the others end by themselves, with an error that names the peer."""
    uninterrupted = train(tmp_path, world, *flags)

    kept = ("--checkpoint-dir", str(tmp_path / "it's kept"))
    first = Ranks(tmp_path, world, "--steps", "100000", "--step-delay", "0.05", *kept, *flags)
    first.wait_for("step 12 ")
    first.processes[-1].send_signal(signal.SIGKILL)
    assert first.codes() == [1] * (world - 1) + [-signal.SIGKILL], first.text()

    assert train(tmp_path, world, *kept, *flags) == uninterrupted
    text = (tmp_path / "rank-0.log").read_text()
    assert "training from step 0 " not in text
    assert f"to {STEPS} on {world} ranks" in text


def test_another_seed_ends_with_other_bits(tmp_path: Path) -> None:
    assert train(tmp_path, 1, "--seed", "1") != train(tmp_path, 1, "--seed", "2")


def test_no_valid_checkpoint_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    kept = ("--checkpoint-dir", str(tmp_path / "kept"))
    train(tmp_path, 1, *kept)
    for file in (tmp_path / "kept").glob("step-*/*.distcp"):
        file.write_bytes(bytes(file.stat().st_size))
    ranks = Ranks(tmp_path, 1, "--steps", str(STEPS + 10), *kept)
    assert ranks.codes() == [15], ranks.text()
    assert "training from step" not in ranks.text()

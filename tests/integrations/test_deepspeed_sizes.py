"""DeepSpeed's ZeRO with another number of ranks than wrote the checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.integrations.deepspeed import saved_ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "deepspeed" / "train.py"


def test_the_numbers_of_ranks_that_wrote_a_tag_are_read_from_its_files(tmp_path: Path) -> None:
    names = [f"bf16_zero_pp_rank_{n}_mp_rank_0{m}_optim_states.pt" for n in range(12) for m in range(2)]
    for name in (*names, "mp_rank_00_model_states.pt"):
        (tmp_path / name).touch()
    assert saved_ranks(tmp_path) == (12, 2)
    for name in names:
        (tmp_path / name).unlink()
    assert saved_ranks(tmp_path) == (0, 0)


def train(tmp_path: Path, ranks: int, steps: int) -> str:
    final = tmp_path / f"final-{ranks}-{steps}"
    words = [str(EXAMPLE), str(tmp_path / "out"), "--steps", str(steps), "--every", "5", "--final", str(final)]
    started = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29_000 + os.getpid() % 900 + steps)}
        started.append(subprocess.Popen([sys.executable, *words], env=env, stderr=subprocess.PIPE, text=True))
    ends = [(one.communicate(timeout=240)[1], one.returncode) for one in started]
    assert all(code == 0 for _, code in ends), ends
    return final.read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_zero_state_continues_with_another_number_of_ranks(tmp_path: Path, before: int, after: int) -> None:
    pytest.importorskip("deepspeed")
    train(tmp_path, before, 10)
    unchanged = train(tmp_path, after, 10)  # restores the last step, and makes none
    assert unchanged == (tmp_path / f"final-{before}-10").read_text()
    train(tmp_path, after, 20)
    left = [path.name for path in (tmp_path / "out").iterdir() if "universal" in path.name or "converting" in path.name]
    assert (tmp_path / "out" / "global_step20").is_dir() and not left

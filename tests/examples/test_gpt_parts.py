"""The example's parts, each alone: data position, place among the ranks, quick start."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

GPT = Path(__file__).resolve().parents[2] / "examples" / "gpt"
torch = pytest.importorskip("torch")


def part(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpt_{name}", GPT / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


data = part("data")
ranks = part("ranks")


def samplers(world: int, seed: int = 1, corpus: object = None) -> list:
    text = torch.arange(0, 201, dtype=torch.uint8) if corpus is None else corpus  # 20 windows of 10
    return [data.Sampler(text, context=10, batch=2, seed=seed, rank=r, world=world) for r in range(world)]


def starts(sampler: object) -> list[int]:
    tokens, targets = sampler.next_batch()  # type: ignore[attr-defined]
    assert tokens.shape == targets.shape == (2, 10)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    return tokens[:, 0].tolist()


def test_each_window_is_used_once_an_epoch_by_all_ranks_together() -> None:
    first, second = samplers(world=2)
    epochs = [[s for _ in range(5) for rank in (first, second) for s in starts(rank)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(0, 200, 10))
    assert epochs[0] != epochs[1]


def test_a_resumed_sampler_gives_what_comes_next() -> None:
    (whole,) = samplers(world=1)
    expected = [starts(whole) for _ in range(15)]  # into the second epoch
    (stopped,) = samplers(world=1)
    for _ in range(7):
        starts(stopped)
    (resumed,) = samplers(world=1)
    resumed.load_state_dict(stopped.state_dict())
    assert [starts(resumed) for _ in range(8)] == expected[7:]


def test_a_position_in_another_text_or_order_is_refused() -> None:
    (mine,) = samplers(world=1)
    (other_seed,) = samplers(world=1, seed=2)
    (other_text,) = samplers(world=1, corpus=torch.zeros(201, dtype=torch.uint8))
    with pytest.raises(ValueError, match="seed"):
        mine.load_state_dict(other_seed.state_dict())
    with pytest.raises(ValueError, match="corpus"):
        mine.load_state_dict(other_text.state_dict())


def test_too_little_text_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="hold 20 windows; a step needs 22"):
        samplers(world=11)


def test_the_corpus_is_sorted_python_source_up_to_its_limit(tmp_path: Path) -> None:
    for name, text in (("b.py", "bb"), ("a.py", "aa"), ("z/c.py", "cc"), ("site-packages/x.py", "xx"), ("a.txt", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert bytes(data.read_corpus(root=tmp_path).tolist()) == b"aabbcc"
    assert bytes(data.read_corpus(3, root=tmp_path).tolist()) == b"aab"
    assert len(data.read_corpus(1_000_000)) == 1_000_000  # this machine's own library


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, (0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}, (2, 4, 0)),
        # A batch script has these, too: python without srun is alone there, and must not wait for others.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, (0, 1, 0)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, (0, 2, 0)),
    ],
)
def test_the_place_among_the_ranks(env: dict[str, str], place: tuple[int, int, int]) -> None:
    assert ranks.Place.of(env) == ranks.Place(*place)


@pytest.mark.long
def test_dynamo_loads_only_when_used() -> None:
    program = (
        "import sys, faststart\n"
        "faststart.without_dynamo()\n"
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.AdamW([weight])\n"
        "weight.sum().backward()\n"
        "optimizer.step()\n"
        "assert 'sympy' not in sys.modules, 'dynamo was loaded'\n"
        "from torch._dynamo.config import cache_size_limit\n"
        "assert torch._dynamo.config.cache_size_limit == cache_size_limit\n"
        "assert sys.modules['torch._dynamo'].__file__, 'the stand-in is still there'\n"
        "optimizer.step()\n"
        "print(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=GPT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2.0\n"


def test_a_wrong_flag_is_refused_before_torch_is_imported() -> None:
    command = [sys.executable, "-X", "importtime", str(GPT / "train.py"), "--stepz", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "unrecognized arguments: --stepz" in done.stderr
    assert "| torch\n" not in done.stderr


def test_the_plain_sbatch_script_is_valid_and_knows_nothing_of_transom() -> None:
    script = GPT / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    assert "#SBATCH --requeue" in lines
    assert not [line for line in lines if "transom" in line and not line.startswith("#")]

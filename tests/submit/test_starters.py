"""A starter's command line (torchrun, accelerate launch, ...) becomes what it would have started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.config.model import Settings
from transom_cli.errors import UsageError
from transom_cli.submit.starters import apply, refuse_python_within_torchrun, translate

PRINTS = """import os, sys
names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP")
print(*(os.environ.get(name) for name in names), *sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("line", "command", "ranks", "nodes", "unused"),
    [
        ("torchrun train.py --lr 1", "python -u train.py --lr 1", None, None, ()),
        ("torchrun --standalone --nproc-per-node=4 train.py", "python -u train.py", 4, None, ()),
        ("torchrun --nproc_per_node gpu --nnodes 2:2 t.py", "python -u t.py", None, 2, ()),
        (
            "/e/bin/torchrun --max-restarts 3 -m pkg.train x",
            "/e/bin/python -u -m pkg.train x",
            None,
            None,
            ("--max-restarts",),
        ),
        ("torchrun --nnodes=2 --rdzv-endpoint h:1 --no-python ./run.sh", "./run.sh", None, 2, ("--rdzv-endpoint",)),
        ("python3 -u -m torch.distributed.run --nproc-per-node 2 t.py", "python3 -u t.py", 2, None, ()),
        ("python -m torch.distributed.launch --use-env t.py", "python -u t.py", None, None, ()),
        ("lightning run model --devices=2 --accelerator=cpu t.py", "python -u t.py", 2, None, ()),
        ("deepspeed --no_local_rank --num_gpus 2 t.py --x", "python -u t.py --x", 2, None, ()),
        ("deepspeed -H hosts --no_local_rank t.py", "python -u t.py", None, None, ("-H",)),
    ],
)
def test_translation(line: str, command: str, ranks: int | None, nodes: int | None, unused: tuple[str, ...]) -> None:
    started = translate(line.split())
    assert started is not None and started.kind == "srun"
    assert shlex.join(started.command) == command
    assert (started.ranks, started.nodes, started.replaced) == (ranks, nodes, unused)


@pytest.mark.parametrize(
    "line", ["python train.py", "env -u X torchrun t.py", "bash -c 'torchrun t.py'", "accelerate env"]
)
def test_other_commands_are_left_alone(line: str) -> None:
    assert translate(shlex.split(line)) is None


def test_environment_before_and_of_the_starter_is_kept() -> None:
    started = translate(shlex.split("env OMP_NUM_THREADS=2 fabric run --precision=bf16-mixed t.py"))
    assert started is not None
    assert started.env == {"OMP_NUM_THREADS": "2", "LT_CLI_USED": "1", "LT_PRECISION": "bf16-mixed"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nnodes 1:4 t.py", "transom run -N 4"),
        ("torchrun --nproc-per-node 2", "has no script"),
        ("torchrun --run-path t.py", "inside torchrun's own process"),
        ("deepspeed --include worker-0:0,1 t.py", "Slurm chooses the nodes"),
        ("accelerate launch --num_processes 3 --num_machines 2 t.py", "a multiple of --num_machines"),
    ],
)
def test_what_cannot_be_translated_is_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        translate(line.split())


def test_torchrun_by_transom_keeps_its_other_flags() -> None:
    words = ["torchrun", "--nproc-per-node", "2", "--tee", "3", "--max-restarts", "3", "-m", "pkg.train"]
    started = translate(words, "torchrun")
    assert started is not None and (started.kind, started.command) == ("torchrun", ("-m", "pkg.train"))
    assert (started.torchrun_args, started.replaced) == (("--tee=3",), ("--max-restarts",))


def test_numbers_of_the_starter_become_settings_unless_they_contradict() -> None:
    words = ("torchrun", "--nnodes=2", "--nproc-per-node=4", "t.py")
    command, settings, note = apply(words, Settings())
    assert (command[-1], settings.job.nodes, settings.ranks_per_node) == ("t.py", 2, 4)
    assert note == "`torchrun` is not run itself: Slurm starts 4 ranks on each node"
    given = Settings.model_validate({"job": {"nodes": 3}})
    with pytest.raises(UsageError, match=r"the command requests 2, the setting 3"):
        apply(words, given)
    assert apply(("python", "t.py"), given) == (("python", "t.py"), given, "")


def test_python_within_torchrun_is_refused() -> None:
    torchrun = Settings.model_validate({"launch": {"kind": "torchrun"}})
    with pytest.raises(UsageError, match=r"remove python: transom run --torchrun ... -- x.py --lr 1"):
        refuse_python_within_torchrun(("python", "-u", "x.py", "--lr", "1"), torchrun)
    refuse_python_within_torchrun(("x.py",), torchrun)
    refuse_python_within_torchrun(("python", "x.py"), Settings())


def start(words: tuple[str, ...], script: Path) -> str:
    """What a rank of the translated command prints."""
    env = {**os.environ, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "77"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    return subprocess.run(words, env=env, cwd=script.parent, capture_output=True, text=True, check=True).stdout


def test_local_rank_reaches_the_script(tmp_path: Path) -> None:
    script = tmp_path / "a script.py"
    script.write_text(PRINTS)
    for words, flag in (("deepspeed", "--local_rank"), ("python -m torch.distributed.launch", "--local-rank")):
        started = translate([*words.split(), script.name, "a b"])
        assert started is not None
        assert start(started.command, script) == f"3 4 77 None None {flag}=1 a b\n"


@pytest.mark.parametrize(
    ("flags", "precision", "fsdp"),
    [
        ("--multi_gpu --num_processes 4 --num_machines 2 --use_fsdp", "no", "true"),
        ("--cpu --num_processes 4", "bf16", None),
    ],
    ids=["fsdp", "cpu"],
)
def test_accelerate_prepares_the_environment_of_each_rank(
    tmp_path: Path, flags: str, precision: str, fsdp: str | None
) -> None:
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(PRINTS)
    flags = flags.replace("--multi_gpu ", "")  # --use_fsdp implies it
    started = translate([*f"accelerate launch {flags} --mixed_precision {precision}".split(), script.name, "a b"])
    assert started is not None and started.ranks == (2 if fsdp else 4)
    assert start(started.command, script) == f"3 4 77 {precision} {fsdp} a b\n"

"""A command that starts ranks by itself, in each of several tasks, makes several trainings of one run."""

from __future__ import annotations

import pytest

from transom_cli.config.model import Settings
from transom_cli.errors import UsageError
from transom_cli.submit.unsupported import refuse_nested

SEVERAL = {"nodes": 2, "tasks_per_node": 2}
ONE_A_NODE = {"nodes": 2, "tasks_per_node": 1}


def refused(*words: str, job: dict[str, int] | None = None, kind: str = "srun", given: tuple[str, ...] = ()) -> str:
    """The words of the refusal, "" for a command that is taken."""
    settings = Settings.model_validate({"job": job or SEVERAL, "launch": {"kind": kind}})
    try:
        refuse_nested(words, settings, given)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "command",
    [
        ("torchrun", "train.py"),
        ("/opt/env/bin/torchrun", "--nproc-per-node", "4", "train.py"),
        ("python", "-m", "torch.distributed.run", "train.py"),
        ("python3.11", "-u", "-X", "dev", "-m", "torch.distributed.launch", "train.py"),
        ("env", "-u", "X", "A=b", "torchrun", "train.py"),
        ("env", "OMP_NUM_THREADS=1", "/opt/python", "-m", "torch.distributed.run", "train.py"),
        ("A=b", "torchrun", "train.py"),
        ("bash", "-c", "cd /data && exec torchrun train.py"),
        ("/bin/sh", "-ec", "torchrun train.py"),
        ("numactl", "--cpunodebind=0", "torchrun", "train.py"),
        ("accelerate", "launch", "train.py"),
        ("python", "-m", "accelerate.commands.launch", "train.py"),
        ("deepspeed", "train.py"),
        ("horovodrun", "-np", "4", "python", "train.py"),
        ("mpirun", "-n", "4", "python", "train.py"),
        ("srun", "python", "train.py"),
    ],
)
def test_launcher_in_several_tasks_is_refused(command: tuple[str, ...]) -> None:
    said = refused(*command)
    assert "4 tasks" in said and "4 separate trainings" in said and "transom run" in said, said


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py"),
        ("python", "torchrun.py"),
        ("python", "train.py", "torchrun"),
        ("bash", "-c", "echo torchrun; python train.py"),
        ("bash", "run.sh", "torchrun"),
        ("accelerate", "env"),
        ("echo", "-m", "torch.distributed.run"),
    ],
)
def test_command_that_only_mentions_a_launcher_is_taken(command: tuple[str, ...]) -> None:
    assert refused(*command) == ""


def test_launcher_in_the_only_task_is_taken() -> None:
    alone = {"nodes": 1, "tasks_per_node": 1}
    assert refused("torchrun", "--standalone", "--nproc-per-node=4", "train.py", job=alone) == ""
    assert refused("accelerate", "launch", "train.py", job=alone) == ""


def test_torchrun_with_nnodes_is_accepted_with_one_task_per_node() -> None:
    joined = ("torchrun", "--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:1", "train.py")
    assert refused(*joined, job=ONE_A_NODE) == ""
    assert "2 x 2" not in refused(*joined) and refused(*joined) != "", "two on each node"
    assert refused("torchrun", "--nnodes=1", "train.py", job=ONE_A_NODE)
    assert refused("torchrun", "--nnodes", "1", "train.py", job=ONE_A_NODE)


def test_refusal_says_the_command_to_type() -> None:
    command = ("torchrun", "--nproc-per-node", "4", "--standalone", "train.py", "--lr", "1e-3", "a b")
    said = refused(*command, job=ONE_A_NODE, given=("-N", "2", "--name", "llama"))
    assert "transom run -N 2 --name llama --torchrun --tasks-per-node 4 -- train.py --lr 1e-3 'a b'" in said, said
    module = refused("python", "-m", "torch.distributed.run", "-m", "pkg.train", "x", given=("-N", "2"))
    assert "transom run -N 2 --torchrun -- -m pkg.train x" in module, module
    mpi = refused("mpirun", "-n", "4", "python", "train.py", "x", given=("-N", "2"))
    assert "transom run -N 2 -- python train.py x" in mpi, mpi


def test_torchrun_within_torchrun_is_refused() -> None:
    alone = {"nodes": 1, "tasks_per_node": 1}
    said = refused("torchrun", "train.py", job=alone, kind="torchrun", given=("--torchrun",))
    assert "transom run --torchrun -- train.py" in said and "--torchrun --torchrun" not in said, said

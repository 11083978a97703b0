"""The training step's srun: what it asks of Slurm where a spare takes a lost node's place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transom_cli.errors import UsageError
from transom_cli.layout import RunDir
from transom_cli.supervise.launcher.allocation import require_commands
from transom_cli.supervise.launcher.containing import Image, container_words, find_program
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions, keeps_rendezvous, training_argv, training_env

NODES = ("n1", "n2", "n3", "n4")


def words_before_the_wrapper(launch: int, nodes: tuple[str, ...]) -> list[str]:
    run = RunDir(Path("run"))
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,))
    wrapper = Path("rank.py")
    argv = training_argv(
        Allocation(7, 0, NODES), options, run.attempt(7, 0), launch, nodes, wrapper=wrapper, master="n1", port=1
    )
    return argv[: argv.index(sys.executable)]


def test_a_spares_launch_waits_for_nothing_that_a_dead_nodes_launch_holds() -> None:
    words = words_before_the_wrapper(1, ("n1", "n3", "n4"))
    assert {"--nodelist=n1,n3,n4", "--overlap", "--mem=0"} <= set(words)


@pytest.mark.parametrize(("launch", "nodes"), [(0, ("n1", "n2", "n3")), (0, NODES), (1, NODES)])
def test_a_launch_that_nothing_stands_before_keeps_its_memory_to_itself(launch: int, nodes: tuple[str, ...]) -> None:
    assert not {"--overlap", "--mem=0"} & set(words_before_the_wrapper(launch, nodes))


def torchrun_words(launch: int, *args: str) -> list[str]:
    run = RunDir(Path("run"))
    options = LaunchOptions(run, "torchrun", ("train.py",), (sys.executable,), torchrun_args=args)
    wrapper, attempt = Path("rank.py"), run.attempt(7, 2)
    argv = training_argv(Allocation(7, 2, NODES), options, attempt, launch, NODES, wrapper=wrapper, master="n1", port=1)
    return argv[argv.index("--") :]


def test_torchruns_rendezvous_is_named_after_its_launch() -> None:
    words = torchrun_words(1, "--tee=3")
    assert "--rdzv-id=7.2.1" in words and words.index("--rdzv-id=7.2.1") < words.index("--tee=3")
    assert "--rdzv-id=7.2.2" in torchrun_words(2)


@pytest.mark.parametrize("theirs", [("--rdzv-id=mine",), ("--rdzv_id", "mine")])
def test_a_rendezvous_that_the_user_names_keeps_its_name(theirs: tuple[str, ...]) -> None:
    assert [w for w in torchrun_words(1, *theirs) if "rdzv" in w and "id" in w] == [theirs[0]]


def test_the_users_rendezvous_is_that_of_the_first_launch_at_most() -> None:
    allocation, theirs = Allocation(7, 0, NODES), {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "HOME": "/h"}

    def env(launch: int, nodes: tuple[str, ...]) -> list[str]:
        keep = keeps_rendezvous(allocation, launch, nodes)
        made = training_env(theirs, nodes[0], 20000 + launch, RunDir(Path("run")), keep=keep)
        assert made["HOME"] == "/h"
        return [made["MASTER_ADDR"], made["MASTER_PORT"]]

    assert env(0, NODES) == ["n1", "29500"]
    assert env(1, NODES) == ["n1", "20001"], "no rank of launch 0 can join"
    assert env(2, NODES[1:]) == ["n2", "20002"], "n1 is dead"
    assert env(0, NODES[1:]) == ["n2", "20000"], "n1 is isolated"


def test_a_launcher_without_slurms_commands_says_what_it_lacks() -> None:
    assert require_commands(lambda name: f"/usr/bin/{name}") == ""
    assert "without an operator" in require_commands(lambda name: None if name == "scontrol" else name)
    with pytest.raises(UsageError, match="srun") as raised:
        require_commands(lambda name: None)
    assert "container" in raised.value.why and "--apptainer" in raised.value.hint


def test_a_rank_in_a_container_by_apptainer() -> None:
    folders = (Path("/runs/r1"), Path("/ckpt"), Path("/runs/r1"))
    image = Image("/i/train image.sif", ("/data:/data:ro", "/x:/ckpt"), ("--cleanenv",))
    assert container_words(image, "apptainer", folders, gpus=True) == (
        "apptainer", "exec", "--nv", "--bind=/runs/r1", "--bind=/data:/data:ro", "--bind=/x:/ckpt", "--cleanenv",
        "/i/train image.sif",
    )  # fmt: skip
    for own in ("--rocm", "--nv", "--nvccli"):
        assert container_words(Image("i", (), (own,)), "singularity", (), gpus=True) == (
            "singularity",
            "exec",
            own,
            "i",
        )
    assert "--nv" not in container_words(Image("i"), "apptainer", (), gpus=False)


def test_the_container_stands_before_the_command_and_behind_the_wrapper() -> None:
    run, allocation = RunDir(Path("/runs/r1")), Allocation(7, 0, NODES)
    for kind, inside in (("srun", ["train.py"]), ("torchrun", ["python3", "-m", "torch.distributed.run"])):
        options = LaunchOptions(run, kind, ("train.py",), (sys.executable,), within=("apptainer", "exec", "i.sif"))
        argv = training_argv(
            allocation, options, run.attempt(7, 0), 0, NODES, wrapper=Path("/w.py"), master="n1", port=1
        )
        words = argv[argv.index("--") + 1 :]
        assert words[: 3 + len(inside)] == ["apptainer", "exec", "i.sif", *inside]


def test_which_program() -> None:
    assert find_program(lambda name: name) == "apptainer"
    assert find_program(lambda name: name if name == "singularity" else None) == "singularity"
    with pytest.raises(UsageError, match="Neither") as raised:
        find_program(lambda name: None)
    assert "module load" in raised.value.hint

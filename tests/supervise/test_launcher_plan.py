"""The training step's srun: what it asks of Slurm where a spare takes a lost node's place."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from transom_cli import start
from transom_cli.errors import UsageError
from transom_cli.health import reach, transport
from transom_cli.layout import RunDir
from transom_cli.supervise.launcher.allocation import require_commands
from transom_cli.supervise.launcher.plan import (
    EXPIRY,
    Allocation,
    Image,
    LaunchOptions,
    agent_argv,
    container_words,
    find_program,
    hosts_file,
    training_argv,
    training_env,
)

NODES = ("n1", "n2", "n3", "n4")


def words_before_the_wrapper(launch: int, nodes: tuple[str, ...]) -> list[str]:
    run = RunDir(Path("run"))
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,))
    wrapper = Path("rank.py")
    argv = training_argv(
        Allocation(7, 0, NODES), options, run.attempt(7, 0), launch, nodes, wrapper=wrapper, master="n1"
    )
    return argv[: argv.index(sys.executable)]


def test_a_spares_launch_waits_for_nothing_that_a_dead_nodes_launch_holds() -> None:
    words = words_before_the_wrapper(1, ("n1", "n3", "n4"))
    assert {"--nodelist=n1,n3,n4", "--overlap", "--mem=0"} <= set(words)


def test_srun_is_given_the_node_of_each_task_where_a_spare_stands_in_for_a_node() -> None:
    swapped = ("n1", "n4", "n3")
    words = words_before_the_wrapper(1, swapped)
    assert words[-1] == "--distribution=arbitrary", "the user's own --distribution does not count then"
    assert "--nodelist=run/attempts/7.0/hosts/1" in words
    options = LaunchOptions(RunDir(Path("run")), "srun", ("true",), (sys.executable,), tasks_per_node=2)
    assert hosts_file(Allocation(7, 0, NODES), options, swapped).split() == ["n1", "n1", "n4", "n4", "n3", "n3"]
    assert hosts_file(Allocation(7, 0, NODES), options, ("n1", "n3", "n4")) == "", "Slurm's own order"


@pytest.mark.parametrize(("launch", "nodes"), [(0, ("n1", "n2", "n3")), (0, NODES), (1, NODES)])
def test_a_launch_that_nothing_stands_before_keeps_its_memory_to_itself(launch: int, nodes: tuple[str, ...]) -> None:
    assert not {"--overlap", "--mem=0"} & set(words_before_the_wrapper(launch, nodes))


def torchrun_words(launch: int, *args: str) -> list[str]:
    run = RunDir(Path("run"))
    options = LaunchOptions(run, "torchrun", ("train.py",), (sys.executable,), torchrun_args=args)
    wrapper, attempt = Path("rank.py"), run.attempt(7, 2)
    argv = training_argv(Allocation(7, 2, NODES), options, attempt, launch, NODES, wrapper=wrapper, master="n1")
    return argv[argv.index("--") :]


def test_torchruns_rendezvous_is_named_after_its_launch() -> None:
    words = torchrun_words(1, "--tee=3")
    assert "--rdzv-id=7.2.1" in words and words.index("--rdzv-id=7.2.1") < words.index("--tee=3")
    assert "--rdzv-id=7.2.2" in torchrun_words(2)


def test_no_command_line_names_the_port() -> None:
    """Other users of a node see command lines, and could take the port before rank 0 does."""
    assert not [word for word in torchrun_words(1) if word.startswith("--master-port")]


@pytest.mark.parametrize("theirs", [("--rdzv-id=mine",), ("--rdzv_id", "mine")])
def test_a_rendezvous_that_the_user_names_keeps_its_name(theirs: tuple[str, ...]) -> None:
    assert [w for w in torchrun_words(1, *theirs) if "rdzv" in w and "id" in w] == [theirs[0]]


def test_each_launch_has_its_own_rendezvous_whatever_the_environment_names() -> None:
    theirs = {"MASTER_ADDR": "n9", "MASTER_PORT": "29500", "HOME": "/h"}
    made = training_env(theirs, "n1", 20000, RunDir(Path("run")))
    assert (made["MASTER_ADDR"], made["MASTER_PORT"], made["HOME"]) == ("n1", "20000", "/h")


@pytest.mark.parametrize(
    ("theirs", "exported"),
    (
        ({"SLURM_JOB_END_TIME": "1795519451"}, ["1795519451", "1795519451"]),
        ({"SLURM_JOB_END_TIME": "1795519451", EXPIRY[0]: "5"}, ["5", None]),
        ({"SLURM_JOB_END_TIME": "1795519451", EXPIRY[1]: "5"}, [None, "5"]),  # the cloud takes the nodes back earlier
        ({"SLURM_JOB_END_TIME": "0"}, [None, None]),
        ({"SLURM_JOB_END_TIME": "Unknown"}, [None, None]),
        ({}, [None, None]),
    ),
)
def test_ranks_know_when_the_job_ends(theirs: dict[str, str], exported: list[str | None]) -> None:
    made = training_env(theirs, "n1", 20000, RunDir(Path("run")))
    assert [made.get(name) for name in EXPIRY] == exported


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
    for flag in ("--rocm", "--nv", "--nvccli"):
        assert container_words(Image("i", (), (flag,)), "singularity", (), gpus=True) == (
            "singularity",
            "exec",
            flag,
            "i",
        )
    assert "--nv" not in container_words(Image("i"), "apptainer", (), gpus=False)


def test_the_container_stands_before_the_command_and_behind_the_wrapper() -> None:
    run, allocation = RunDir(Path("/runs/r1")), Allocation(7, 0, NODES)
    torchrun = start.own("torch.distributed.run", python=("python3",), all_paths=True)
    for kind, inside in (
        ("srun", ["train.py"]),
        ("torchrun", torchrun),
    ):
        options = LaunchOptions(run, kind, ("train.py",), (sys.executable,), within=("apptainer", "exec", "i.sif"))
        argv = training_argv(allocation, options, run.attempt(7, 0), 0, NODES, wrapper=Path("/w.py"), master="n1")
        words = argv[argv.index("--") + 1 :]
        assert words[: 3 + len(inside)] == ["apptainer", "exec", "i.sif", *inside]


def test_which_program() -> None:
    assert find_program(lambda name: name) == "apptainer"
    assert find_program(lambda name: name if name == "singularity" else None) == "singularity"
    with pytest.raises(UsageError, match="Neither") as raised:
        find_program(lambda name: None)
    assert "module load" in raised.value.hint


@pytest.mark.parametrize("flag", ["--run-path", "--run_path"])
def test_a_trainer_that_runs_inside_torchrun_keeps_its_interpreter(flag: str) -> None:
    run, allocation = RunDir(Path("/runs/r1")), Allocation(7, 0, NODES)
    options = LaunchOptions(run, "torchrun", ("train.py",), (sys.executable,), torchrun_args=(flag,))
    argv = training_argv(allocation, options, run.attempt(7, 0), 0, NODES, wrapper=Path("/w.py"), master="n1")
    words = argv[argv.index("--") + 1 :]
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"] and flag in words


def agent_words(options: LaunchOptions, **about: object) -> list[str]:
    return agent_argv(Allocation(7, 0, NODES, gpus=4, **about), options, options.run.attempt(7, 0))  # type: ignore[arg-type]


def test_agents_are_bound_to_no_cpu_and_outlive_one_another() -> None:
    options = LaunchOptions(RunDir(Path("run")), "srun", ("true",), (sys.executable,))
    words = agent_words(options)
    assert {"--cpu-bind=none", "--wait=0", "--kill-on-bad-exit=0"} <= set(words)
    assert not any(word.startswith("--cpus-per-task") for word in words), "that would take the training's first CPU"
    bound = agent_words(replace(options, agent_cpus="0-1,64"))
    assert bound[bound.index("--cpus") + 1] == "0-1,64"


def test_agents_have_all_gpus_of_the_job_also_where_each_task_has_one() -> None:
    options = LaunchOptions(RunDir(Path("run")), "srun", ("true",), (sys.executable,))
    assert "--gres=gpu:4" in agent_words(options, all_gpus=("--gres=gpu:4",))
    assert not any(word.startswith("--gres") for word in agent_words(options))


def test_ranks_that_still_save_are_not_killed_by_the_sites_wait_time() -> None:
    assert "--wait=0" in words_before_the_wrapper(0, NODES)


def test_every_srun_of_ours_passes_its_environment_on() -> None:
    """On sites with SLURM_EXPORT_ENV=NONE, srun would otherwise pass nothing on."""
    options = LaunchOptions(RunDir(Path("run")), "srun", ("true",), (sys.executable,))
    probes = (transport.step_argv(7, NODES), reach.step_argv(7, "n1"))
    for argv in (words_before_the_wrapper(0, NODES), agent_words(options), *probes):
        assert argv[0] == "srun" and "--export=ALL" in argv, argv

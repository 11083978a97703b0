"""`transom launch` takes srun's command line."""

from __future__ import annotations

import pytest

from transom_cli.errors import UsageError
from transom_cli.submit.srun_options import Layout, as_launch_words, kept_srun_args, step_layout
from transom_cli.submit.unsupported import refuse_nested_in_step, torchrun_command


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("python train.py -N 3", "-- python train.py -N 3"),
        ("-N2 -n 8 --cpu-bind=cores python t.py", "--nodes=2 --ntasks=8 --srun-arg=--cpu-bind=cores -- python t.py"),
        ("--cpu-bind cores --spares 1 -- -m t", "--srun-arg=--cpu-bind=cores --spares=1 -- -m t"),
        (
            "-lu -c 4 python t.py",
            "--srun-arg=--label --srun-arg=--unbuffered --srun-arg=--cpus-per-task=4 -- python t.py",
        ),
        ("-J pre --once python t.py", "--job-name=pre --once -- python t.py"),
        ("--torchrun --torchrun-arg=--tee=3 -- t.py", "--torchrun --torchrun-arg=--tee=3 -- t.py"),
        ("--nodess 2 x", "--nodess -- 2 x"),
        ("--help", "--help"),
    ],
)
def test_srun_options_become_arguments(given: str, words: str) -> None:
    assert as_launch_words(given.split()) == words.split()


def test_options_without_effect_are_noted_and_others_refused() -> None:
    kept, notes = kept_srun_args(["--cpu-bind=cores", "--output=x-%t.out", "--kill-on-bad-exit=1"])
    assert kept == ("--cpu-bind=cores",)
    assert [note.split()[0] for note in notes] == ["--output=x-%t.out", "--kill-on-bad-exit=1"]
    with pytest.raises(UsageError, match="--nodelist"):
        kept_srun_args(["-w", "node1"])


@pytest.mark.parametrize(
    ("environ", "given", "layout"),
    [
        ({"SLURM_TASKS_PER_NODE": "8(x4)"}, {}, Layout(4, 8)),
        ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x4)"}, {"spares": 1}, Layout(3, 2)),
        ({"SLURM_TASKS_PER_NODE": "1(x4)"}, {"per_node": 8, "nodes": "2"}, Layout(2, 8)),
        ({"SLURM_TASKS_PER_NODE": "1(x4)"}, {"ntasks": 16}, Layout(4, 4)),
        ({"SLURM_TASKS_PER_NODE": "1(x4)"}, {"ntasks": 2}, Layout(2, 1)),
        ({}, {}, Layout(4, 1)),
    ],
)
def test_layout_is_that_of_srun(environ: dict[str, str], given: dict[str, object], layout: Layout) -> None:
    assert step_layout(environ, 4, **given) == layout  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "given", "words"),
    [
        ({"SLURM_TASKS_PER_NODE": "2(x3),1"}, {}, "different numbers of tasks"),
        ({}, {"nodes": "5"}, "too few for 5 nodes"),
        ({}, {"nodes": "4", "spares": 1}, "too few for 4 nodes with ranks and 1 spare"),
        ({}, {"nodes": "2-4"}, "not a number"),
        ({}, {"ntasks": 6}, "spread evenly"),
    ],
)
def test_impossible_layouts_are_refused(environ: dict[str, str], given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        step_layout(environ, 4, **given)  # type: ignore[arg-type]


def test_torchrun_is_taken_apart() -> None:
    words = "torchrun --nnodes=4 --nproc_per_node 8 --rdzv-backend=c10d --tee 3 --log-dir=l train.py --lr 1"
    found = torchrun_command(tuple(words.split()))
    assert found is not None
    assert (found.program, found.ranks) == (("torchrun",), "8")
    assert found.options == ("--tee=3", "--log-dir=l") and found.training == ("train.py", "--lr", "1")
    module = torchrun_command(("env", "A=b", "/p/python", "-m", "torch.distributed.run", "--standalone", "-m", "pkg"))
    assert module is not None and module.program[-2:] == ("-m", "torch.distributed.run")
    assert module.training == ("-m", "pkg") and module.options == ()
    assert torchrun_command(("python", "train.py")) is None


def test_nested_launchers_are_refused_where_they_would_start_several_trainings() -> None:
    with pytest.raises(UsageError, match="8 separate trainings"):
        refuse_nested_in_step(("accelerate", "launch", "t.py"), 4, 2)
    refuse_nested_in_step(("accelerate", "launch", "--num_machines", "4", "t.py"), 4, 1)
    refuse_nested_in_step(("python", "t.py"), 4, 2)

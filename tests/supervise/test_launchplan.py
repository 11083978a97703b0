"""The training step's srun: what it asks of Slurm where a spare takes a lost node's place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transom_cli.layout import RunDir
from transom_cli.supervise.launchplan import Allocation, LaunchOptions, training_argv

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

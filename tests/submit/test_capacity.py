"""A job that not enough nodes fit is refused before it is submitted, with what would fit."""

from __future__ import annotations

import pytest

from transom_cli.errors import UsageError
from transom_cli.slurm.port import Node
from transom_cli.submit.capacity import needs_nodes, refuse_too_large, with_hidden

NODES = (
    *(Node(f"n{i}", "idle", gpus=2, cpus=8, memory=16000, partitions=("main", "gpu")) for i in (1, 2)),
    *(Node(f"n{i}", "idle", gpus=0, cpus=64, memory=256000, partitions=("main", "large")) for i in (3, 4)),
)


@pytest.mark.parametrize(
    ("options", "wanted", "what", "why", "hint"),
    [
        ({}, 5, "The cluster does not have enough nodes", "it has 4; the job asks for 5", "--nodes"),
        ({"partition": "gpu"}, 3, "Partition `gpu` does not have enough nodes", "it has 2", "--nodes"),
        ({"mem": "500G"}, 1, "enough nodes with 500G of memory", "0 of 4 nodes have 500G", "`--mem 256000M` fits"),
        ({"mem": "64G", "partition": "gpu"}, 1, "Partition `gpu`", "0 of 2 nodes have", "`--mem 16000M` fits"),
        ({"gres": "gpu:h100:3"}, 2, "nodes with 3 GPUs", "0 of 4 nodes have 3 GPUs", "`--gpus-per-node 2` fits"),
        ({"gpus-per-node": "1"}, 3, "nodes with 1 GPU", "2 of 4 nodes have 1 GPU", "leave it out"),
        ({"cpus-per-task": "128"}, 2, "nodes with 128 CPUs", "0 of 4", "`--cpus-per-task 64` fits"),
        ({"cpus-per-task": "8", "ntasks-per-node": "16"}, 1, "128 CPUs (16 tasks of 8)", "", "`--cpus-per-task 4`"),
        ({"ntasks-per-node": "65"}, 1, "nodes with 65 CPUs", "", "`--tasks-per-node 64` fits"),
        ({"gres": "gpu:2", "mem": "64G"}, 2, "2 GPUs and 64G of memory", "0 of 4 nodes have all", "use less of it"),
    ],
)
def test_job_that_never_fits_is_refused(
    options: dict[str, str | None], wanted: int, what: str, why: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_too_large(options, wanted, 0, NODES)
    error = refused.value
    assert what in error.what and why in error.why and hint in error.hint and "--force" in error.hint


@pytest.mark.parametrize(
    "options",
    [
        {"mem": "0"},
        {"mem": "200G"},
        {"mem": "16000"},
        {"gres": "gpu:2", "partition": "gpu"},
        {"gres": "gpu", "mem": "15G"},
        {"partition": "hidden", "mem": "200G"},
        {"ntasks-per-node": "100", "overcommit": None},
        {"mem": "no size", "cpus-per-task": None},
    ],
)
def test_job_that_fits_passes(options: dict[str, str | None]) -> None:
    refuse_too_large(options, 2, 1, NODES)


def test_what_slurm_does_not_say_of_a_node_is_no_reason_to_refuse() -> None:
    silent = tuple(Node(f"n{i}", "idle") for i in (1, 2))
    refuse_too_large({"mem": "500G", "gres": "gpu:8", "cpus-per-task": "500"}, 2, 0, silent)
    assert not needs_nodes({"ntasks-per-node": "1"}, 1) and needs_nodes({"mem": "1G"}, 1)
    with pytest.raises(UsageError, match="enough nodes with 500G"):
        refuse_too_large({"mem": "500G"}, 2, 0, (silent[0], NODES[0]))


@pytest.mark.parametrize(("option", "value"), [("exclude", "n[2,9]"), ("nodelist", "n9")])
def test_node_that_does_not_exist_is_refused(option: str, value: str) -> None:
    assert needs_nodes({option: value}, 1)
    with pytest.raises(UsageError) as refused:
        refuse_too_large({option: value}, 1, 0, NODES)
    error = refused.value
    assert (error.what, error.why) == ("There is no node `n9`", "the nodes are: n[1-4]") and option in error.hint


def test_names_in_a_file_and_nodes_that_the_site_hides_are_left_to_sbatch() -> None:
    refuse_too_large({"exclude": "/home/ada/bad nodes"}, 1, 0, NODES)
    refuse_too_large({"exclude": "n9"}, 64, 0, ())


PARTITIONS = {"main": ("n1", "n2", "n3", "n4", "c1", "c2"), "cloud": ("c1", "c2"), "empty": ()}


def test_nodes_that_slurm_does_not_show_count_and_fit() -> None:
    """Powered-down cloud nodes, for example: their partitions name them."""
    known = with_hidden(NODES, PARTITIONS)
    assert [node.name for node in known] == ["n1", "n2", "n3", "n4", "c1", "c2"]
    refuse_too_large({"partition": "main", "mem": "500G", "nodelist": "c2"}, 2, 0, known)
    refuse_too_large({"partition": "cloud"}, 2, 0, known)
    with pytest.raises(UsageError, match="it has 6"):
        refuse_too_large({"partition": "main"}, 7, 0, known)
    assert with_hidden(NODES, {}) == NODES and with_hidden((), {"main": ()}) == ()

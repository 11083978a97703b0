"""Steps of one task per node in a job that requests GPUs per task."""

from __future__ import annotations

import pytest

from transom_cli.slurm.gpus import all_of_them, by_node, unwatched


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "8(x2)"}, (8, 8)),
        ({"SLURM_GPUS_PER_TASK": "a100:2", "SLURM_TASKS_PER_NODE": "4,3"}, (8, 6)),
        ({"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu:a100=1", "SLURM_TASKS_PER_NODE": "2"}, (2,)),
        ({"SLURM_TASKS_PER_NODE": "8(x2)"}, ()),
        ({"SLURM_TRES_PER_TASK": "cpu=4", "SLURM_TASKS_PER_NODE": "8"}, ()),
        ({}, ()),
    ],
)
def test_number_of_gpus_follows_from_those_of_a_task(variables: dict[str, str], gpus: tuple[int, ...]) -> None:
    assert by_node(variables) == gpus


def test_step_asks_for_what_every_node_has_and_the_rest_is_said() -> None:
    even, uneven = ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": n} for n in ("4(x2)", "4,3"))
    assert (all_of_them(even), unwatched(even)) == (["--gres=gpu:4"], "")
    assert all_of_them(uneven) == ["--gres=gpu:3"]
    assert unwatched(uneven).startswith("1 of the job's 7 GPUs are not watched")
    assert (all_of_them({}), unwatched({})) == ([], "")

"""A training that is split into several worlds is an error at its first heartbeat, with real wrapped processes."""

from __future__ import annotations

import pytest
from rank_place import Place

BEAT = "from transom_cli import beat; beat(1); print('went on')"
# What torch.distributed looks like to a process that has loaded it.
GROUP = """
import sys, types
dist = types.ModuleType("torch.distributed")
dist.is_available, dist.is_initialized, dist.get_world_size = lambda: True, lambda: {made}, lambda: {size}
sys.modules["torch.distributed"] = dist
"""
AUTOMATIC = "from transom_cli.heartbeat import client; client.automatic_beat(2); print('went on')"


def ended(place: Place, code: str, *flags: str, **env: str) -> tuple[int, str, str]:
    rank = place.python(code, flags=flags, **env)
    out, err = rank.communicate()
    return rank.returncode, out, err


@pytest.mark.parametrize("beat", [BEAT, AUTOMATIC])
def test_process_group_smaller_than_the_launch_is_an_error_at_the_first_beat(place: Place, beat: str) -> None:
    code, out, err = ended(place, GROUP.format(made=True, size=1) + beat)
    assert (code, out) == (17, "")
    for words in ("world size 1", "5 ranks", "torch.distributed", "MASTER_ADDR", "TRANSOM_WORLD_SIZE"):
        assert words in err, err
    assert place.exit()["code"] == 17


def test_world_size_that_the_trainer_changed_is_an_error_at_the_first_beat(place: Place) -> None:
    code, _, err = ended(place, "import os; os.environ['WORLD_SIZE'] = '1'\n" + BEAT)
    assert code == 17 and "WORLD_SIZE=1" in err, err


def test_process_group_of_the_launched_size_is_taken(place: Place) -> None:
    assert ended(place, GROUP.format(made=True, size=5) + BEAT) == (0, "went on\n", "")


def test_trainer_without_a_process_group_claims_nothing(place: Place) -> None:
    assert ended(place, BEAT) == (0, "went on\n", "")
    assert ended(place, GROUP.format(made=False, size=1) + BEAT) == (0, "went on\n", "")
    assert ended(place, "import os; del os.environ['WORLD_SIZE']\n" + BEAT) == (0, "went on\n", "")


def test_trainer_that_means_several_worlds_says_so(place: Place) -> None:
    several = "import os; os.environ.pop('TRANSOM_WORLD_SIZE')\n"
    assert ended(place, GROUP.format(made=True, size=1) + several + BEAT) == (0, "went on\n", "")


def test_launcher_inside_the_task_may_make_more_ranks_but_not_split_them(place: Place) -> None:
    """As torchrun tells its ranks: five of them with eight ranks each, or each alone with its eight."""
    inside = "import os; os.environ.update(TORCHELASTIC_RUN_ID='x', WORLD_SIZE='40', GROUP_WORLD_SIZE='5')\n"
    assert ended(place, inside + GROUP.format(made=True, size=40) + BEAT) == (0, "went on\n", "")
    alone = "import os; os.environ.update(TORCHELASTIC_RUN_ID='x', WORLD_SIZE='8', GROUP_WORLD_SIZE='1')\n"
    code, _, err = ended(place, alone + GROUP.format(made=True, size=8) + BEAT)
    assert code == 17 and "1 of 5 tasks" in err, err


def test_under_torchrun_nothing_is_compared(place: Place) -> None:
    code, out, _ = ended(place, GROUP.format(made=True, size=1) + BEAT, "--torchrun", RANK="0", TRANSOM_WORLD_SIZE="9")
    assert (code, out) == (0, "went on\n")

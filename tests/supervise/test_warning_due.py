"""When a launcher warns itself of the time limit: only where Slurm's own warning may have come before it listened."""

from __future__ import annotations

import pytest

from transom_cli.supervise.launcher.allocation import warning_due


@pytest.mark.parametrize(
    ("environ", "before", "now", "seconds"),
    [
        ({"SLURM_JOB_END_TIME": "1000"}, 120, 900.0, 0.0),  # 100 s are left, the warning was due 20 s ago
        ({"SLURM_JOB_END_TIME": "1000"}, 120, 850.0, 30.0),  # Slurm may have warned early: should it not have, then
        ({"SLURM_JOB_END_TIME": "1000"}, 120, 819.0, None),  # it is still to come
        ({"SLURM_JOB_END_TIME": "1000"}, 120, 1001.0, None),  # a clock that is wrong
        ({"SLURM_JOB_END_TIME": "1000"}, 0, 999.0, None),
        ({"SLURM_JOB_END_TIME": "Unknown"}, 120, 900.0, None),
        ({}, 120, 900.0, None),
    ],
)
def test_the_warning_that_was_missed(environ: dict[str, str], before: int, now: float, seconds: float | None) -> None:
    assert warning_due(environ, before, now) == seconds


@pytest.mark.parametrize(("now", "seconds"), [(100.0, 780.0), (900.0, 0.0), (1001.0, None)])
def test_launcher_in_a_users_own_script_always_warns_itself(now: float, seconds: float | None) -> None:
    assert warning_due({"SLURM_JOB_END_TIME": "1000"}, 120, now, by_slurm=False) == seconds

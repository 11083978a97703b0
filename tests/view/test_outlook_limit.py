"""What status says about the time limit: ranks that cannot be asked save nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transom_cli.core.operator.state import Phase, State
from transom_cli.core.progress import Progress
from transom_cli.view.outlook import next_steps

SAVE, WARNED = "all ranks save, and the run continues", "the ranks get SIGUSR2; the next attempt continues from what"


@pytest.mark.parametrize(
    ("listens", "since_start", "then"),
    (
        (True, True, SAVE),
        (False, False, WARNED),  # its log shows the training's own step, and it has no callback
        (None, False, SAVE),
        (None, True, WARNED),
    ),
)
def test_time_limit_tells_whether_the_ranks_save(listens: bool | None, since_start: bool, then: str) -> None:
    state = replace(State(), phase=Phase.TRAINING, progress=Progress(step=5, since_start=since_start))
    (found,) = next_steps(state, 1000.0, warned=True, listens=listens)
    assert found.then.startswith(then)
    (found,) = next_steps(state, 1000.0, warned=False, listens=listens)
    assert found.then == "Slurm ends the attempt"

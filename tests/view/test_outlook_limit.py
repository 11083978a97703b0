"""What status says comes next: at the time limit, and while a restart waits for its first step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.state import Job, Phase, State
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


@pytest.mark.parametrize(
    ("durable", "memory", "back"),
    (
        (-1, -1, ""),
        (30, -1, ", from checkpoint 30"),
        (30, 30, ", from checkpoint 30"),
        (30, 34, ", from step 34 in node memory or checkpoint 30"),
        (-1, 34, ", from step 34 in node memory"),
    ),
)
def test_a_restart_names_the_steps_from_which_it_may_continue(durable: int, memory: int, back: str) -> None:
    job = Job(7, 0, "RUNNING")
    state = replace(State(), phase=Phase.RECOVERING, job=job, progress=Progress(durable=durable))
    state = replace(state, incident=Incident("i1", 7, 0, 5.0, 35, Stage.STARTING))
    (found,) = next_steps(state, None, warned=True, memory=memory)
    assert found.message == f"i1: waiting for the next step{back}"

"""What a launcher learns from earlier job steps of its attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transom_cli.core.codec import plain
from transom_cli.core.events import Decided, Taken
from transom_cli.errors import UsageError
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.launcher.job_steps import EarlierSteps, clear_agents, done_in, earlier_steps, lock

TAKEN = Taken(-10.0, Decided(rule="r", action="relaunch"), ("n2",))
STEP = {"type": "job_step", "wall": 100.0, "launch": 1, "job_step": "tokenize", "status": "done"}
RECORDS = [
    {"type": "attempt", "wall": 1.0, "launch": -1},
    {"type": "launch", "wall": 2.0, "launch": 0, "job_step": "tokenize"},
    {"type": "recovery", "wall": 3.0, "launch": 0, "incident": "l1", "what": "seen"},
    {"type": "launch", "wall": 4.0, "launch": 1, "job_step": "tokenize"},
    {**STEP, "given_up": ["n2"], "taken": plain((TAKEN,))},
]


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = RunDir(tmp_path).attempt(7, 0)
    found.nodes.mkdir(parents=True)
    return found


def test_numbers_continue_and_nodes_stay_given_up(attempt: AttemptDir) -> None:
    assert earlier_steps(attempt) == EarlierSteps()
    attempt.launcher_journal.write_text("".join(json.dumps(one) + "\n" for one in RECORDS) + '{"torn')
    found = earlier_steps(attempt)
    assert (found.steps, found.launches, found.incidents, found.given_up) == (("tokenize",), 2, 1, ("n2",))
    assert found.taken == (Taken(90.0, TAKEN.decided, ("n2",)),)
    assert done_in(RunDir(attempt.path.parent.parent), "tokenize") == "7.0"
    assert done_in(RunDir(attempt.path.parent.parent), "train") == ""


def test_step_that_failed_is_not_done(attempt: AttemptDir) -> None:
    attempt.launcher_journal.write_text(json.dumps({**STEP, "type": "outcome", "status": "failed"}) + "\n")
    assert earlier_steps(attempt).steps == ("tokenize",)
    assert done_in(RunDir(attempt.path.parent.parent), "tokenize") == ""


def test_endpoints_of_agents_that_have_ended_are_removed(attempt: AttemptDir) -> None:
    for name in ("n1.endpoint", "n1.beats", "n1.jsonl"):
        (attempt.nodes / name).write_text("x")
    attempt.outcome.write_text("{}")
    clear_agents(attempt)
    assert [path.name for path in attempt.nodes.iterdir()] == ["n1.jsonl"] and not attempt.outcome.exists()


def test_second_launcher_of_an_attempt_is_refused(attempt: AttemptDir) -> None:
    import os

    held = lock(attempt)
    with pytest.raises(UsageError, match="Another `transom launch`"):
        lock(attempt)
    os.close(held)
    os.close(lock(attempt))

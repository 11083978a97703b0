"""A node stops reporting while the training on it still steps."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.layout import AttemptDir

pytestmark = pytest.mark.sandbox


@contextmanager
def without_agent(attempt: AttemptDir, node: str) -> Iterator[None]:
    """Kill the node's agent, and each one that is started in its place before it can write a table."""
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            with suppress(OSError, ValueError, KeyError, ProcessLookupError):
                os.kill(int(json.loads(attempt.endpoint(node).read_text())["pid"]), signal.SIGKILL)
            over.wait(0.02)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.long
def test_a_training_that_steps_on_without_an_agent_is_left_alone(person: Person) -> None:
    """It pauses for 4 s now and then, as for an evaluation: less than the limit, more than half of it."""
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "140", "--pause", "4.0", "--pause-every", "30")
    view = person.wait(run, at_step(25))
    attempt = run.attempt(view["job_id"], 0)
    with without_agent(attempt, "node2"):
        view = person.wait(run, at_step(125))
        view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 140, 0, [])
    assert not (attempt.logs(1)).exists(), "no launch but the first"
    for incident in view["incidents"]:
        assert incident["result"] == "nothing", incident

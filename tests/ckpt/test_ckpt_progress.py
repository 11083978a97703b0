"""Long writes and restores of a training with two ranks are reported with their progress; so are the next saves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ckpt_memory_attempt import JOB, AttemptNodes, run_in
from ckpt_slow_holder import __file__ as SLOW

from transom_cli.ckpt.progress import LOADING, WRITING, Part
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.ckpt.snapshot.client import agents_path, reach
from transom_cli.core.operator.state import Job, Phase, State
from transom_cli.core.progress import Progress
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.view.model import build_view
from transom_cli.view.read import Memory, read_memory
from transom_cli.view.status import status_lines

NAMES = ["n0", "n1"]
STATE = State(phase=Phase.TRAINING, job=Job(id=JOB), progress=Progress(step=3))


class SlowNodes(AttemptNodes):
    """Holders whose disks are slow, and ranks that read slowly when they are told to (SLOW)."""

    def __init__(self, run: RunDir, attempt: AttemptDir) -> None:
        super().__init__(run, attempt, "none", NAMES)

    def __enter__(self) -> SlowNodes:
        for name in self.names:
            path = agents_path(self.beats(name))
            more = "--socket", path, "--attempt-dir", str(self.attempt.path), "--node", name
            self.daemons[name] = subprocess.Popen([sys.executable, SLOW, *more], start_new_session=True)
            self.agents[name] = reach(path, 60.0)
        return self


def seen(run: RunDir, claim: Callable[[Memory], object]) -> Memory:
    deadline = time.monotonic() + 90
    while True:
        found = read_memory(run, STATE, time.time())
        if claim(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def rank_operation(what: str) -> Callable[[Memory], object]:
    return lambda found: [part for part in found.parts if part.what == what and 0 < part.done < part.of]


def only(found: Memory) -> Part:
    (part,) = found.parts
    return part


def status(run: RunDir, found: Memory, later: float) -> str:
    """As it is told so many seconds after it began."""
    view = build_view(run.run_id, STATE, {}, only(found).began + later, operator=True)
    return "\n".join(status_lines(found.added_to(view)))


@pytest.mark.long
def test_running_write_and_restore_are_reported(tmp_path: Path) -> None:
    run, attempt = run_in(tmp_path)
    with SlowNodes(run, attempt) as nodes:
        nodes.start(steps=3, launch=0)
        nodes.until("settled")
        planned = seen(run, lambda found: found.coming is not None and found.coming.step == 4)
        assert planned.coming == NextSaves(4, every=1, persist=1000, durable=1000)
        assert planned.schedule == "every step; one of 1000 is made durable" and planned.parts == ()

        nodes.agents["n0"].call("look", directory=str(run.checkpoints), token=(run.checkpoints / ".memory").read_text())
        nodes.agents["n0"].call("persist", step=3, attempt="7.0.0", keep={"newest": 2})
        writing = seen(run, rank_operation(WRITING))
        assert (only(writing).step, only(writing).place) == (3, str(run.checkpoints)) and only(writing).of > 1 << 20
        assert "now         saving step 3 to disk: " in status(run, writing, 7.0)
        assert "KiB, 7.0 s so far" in status(run, writing, 7.0) and "saving" not in status(run, writing, 1.0)
        seen(run, lambda found: found.parts == ())
        assert (run.checkpoints / "step-00000003").exists() or list(run.checkpoints.glob("step-*3"))
        nodes.kill_ranks()

    with SlowNodes(run, attempt) as nodes:  # nothing is in memory any more
        nodes.start(steps=1, launch=1, SLOW="0.4")
        loading = seen(run, rank_operation(LOADING))  # and verified on the way
        assert (only(loading).step, only(loading).place) == (3, str(run.checkpoints))
        assert "now         restoring step 3 from disk: " in status(run, loading, 7.0)
        assert "KiB, 7.0 s so far" in status(run, loading, 7.0) and only(loading).of > 0
        assert only(loading).began <= time.time()
        nodes.until("restored 3")
        seen(run, lambda found: found.parts == ())
        nodes.until("settled")

"""The pure parts of the benches: where faults fall, what counts as done once, what Slurm alone is given."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from harness import BenchError, Training
from injury import random_step, read_start_up, summary
from operator_kill import _DRAINED, _REQUEUED, _SUBMITTED, Done
from plain import script_text

ONCE = Done(
    requeues=1, successors=0, drains=1, restarts=1, journal_restarts=1, journal_isolations=1, attempts=2
)  # fmt: skip
CONTROLLER_LOG = """\
[2026-01-01T00:00:00.284] _slurm_rpc_submit_batch_job: JobId=7 InitPrio=4294901759 usec=546
[2026-01-01T00:00:37.396] update_node: node node2 reason set to: transom: node_lost: node2 lost (run1)
[2026-01-01T00:00:37.396] update_node: node node2 state set to DRAINING
[2026-01-01T00:00:37.556] _slurm_rpc_update_job: complete JobId=7 uid=0 usec=580
[2026-01-01T00:00:38.262] Requeuing JobId=7
"""


def test_faults_fall_between_checkpoints_and_well_inside_the_run() -> None:
    training = Training(steps=80, every=10)
    steps = {random_step(random.Random(seed), training) for seed in range(500)}
    assert min(steps) > 20 and max(steps) < 60
    assert not any(step % 10 == 0 for step in steps)


def test_a_training_too_short_for_a_fault_is_refused() -> None:
    with pytest.raises(BenchError, match="too few"):
        random_step(random.Random(1), Training(steps=40, every=10))


def test_a_requeue_or_a_successor_is_once() -> None:
    assert ONCE.once(0.0)
    assert replace(ONCE, requeues=0, successors=1, restarts=0).once(0.0)


def test_after_an_absence_others_may_have_done_it() -> None:
    by_others = replace(ONCE, drains=0, journal_restarts=0, journal_isolations=0)
    assert by_others.once(300.0) and not by_others.once(0.0)
    assert not replace(by_others, requeues=2).once(300.0) and not replace(by_others, drains=2).once(300.0)


@pytest.mark.parametrize(
    "change",
    [
        {"requeues": 2},
        {"requeues": 0},
        {"successors": 1},
        {"drains": 2},
        {"drains": 0},
        {"restarts": 2},
        {"journal_restarts": 2},
        {"journal_isolations": 0},
        {"attempts": 3},
    ],
)
def test_anything_more_or_less_is_not_once(change: dict[str, int]) -> None:
    assert not replace(ONCE, **change).once(0.0)


def test_controller_log_lines_are_counted() -> None:
    assert _REQUEUED.findall(CONTROLLER_LOG) == _SUBMITTED.findall(CONTROLLER_LOG) == ["7"]
    assert _DRAINED.findall(CONTROLLER_LOG) == ["node2"]


def test_the_idiom_differs_from_the_example_by_its_last_lines_only() -> None:
    plain, idiom = script_text("requeue").splitlines(), script_text("idiom").splitlines()
    assert idiom[: len(plain) - 1] == plain[:-1]
    assert idiom[-2] == plain[-1].removeprefix("exec ") + " && exit 0"
    assert idiom[-1] == 'scontrol requeue "$SLURM_JOB_ID"'


def test_the_last_start_up_line_counts(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    line = "start-up: import {} s, join 0.10 s, build 0.20 s, restore 0.30 s\n"
    log.write_text(line.format("9.00") + "training\n" + line.format("3.50"))
    assert read_start_up([log]) == {"import": 3.5, "join": 0.1, "build": 0.2, "restore": 0.3}
    assert read_start_up([]) == {}


def test_summary() -> None:
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert summary([]) == {}

"""The training's own step and loss, from the trainer's log, in the node's heartbeat table and step breakdown."""

from __future__ import annotations

import os
from pathlib import Path

from transom_cli.heartbeat import record
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent.logs import NodeLogs
from transom_cli.supervise.agent.trainer_progress import TrainerProgress


def row(rank: int, step: int, *, launch: int = 0, since_start: bool = True) -> RankBeat:
    return RankBeat(rank, launch, step, step, 0.0, None, "step", 1, "R", since_start)


def counted(folder: Path, rank: int, step: int, launch: int = 0, *, since_start: bool = True) -> RankBeat:
    """Write a rank's record, and return its row."""
    found = record.Record(rank, launch, 0)
    found.step, found.count, found.since_start = step, step, since_start
    os.close(record.create(str(folder / f"rank-{rank}"), found))
    return row(rank, step, launch=launch, since_start=since_start)


def logged(folder: Path, launch: int, text: str) -> None:
    logs = AttemptDir(folder).logs(launch)
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "rank-0.log").open("a") as log:
        log.write(text)


def test_rows_show_the_step_and_loss_of_the_trainers_log(tmp_path: Path) -> None:
    progress = TrainerProgress()
    logs = NodeLogs(AttemptDir(tmp_path), str(tmp_path), progress)
    rows = (counted(tmp_path, 0, 10), counted(tmp_path, 1, 9))
    assert progress.apply(rows) == rows
    logged(tmp_path, 0, "iter 220: loss 3.2, time 1ms\n")
    logs.look(rows)
    shown = progress.apply((row(0, 11), row(1, 12)))
    assert [(one.step, one.since_start, one.loss) for one in shown] == [(221, False, 3.2), (222, False, 3.2)]
    assert progress.of(0).values == {"loss": 3.2}
    logs.close()


def test_steps_that_the_trainer_reports_itself_are_left_alone(tmp_path: Path) -> None:
    progress = TrainerProgress()
    logs = NodeLogs(AttemptDir(tmp_path), str(tmp_path), progress)
    rows = (counted(tmp_path, 0, 10, since_start=False),)
    logged(tmp_path, 0, "iter 220: loss 3.2, time 1ms\n")
    logs.look(rows)
    assert [(one.step, one.loss) for one in progress.apply(rows)] == [(10, 3.2)]
    logs.close()


def test_next_launch_learns_its_step_again(tmp_path: Path) -> None:
    progress = TrainerProgress()
    logs = NodeLogs(AttemptDir(tmp_path), str(tmp_path), progress)
    logged(tmp_path, 0, "iter 220: loss 3.2, time 1ms\n")
    logs.look((counted(tmp_path, 0, 10),))
    logged(tmp_path, 1, "starting\n")
    rows = (counted(tmp_path, 0, 3, 1),)
    logs.look(rows)
    assert progress.apply(rows) == rows
    logged(tmp_path, 1, "iter 205: loss 3.0, time 1ms\n")
    logs.look(rows)
    assert [one.step for one in progress.apply(rows)] == [205]
    logs.close()

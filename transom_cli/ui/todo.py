"""What a person can do about a run as it stands: the very command, or where to look. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path

from transom_cli.errors import NoCheckpoint
from transom_cli.layout import RunDir
from transom_cli.slurm.byhand import by_hand, let_go_on
from transom_cli.ui.view import RunView


def todo(view: RunView) -> list[tuple[str, str]]:
    """A word on what it is for, and the command. The run id needs no quotes; paths may."""
    run, word, job = view.run_id, view.word, view.job_id
    story, stop = ("the story", f"transom explain {run}"), ("give up", f"transom stop {run}")
    attach = [("take it up", f"transom attach {run}")] if not view.operator and not view.over else []
    if view.operator_comes:  # another one would only be told of it
        attach = [("look", by_hand(f"squeue --start -j {view.operator_job}", view.cluster))]
    if word == "held" and job:
        kept_away = tuple(node for node, *_ in view.excluded)
        return [story, *let_go_on(job, view.slurm_reason, kept_away, view.cluster).items(), stop]
    if word == "unknown":
        return [*attach, ("ask Slurm", by_hand(f"scontrol show job {job}", view.cluster))] if job else attach
    if word == "pending":
        return [*attach, *_waits(view), stop]
    if word == "submitting" and view.operator_comes:
        return [*attach, stop]
    if word == "submitting" and view.path:
        return [*attach, ("its log", f"tail {shlex.quote(str(RunDir(Path(view.path)).operator_log))}")]
    if word == "starting" and view.path:
        return [*attach, ("its output", f"tail -f {_job_log(view)}")]
    if word == "recovering":
        return [*attach, story, *_waits(view)]
    if word in ("failed", "stopped"):
        on = go_on(view)
        further = [("go on", on)] if on else []
        further += [("its output", f"less {_job_log(view)}")] if job and word == "failed" and view.path else []
        if view.exit_code == NoCheckpoint.exit_code:
            further = [("look", f"transom ckpt verify {run}")]
        return [story, *further] if view.incidents else further
    if word == "done" and view.durable >= 0:
        return [("the result", f"transom ckpt ls {run}")]
    return attach


def _waits(view: RunView) -> list[tuple[str, str]]:
    """For a job in the queue: what Slurm expects, and what would let it start sooner."""
    if not view.job_id or view.slurm_state != "PENDING":
        return []
    look = [("look", by_hand(f"squeue --start -j {view.job_id}", view.cluster))]
    if view.switches and view.slurm_reason == "Resources":  # Slurm 22.05 takes switches=0, and goes on waiting
        return [*look, ("any switch", by_hand(f"scontrol update jobid={view.job_id} switches=999", view.cluster))]
    return look


def _job_log(view: RunView) -> str:
    """The batch script's output, as the run directory has it."""
    return shlex.quote(str(RunDir(Path(view.path)).job_log(view.job_id)))


def go_on(view: RunView) -> str:
    """The command that goes on from the newest checkpoint of a run that is over; "" where there is none to go on from.

    Such a run is not taken up again, and a new one begins at step 0 unless it is told of the checkpoints.
    """
    if view.durable < 0 or not view.checkpoints or view.exit_code == NoCheckpoint.exit_code:
        return ""
    return f"transom run --set checkpoint.directory={shlex.quote(view.checkpoints)} ..."

"""What a person can do about a run as it stands: the very command, or where to look. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path

from transom_cli.errors import NoCheckpoint
from transom_cli.layout import RunDir
from transom_cli.ui.view import RunView


def todo(view: RunView) -> list[tuple[str, str]]:
    """A word on what it is for, and the command. The run id needs no quotes; paths may."""
    run, word, job = view.run_id, view.word, view.job_id
    there = f" -M {shlex.quote(view.cluster)}" if view.cluster else ""  # the same number may be another job here
    story, stop = ("the story", f"transom explain {run}"), ("give up", f"transom stop {run}")
    attach = [("take it up", f"transom attach {run}")] if not view.operator and not view.over else []
    if view.operator_comes:  # another one would only be told of it
        attach = [("look", f"squeue{there} --start -j {view.operator_job}")]
    if word == "held" and view.slurm_reason.startswith("BadConstraints") and view.excluded:
        return [story, ("go on", f"transom nodes --lift {','.join(node for node, *_ in view.excluded)}"), stop]
    if word == "held" and job:
        return [story, ("go on", release_line(job, view.slurm_reason, there)), stop]
    if word == "unknown":
        return [*attach, ("ask Slurm", f"scontrol{there} show job {job}")] if job else attach
    if word == "pending":
        return [*attach, ("look", f"squeue{there} --start -j {job}"), stop] if job else [*attach, stop]
    if word == "submitting" and view.operator_comes:
        return [*attach, stop]
    if word == "submitting" and view.path:
        return [*attach, ("its log", f"tail {shlex.quote(str(RunDir(Path(view.path)).operator_log))}")]
    if word == "starting" and view.path:
        return [*attach, ("its output", f"tail -f {_job_log(view)}")]
    if word == "recovering":
        return [*attach, story]
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


def release_line(job: int, reason: str, there: str = "") -> str:
    """The command that lets a held job go. An administrator's hold is theirs to end: it refuses to everybody else."""
    return f"scontrol{there} release {job}" + ("   # by an administrator" if reason == "JobHeldAdmin" else "")


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

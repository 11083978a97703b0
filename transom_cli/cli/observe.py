"""`transom observe`: watch a job without acting on it, and compare with what people did."""

import getpass
import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.common import bounded
from transom_cli.cli.options import Json, Root, Set, SettingsFile
from transom_cli.cli.run import assignment, operate_or_watch
from transom_cli.cli.units import duration
from transom_cli.errors import UsageError


def observe(
    job_id: Annotated[int | None, typer.Argument(metavar="JOBID", help="A pending or running job of yours.")] = None,
    log: Annotated[Path | None, typer.Option(help="The job's log [default: its output in Slurm].")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run [default: the job's name].")] = None,
    file: SettingsFile = None,
    cluster: Annotated[str | None, typer.Option("--clusters", "-M", help="Cluster that has the job.")] = None,
    root: Root = None,
    set_: Set = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the operator in the background, and return.")] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Run the operator in this process.")] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Compare what transom would have done with what people did.")
    ] = False,
    since: Annotated[str, typer.Option(help="With --summary: how far to look back, such as 30d.")] = "30d",
    json_: Json = False,
) -> None:
    """Watch a job that transom did not submit.

    Reports what transom would do, and does nothing.

    With --summary, compares what transom would have done in all observed runs with what people did.
    """
    if summary == (job_id is not None):
        raise UsageError("give either a job ID or `--summary`", hint="`squeue --me` lists your jobs")
    if summary:
        _summary(root, since, json_=json_)
        return
    assert job_id is not None
    if detach and foreground:
        raise UsageError("`--detach` and `--foreground` cannot be combined", hint="omit one of them")

    from transom_cli.bootstrap.slurm import require_slurm, slurm_client
    from transom_cli.config.load import load
    from transom_cli.config.model import OBSERVE
    from transom_cli.submit.job_run import observe_job, require_observable
    from transom_cli.submit.prepare import leave_outer_run

    leave_outer_run()
    flags = {"root": str(root) if root else None, "job.cluster": cluster, "run.mode": OBSERVE}
    flags |= dict(assignment(text) for text in set_ or ())
    settings = load(file, flags, os.environ)
    if settings.run.mode != OBSERVE:
        raise UsageError(
            "`transom observe` only observes",
            "--set run.mode=act was given",
            "omit it; `transom run` submits a run that acts",
        )
    found = require_slurm(settings)
    job = slurm_client(settings.slurm.timeout, settings.job.cluster or "").job(job_id)
    require_observable(job, getpass.getuser())
    settings = settings.model_copy(update={"name": name or job.name or settings.name})
    made = observe_job(job, settings, found, log)
    print(f"run {made.run_id}", file=typer.get_text_stream("stderr"))
    raise typer.Exit(operate_or_watch(made, detach=detach, foreground=foreground, new=True))


def _summary(root: Path | None, since: str, *, json_: bool) -> None:

    from transom_cli.bootstrap.slurm import run_slurm
    from transom_cli.view.observed import read_summary, summary_document, summary_lines

    now = time.time()
    where, begin = bounded(root), now - duration(since, "--since")
    found = read_summary(where, begin, now, lambda run: run_slurm(run, 10.0))
    print(json.dumps(summary_document(found)) if json_ else "\n".join(summary_lines(found)))

"""`transom resume`: continue a run that has ended, or release one that is held."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.common import bounded, require_own_run, run_to_act_on
from transom_cli.cli.options import Json, Root, Run
from transom_cli.cli.requests import ask_operator, confirm, named_run, require_stopped
from transom_cli.cli.run import nodes_range, operate_or_watch
from transom_cli.errors import (
    NoCheckpoint,
    NoSuchRun,
    SlurmUnreachable,
    StateDiffers,
    TransomError,
    Unknown,
    UsageError,
    printable,
)
from transom_cli.layout import RunDir
from transom_cli.plural import some
from transom_cli.slurm.port import NoSuchJob, cluster_command
from transom_cli.view.text import span

if TYPE_CHECKING:
    from transom_cli.core.operator.state import State

CONSIDERED = 50  # newest runs among which `resume` without a name looks


def resume(
    run: Run = None,
    root: Root = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", "-N", metavar="N|MIN-MAX", help="New number of nodes.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", "-t", help="New time limit of one attempt.")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="New Slurm partition.")] = None,
    exclude: Annotated[
        str | None, typer.Option("--exclude", "-x", help="Nodes to exclude, besides those of the script.")
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option("--from", metavar="STEP", help="Continue from this checkpoint, and set newer ones aside."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Even with another number of ranks, if no checkpoint could be restored, or after a loss that was NaN.",
        ),
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return when Slurm has accepted the job.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also if the shell differs.")] = False,
    json_: Json = False,
) -> None:
    """Continue a run that has ended, or is held.

    Without RUN, resumes the newest run that can be resumed, and asks first.
    A held job is released. A stopped, failed or given-up run continues as the same run, with the same command and
    settings, from its newest verified checkpoint, or from that of --from. Another number of nodes needs --force, unless
    the run may shrink to it. Exit code 1: there is nothing to resume, or the newest checkpoint is from after a NaN
    loss.
    """
    from transom_cli.supervise.journal import fold

    if run is None:
        run = _newest_resumable(root, yes=yes)
    found = named_run(run, root, "resume")
    changes = {"nodes": nodes, "time": time, "partition": partition, "exclude": exclude}
    given = {name: value for name, value in changes.items() if value is not None}
    state = fold(found.journal).state
    if state.phase.over:
        code = _continue(found, state, given, from_, force=force, detach=detach, json_=json_, yes=yes)
        raise typer.Exit(code)
    if given or from_ is not None:
        why = f"it is {state.phase.value}, and its job keeps its options"
        omit = ", ".join(f"`--{name}`" for name in (*given, *(["from"] if from_ is not None else [])))
        raise UsageError(f"Run `{found.run_id}` has not ended", why, f"omit {omit}")
    ask_operator("resume", run, root, json_)


def _continue(
    run: RunDir,
    state: State,
    changes: dict[str, str],
    back_to: int | None,
    *,
    force: bool,
    detach: bool,
    json_: bool,
    yes: bool,
) -> int:
    """Submit another job of a run that has ended, and watch it. Returns the exit code."""

    from transom_cli.bootstrap.slurm import require_own_cluster, run_slurm
    from transom_cli.supervise.operator.job import continue_run
    from transom_cli.supervise.requests import this_user
    from transom_cli.view.read import read_run_settings
    from transom_cli.view.terminal import waiting

    require_own_run(run)
    _require_resumable(run, state, force=force)
    rollback = _rollback_to(run, state, back_to) if back_to is not None else None
    if rollback is None:
        _require_good_checkpoint(run, state, force=force)
    try:
        with waiting("asking Slurm whether the run's last job has ended"):
            require_own_cluster(run)
            ended = not state.job.id or run_slurm(run).job(state.job.id).state.ended
    except NoSuchJob:
        ended = True
    except SlurmUnreachable:
        require_stopped(run, state)  # of a job that may still run, this is the more important message
        raise
    if not ended:
        scancel = cluster_command(f"scancel {state.job.id}", read_run_settings(run).cluster)
        raise Unknown(f"Job {state.job.id} of run `{run.run_id}` has not ended", "two jobs of a run must not train",
                      f"{scancel}, then repeat this command")  # fmt: skip
    _compare_shells(run, ask=not (yes or force or detach or json_))
    options = _change_options(run, state, changes, force=force)
    if rollback is not None:
        set_aside = rollback()
        if set_aside:
            print(f"set aside as step-<n>.undone-<k>: {some(set_aside, 3)}", file=sys.stderr)
    continue_run(run, this_user(), *options, -1 if back_to is None else back_to)
    start = state.progress.durable if back_to is None else back_to
    newest = f"from checkpoint {start:,}, or an older one if it does not verify" if start >= 0 else "from the beginning"
    print(f"run {run.run_id} continues {newest}", file=sys.stderr)
    if not json_:
        return operate_or_watch(run, detach=detach, foreground=False, new=True)
    with contextlib.redirect_stdout(sys.stderr):
        code = operate_or_watch(run, detach=True, foreground=False, new=True)
    if not code:
        print(json.dumps({"schema": 1, "run_id": run.run_id, "request": "resume", "result": "continues in a new job"}))
    return code


def _compare_shells(run: RunDir, *, ask: bool) -> None:
    """Warn if the next job would get other environment variables than the first one. ask: on a terminal, ask too."""
    from transom_cli.submit.submission import changed_variables

    changed = changed_variables(run, os.environ)
    if not changed:
        return
    print(
        f"warning: the job gets this shell's environment, which differs from the first job's: {some(changed, 8)}\n"
        "hint: set the variables as they were; for later runs, keep them in `job.env`",
        file=sys.stderr,
    )
    if ask and sys.stdin.isatty():
        confirm("resume", run.run_id, f"Resume {run.run_id} with this environment?")


def _require_resumable(run: RunDir, state: State, *, force: bool) -> None:
    from transom_cli.config.run_settings import read_run_file
    from transom_cli.core.operator.state import Phase

    what = f"Run `{run.run_id}` cannot be resumed"
    if state.policy.observe:
        raise TransomError(what, "it was only observed", "start its job without transom")
    if state.phase is Phase.DONE:
        raise TransomError(what, "its training is done", "raise the number of steps, and start a new run")
    if state.exit_code in (NoCheckpoint.exit_code, StateDiffers.exit_code) and not force:
        hint = f"see `transom ckpt verify {run.run_id}`; once that is solved, add `--force`"
        raise TransomError(what, state.verdict, hint)
    for path in run.needed:
        read_run_file(run, path)


def _rollback_to(run: RunDir, state: State, step: int) -> Callable[[], tuple[str, ...]]:
    """Return what sets the checkpoints after `step` aside, and returns their names.

    Raises:
        NoCheckpoint: there is none of this step. UsageError: one after it is not the run's own.
    """
    import time

    from transom_cli.ckpt.failures import BadManifest
    from transom_cli.ckpt.inventory import candidates, read_manifest
    from transom_cli.ckpt.restore.rollback import Rollback, roll_back
    from transom_cli.cli.ckpt_places import chosen
    from transom_cli.config.run_settings import checkpoints_of, read_settings
    from transom_cli.supervise.handoff_record import attempt_numbers

    directory = checkpoints_of(run, read_settings(run))
    chosen(directory, step)
    job, restarts = max((*attempt_numbers(run), (state.job.id, state.job.restarts)))
    back = Rollback(f"{job}.{restarts + 1}", step, why="`transom resume --from`", wall=time.time())
    for one in candidates(directory):
        with contextlib.suppress(BadManifest):
            if one.step > step and not back.undoes(one.step, read_manifest(one).attempt):
                why = f"{one.path} is newer, and was not written by this run"
                raise UsageError(f"Run `{run.run_id}` cannot continue from step {step}", why, "move it away")
    return lambda: roll_back(directory, back)


def _require_good_checkpoint(run: RunDir, state: State, *, force: bool) -> None:
    """Refuse to continue from a checkpoint that was saved after the loss became NaN, unless with `--force`."""
    from transom_cli.supervise.attempt_files import bad_loss_of, read_bad_resume
    from transom_cli.view.read import read_run_settings

    loss = bad_loss_of(run)
    bad = read_bad_resume(loss, read_run_settings(run).checkpoints)
    if loss is not None and bad is None and (state.progress.durable < 0 or state.progress.durable > loss.proven):
        print(f"warning: {loss.words}: let the trainer continue from a checkpoint from before that", file=sys.stderr)
    if bad is None or force:
        return
    resume = f"transom resume {run.run_id}"
    hint = f"{resume} --from {bad.instead}\nor, " if bad.instead >= 0 else ""
    hint += f"from checkpoint {bad.newest:,} nevertheless: {resume} --force"
    raise TransomError(f"Run `{run.run_id}` would continue from a bad state", bad.words, hint)


def _change_options(run: RunDir, state: State, changes: dict[str, str], *, force: bool) -> tuple[int, int]:
    """Keep the new options for this job and its successors: sbatch prefers them to the script's own.

    Returns:
        The new number of nodes with spares, and the fewest; (0, 0) if they stay.
    """

    from transom_cli.config.load import freeze
    from transom_cli.config.run_settings import read_run_file, read_settings
    from transom_cli.files import publish_text
    from transom_cli.submit.script import inspect_script
    from transom_cli.submit.submission import SubmissionRecord

    if not changes:
        return 0, 0
    record, settings = SubmissionRecord.load(run), read_settings(run)
    count, fewest = 0, 0
    update: dict[str, Any] = {name: value for name, value in changes.items() if name not in ("nodes", "exclude")}
    if "nodes" in changes:
        given = nodes_range(changes["nodes"])
        before, count = state.request.num_nodes - state.request.spares, given["job.nodes"]
        fewest = given.get("job.min_nodes", min(state.request.fewest, count))
        if count != before and not (state.request.fewest or before) <= count <= before and not force:
            why = f"with {count} nodes in place of {before}, it has another number of ranks"
            raise UsageError(
                "`--nodes` changes the training", why, "if its batch and its checkpoints allow that, `--force`"
            )
        update |= {"nodes": count, "min_nodes": fewest}
        count += state.request.spares
        changes = {**changes, "nodes": str(count)}
    if "exclude" in changes:
        script = inspect_script(read_run_file(run, run.script)).exclude
        changes = {**changes, "exclude": ",".join(x for x in (script, changes["exclude"]) if x)}
    kept = tuple(one for one in record.options if one.partition("=")[0][2:] not in changes)
    replace(record, options=(*kept, *(f"--{name}={value}" for name, value in changes.items() if value))).save(run)
    update = {name: value for name, value in update.items() if value != ""}
    publish_text(run.settings, freeze(settings.model_copy(update={"job": settings.job.model_copy(update=update)})))
    return count, fewest


def _newest_resumable(root: Any, *, yes: bool) -> str:
    """Return the ID of the user's newest run that has ended or is held, once the user agrees.

    Raises:
        NoSuchRun: there is none.
    """
    import time

    from transom_cli.core.operator.state import Phase
    from transom_cli.ownership import is_own
    from transom_cli.submit.rundir import list_runs
    from transom_cli.supervise.journal import fold

    where = bounded(root)
    newest = run_to_act_on(where, None)
    for one in [one for one in list_runs(where) if is_own(one)][:CONSIDERED]:
        state = fold(one.journal).state
        ended = state.phase in (Phase.FAILED, Phase.STOPPED) and not state.policy.observe
        if not ended and state.phase is not Phase.HELD:
            continue
        why = f": {state.verdict}" if state.verdict else ""
        about = printable(f"run {one.run_id}, {state.phase.value} {span(time.time() - state.since)} ago{why}")
        if yes:
            print(f"resuming {about}", file=sys.stderr)
        else:
            confirm("resume", one.run_id, f"Resume {about}?")
        return one.run_id
    phase = fold(newest.journal).state.phase.value
    hint = f"transom status {newest.run_id}"
    raise NoSuchRun(f"No run in {where} can be resumed", f"the newest, {newest.run_id}, is {phase}", hint)

"""`transom stop`, `requeue` and `resume`: requests to a run's operator, by its owner or by a user on call."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.common import active_of_name, bounded, require_own_run, run_to_act_on, run_to_request
from transom_cli.cli.options import Json, Root, Run
from transom_cli.cli.run import cancel_pending_operator, nodes_range, operate_or_watch
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
from transom_cli.plural import several
from transom_cli.slurm.port import NoSuchJob, cluster_command
from transom_cli.view.text import span

if TYPE_CHECKING:
    from transom_cli.core.operator.state import State, UserRequest

STOP_PATIENCE = 60.0  # seconds; Slurm gives a job 30 s between TERM and KILL, in which it may save
CONSIDERED = 50  # newest runs among which `resume` without a name looks
_YES, _NO = ("y", "yes"), ("", "n", "no")
_BY_HAND = {"stop": "scancel", "requeue": "scontrol requeue", "resume": "scontrol release"}
PATIENCE = 15.0  # seconds until the operator has recorded a request


def stop(
    run: Run = None,
    root: Root = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask if no run is named.")] = False,
    json_: Json = False,
) -> None:
    """Cancel the run's job and end the run. Exit code 22: it has not ended within a minute.

    Asks first if no run is named. The job of a run that is only observed is left alone: the observation ends.
    """

    from transom_cli.ownership import is_own
    from transom_cli.supervise.journal import fold
    from transom_cli.view.terminal import waiting

    found = _found(run, root, "stop")
    state = fold(found.journal).state
    already = state.phase.over
    if already and run is None:
        _require_none_active(found.path.parent)
    if not already and (trouble := unsaved(found, state)):
        _warn(trouble)
    if not (already or run or yes):
        _confirm("stop", found.run_id, f"Stop run {found.run_id}?")
    if not already:
        with waiting(f"stopping {found.run_id}: ranks may save, Slurm gives them 30 s"):
            submit_request(found, "stop")
            state = _until_over(found)
        _require_stopped(found, state)
        if is_own(found):
            cancel_pending_operator(found)
    else:
        _require_stopped(found, state)
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "phase": state.phase.value, "was_over": already}))
    else:
        why = f" ({state.verdict})" if state.policy.observe and state.verdict else ""
        how = "has already ended: " if already else "is "
        saved = f", with checkpoint {state.progress.durable:,} on disk" if state.progress.durable >= 0 else ""
        print(printable(f"run {found.run_id} {how}{state.phase.value}{why}{saved}"), file=sys.stderr)
        if trouble := unsaved(found, state):
            _warn(trouble)


def unsaved(run: RunDir, state: State) -> str:
    """Return that saves fail, how many steps that costs, and what to do while the run lives; "" if they succeed."""
    from transom_cli.supervise.attempt_files import saves_fail
    from transom_cli.view.read import read_view

    fails = saves_fail(run, state)
    if fails is None or state.phase.value == "done":
        return ""
    view = read_view(run)
    steps = several(view.step - max(0, view.durable), "step") if view.step > view.durable else "the newest steps"
    since = f"{steps} since checkpoint {view.durable:,}" if view.durable >= 0 else steps
    if state.phase.over:
        return f"the final save failed: {fails.why}; {since} are lost"
    return f"saves fail: {fails.why}; a stop now loses {since}. First {fails.advice}"


def _warn(words: str) -> None:
    print(printable(f"warning: {words}"), file=sys.stderr)


def _require_none_active(root: Path) -> None:
    """Raise UsageError if the newest run has ended, and an older one has not: which was meant is not known."""
    from transom_cli.ownership import is_own
    from transom_cli.view.list_reader import Wanted, read_list

    runs = read_list(root, Wanted(), lambda message: None).views
    active = [one.run_id for one in runs if not one.over and is_own(RunDir(root / one.run_id))]
    if active:
        raise UsageError("`stop` needs the name of a run", f"these have not ended: {', '.join(active)}",
                         f"transom stop {active[0]}")  # fmt: skip


def requeue(
    run: Run = None,
    root: Root = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask if no run is named.")] = False,
    json_: Json = False,
) -> None:
    """Requeue the run's job, after a checkpoint. Exit code 1: refused.

    Asks first if no run is named.
    """
    if run is None and not yes:
        newest = _found(None, root, "requeue").run_id
        _confirm("requeue", newest, f"Requeue run {newest}?")
    _ask("requeue", run, root, json_)


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
    force: Annotated[
        bool, typer.Option("--force", help="Even with another number of ranks, or if no checkpoint could be restored.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return when Slurm has accepted the job.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask if no run is named.")] = False,
    json_: Json = False,
) -> None:
    """Continue a run that has ended, or is held.

    Without RUN, resumes the newest run that can be resumed, and asks first.
    A held job is released. A stopped, failed or given-up run continues as the same run, with the same command and
    settings, from its newest verified checkpoint. Another number of nodes needs --force, unless the run may shrink to
    it. Exit code 1: there is nothing to resume.
    """
    from transom_cli.supervise.journal import fold

    if run is None:
        run = _newest_resumable(root, yes=yes)
    found = _found(run, root, "resume")
    changes = {"nodes": nodes, "time": time, "partition": partition, "exclude": exclude}
    given = {name: value for name, value in changes.items() if value is not None}
    state = fold(found.journal).state
    if state.phase.over:
        code = _continue(found, state, given, force=force, detach=detach, json_=json_)
        raise typer.Exit(code)
    if given:
        why = f"it is {state.phase.value}, and its job keeps its options"
        omit = ", ".join(f"`--{name}`" for name in given)
        raise UsageError(f"Run `{found.run_id}` has not ended", why, f"omit {omit}")
    _ask("resume", run, root, json_)


def _continue(run: RunDir, state: State, changes: dict[str, str], *, force: bool, detach: bool, json_: bool) -> int:
    """Submit another job of a run that has ended, and watch it. Returns the exit code."""

    from transom_cli.bootstrap.slurm import require_own_cluster, run_slurm
    from transom_cli.supervise.operator.job import continue_run
    from transom_cli.supervise.requests import this_user
    from transom_cli.view.read import read_run_settings
    from transom_cli.view.terminal import waiting

    require_own_run(run)
    _require_resumable(run, state, force=force)
    try:
        with waiting("asking Slurm whether the run's last job has ended"):
            require_own_cluster(run)
            ended = not state.job.id or run_slurm(run).job(state.job.id).state.ended
    except NoSuchJob:
        ended = True
    except SlurmUnreachable:
        _require_stopped(run, state)  # of a job that may still run, this is the more important message
        raise
    if not ended:
        scancel = cluster_command(f"scancel {state.job.id}", read_run_settings(run).cluster)
        raise Unknown(f"Job {state.job.id} of run `{run.run_id}` has not ended", "two jobs of a run must not train",
                      f"{scancel}, then repeat this command")  # fmt: skip
    continue_run(run, this_user(), *_change_options(run, state, changes, force=force))
    newest = f"from checkpoint {state.progress.durable:,}" if state.progress.durable >= 0 else "from the beginning"
    print(f"run {run.run_id} continues {newest}", file=sys.stderr)
    if not json_:
        return operate_or_watch(run, detach=detach, foreground=False, new=True)
    with contextlib.redirect_stdout(sys.stderr):
        code = operate_or_watch(run, detach=True, foreground=False, new=True)
    if not code:
        print(json.dumps({"schema": 1, "run_id": run.run_id, "request": "resume", "result": "continues in a new job"}))
    return code


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
            _confirm("resume", one.run_id, f"Resume {about}?")
        return one.run_id
    phase = fold(newest.journal).state.phase.value
    hint = f"transom status {newest.run_id}"
    raise NoSuchRun(f"No run in {where} can be resumed", f"the newest, {newest.run_id}, is {phase}", hint)


def _confirm(verb: str, run_id: str, question: str) -> None:
    """Ask whether to act on a run that the user did not name."""
    if not sys.stdin.isatty():
        hint = f"transom {verb} {run_id}\nor: transom {verb} --yes"
        raise UsageError(f"`{verb}` needs the name of a run", "without a terminal it cannot ask", hint)
    while (answer := typer.prompt(f"{question} [y/N]", "", show_default=False, err=True).strip().lower()) not in _YES:
        if answer in _NO:
            raise typer.Abort
        print("error: type y or n", file=sys.stderr)


def _found(run: str | None, root: Any, verb: str) -> RunDir:
    """Find a run. Raises UsageError for a name of several runs that have not ended: which was meant is not known."""
    found = run_to_request(bounded(root, run), run)
    active = active_of_name(found.path.parent, run, 2)
    ended = verb == "resume" and found.run_id not in active  # then it is the one that can be resumed
    if active and active != [found.run_id] and not ended:
        why = f"not ended: {', '.join(active)}; the newest: {found.run_id}"
        hint = "\nor: ".join(f"transom {verb} {one}" for one in active[:3])
        raise UsageError(f"Several runs are called `{run}`", why, hint)
    return found


def _ask(kind: str, run: str | None, root: Any, json_: bool) -> None:

    from transom_cli.core.operator.state import Phase
    from transom_cli.supervise.journal import fold
    from transom_cli.view.read import read_run_settings
    from transom_cli.view.terminal import waiting

    found = _found(run, root, kind)
    state = fold(found.journal).state
    if state.phase.over:
        _require_stopped(found, state)
        done = "the training is done; `transom run` starts a new one"
        hint = done if state.phase is Phase.DONE else f"`transom resume {_named(found)}` continues it"
        raise TransomError(f"Run `{found.run_id}` is over", f"its state is `{state.phase.value}`", hint)
    if state.policy.observe:
        command = cluster_command(f"{_BY_HAND[kind]} {state.job.id}", read_run_settings(found).cluster)
        why = f"transom changes nothing about its job {state.job.id}"
        raise TransomError(f"Run `{found.run_id}` is only observed", why, f"do it without transom: `{command}`")
    with waiting(f"asking the operator to {kind} {found.run_id}"):
        recorded = await_request(found, submit_request(found, kind))
    if recorded.result.startswith(("refused", "nothing")):
        hint = f"check with `transom status {_named(found)}`"
        raise TransomError(f"The request to {kind} run `{found.run_id}` had no effect", recorded.result, hint)
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "request": kind, "result": recorded.result}))
    else:
        print(printable(f"run {found.run_id}: {recorded.result}"), file=sys.stderr)
    error = fold(found.journal).state.slurm_error
    if error:
        error = " ".join(error.split())
        print(printable(f"warning: Slurm does not respond; the operator tries again: {error}"), file=sys.stderr)


def submit_request(found: RunDir, kind: str, **more: Any) -> str:
    """Give a request to the run's operator, and return its name. An own run gets an operator if it has none.

    Raises:
        TransomError: the operator does not take it.
    """
    from transom_cli.bootstrap.slurm import require_own_cluster
    from transom_cli.ownership import is_own
    from transom_cli.submit.rundir import path_error
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive
    from transom_cli.supervise.operator.background import start_operator
    from transom_cli.supervise.operator.request_socket import send_request
    from transom_cli.supervise.requests import this_user, write_request
    from transom_cli.view.read import read_run_settings

    if not is_own(found):
        return send_request(found, kind, **more)
    if operator_alive(found) is None:
        require_own_cluster(found)  # else a new operator could do nothing
    try:
        name = write_request(found, kind, this_user(), **more)
    except OSError as error:
        job = fold(found.journal).state.job.id
        verb = _BY_HAND.get(kind)
        command = cluster_command(f"{verb} {job}", read_run_settings(found).cluster)
        instead = f"do it without transom: `{command}`" if job and verb else "try again later"
        raise path_error(error, found.requests, doing="write a request to", instead=instead) from error
    if operator_alive(found) is None:
        start_operator(found)
    return name


def await_request(found: RunDir, name: str) -> UserRequest:
    """Return the request as the operator has recorded it. Raises Unknown if that takes too long."""
    import time

    from transom_cli.supervise.journal import fold

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        recorded = next((one for one in fold(found.journal).state.requests if one.name == name), None)
        if recorded is not None:
            return recorded
        time.sleep(0.2)
    hint = f"check with `transom status {_named(found)}`"
    raise Unknown("The operator has not recorded the request yet", f"waited {PATIENCE:g} s", hint)


def _named(run: RunDir) -> str:
    """Return what names the run on a command line: another user's is in another folder."""
    from transom_cli.ownership import is_own

    return run.run_id if is_own(run) else str(run.path)


def _require_stopped(run: RunDir, state: State) -> None:
    from transom_cli.view.read import read_run_settings

    if not state.phase.over:
        why = f"Slurm does not respond: {state.slurm_error}" if state.slurm_error else f"it is {state.phase.value}"
        if state.job.completing:
            why = "its ranks have ended; Slurm still cleans up the job's nodes (COMPLETING)"
        hint = f"The operator continues to stop it; check with `transom status {_named(run)}`."
        raise Unknown(f"Run `{run.run_id}` has not stopped yet", why, hint)
    if state.exit_code == Unknown.exit_code:
        scancel = cluster_command(f"scancel {state.job.id}", read_run_settings(run).cluster)
        raise Unknown(f"Job {state.job.id} may still be running", state.verdict, f"{scancel}, then repeat this command")


def _until_over(run: RunDir) -> State:
    import time

    from transom_cli.supervise.journal import fold

    deadline = time.monotonic() + STOP_PATIENCE
    while not (state := fold(run.journal).state).phase.over and time.monotonic() < deadline:
        time.sleep(0.2)
    return state

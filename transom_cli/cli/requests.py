"""`transom stop` and `requeue`: requests to a run's operator, by its owner or by a user on call."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.common import active_of_name, bounded, run_to_request
from transom_cli.cli.options import Json, Root, Run
from transom_cli.cli.run import cancel_pending_operator, submits_here
from transom_cli.errors import TransomError, Unknown, UsageError, printable
from transom_cli.layout import RunDir
from transom_cli.plural import several
from transom_cli.slurm.port import cluster_command

if TYPE_CHECKING:
    from transom_cli.core.operator.state import State, UserRequest

STOP_PATIENCE = 60.0  # seconds; Slurm gives a job 30 s between TERM and KILL, in which it may save
_YES, _NO = ("y", "yes"), ("", "n", "no")
_BY_HAND = {"stop": "scancel", "requeue": "scontrol requeue", "resume": "scontrol release"}
PATIENCE = 15.0  # seconds until the operator has recorded a request


def stop(
    run: Run = None,
    root: Root = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Cancel the run's job and end the run. Exit code 22: it has not ended within a minute.

    Asks first if no run is named. The job of a run that is only observed is left alone: the observation ends.
    """

    from transom_cli.ownership import is_own
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.operator.job import stop_unsubmitted
    from transom_cli.supervise.requests import this_user
    from transom_cli.view.outlook import how_to_continue
    from transom_cli.view.read import read_view
    from transom_cli.view.terminal import waiting

    found = named_run(run, root, "stop")
    state = fold(found.journal).state
    already = state.phase.over
    if already and run is None:
        _require_none_active(found.path.parent)
    if not already and (trouble := unsaved(found, state)):
        _warn(trouble)
    loses = bool(not already and trouble and sys.stdin.isatty())  # then a named run asks too
    if not (already or (run and not loses) or yes):
        confirm("stop", found.run_id, f"Stop run {found.run_id}?")
    if not already:
        with waiting(f"stopping {found.run_id}: ranks may save, Slurm gives them 30 s", in_pipe=True):
            if not (is_own(found) and stop_unsubmitted(found, this_user())):
                submit_request(found, "stop")
            state = _until_over(found)
        require_stopped(found, state)
        if is_own(found):
            cancel_pending_operator(found)
    else:
        require_stopped(found, state)
    if json_:
        print(json.dumps({"schema": 1, "run_id": found.run_id, "phase": state.phase.value, "was_over": already}))
    else:
        why = f" ({state.verdict})" if (state.policy.observe or not state.job.id) and state.verdict else ""
        how = "has already ended: " if already else "is "
        saved = f", with checkpoint {state.progress.durable:,} on disk" if state.progress.durable >= 0 else ""
        print(printable(f"run {found.run_id} {how}{state.phase.value}{why}{saved}"), file=sys.stderr)
        if trouble := unsaved(found, state):
            _warn(trouble)
        view = read_view(found)
        if view.bad_resume is not None:
            note = "; ".join(filter(None, (view.bad_resume.words, how_to_continue(view))))
            print(printable(f"note: {note}"), file=sys.stderr)


def end_unsubmitted(made: RunDir) -> bool:
    """End a new run whose `transom run` was interrupted before its job was submitted.

    Returns False, and changes nothing, if its job exists, or if its operator's job will submit it.
    """
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.operator.job import stop_unsubmitted
    from transom_cli.supervise.requests import this_user
    from transom_cli.view.terminal import waiting

    if made.operator_job.exists():
        return False
    state = fold(made.journal).state
    if not stop_unsubmitted(made, this_user()):
        if state.job.id or state.phase.over or not submits_here(made):
            return False
        with waiting(f"stopping {made.run_id} before its job is submitted"):
            submit_request(made, "stop")
            state = _until_over(made)
        if not state.phase.over:
            print(f"\ninterrupted; the operator continues to stop the run: see `transom status {made.run_id}`",
                  file=sys.stderr)  # fmt: skip
            return True
    job = fold(made.journal).state.job.id
    what = f"interrupted while its job was submitted; job {job} is cancelled" if job else (
        "interrupted before its job was submitted"
    )  # fmt: skip
    print(f"\nrun {made.run_id} is stopped: {what}", file=sys.stderr)
    return True


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
        newest = named_run(None, root, "requeue").run_id
        confirm("requeue", newest, f"Requeue run {newest}?")
    ask_operator("requeue", run, root, json_)


def confirm(verb: str, run_id: str, question: str) -> None:
    """Ask whether to act on a run that the user did not name."""
    if not sys.stdin.isatty():
        hint = f"transom {verb} {run_id}\nor: transom {verb} --yes"
        raise UsageError(f"`{verb}` needs the name of a run", "without a terminal it cannot ask", hint)
    while (answer := typer.prompt(f"{question} [y/N]", "", show_default=False, err=True).strip().lower()) not in _YES:
        if answer in _NO:
            raise typer.Abort
        print("error: type y or n", file=sys.stderr)


def named_run(run: str | None, root: Any, verb: str) -> RunDir:
    """Find a run. Raises UsageError for a name of several runs that have not ended: which was meant is not known."""
    found = run_to_request(bounded(root, run), run)
    active = active_of_name(found.path.parent, run, 2)
    ended = verb == "resume" and found.run_id not in active  # then it is the one that can be resumed
    if active and active != [found.run_id] and not ended:
        why = f"not ended: {', '.join(active)}; the newest: {found.run_id}"
        hint = "\nor: ".join(f"transom {verb} {one}" for one in active[:3])
        raise UsageError(f"Several runs are called `{run}`", why, hint)
    return found


def ask_operator(kind: str, run: str | None, root: Any, json_: bool) -> None:

    from transom_cli.core.operator.state import Phase
    from transom_cli.supervise.journal import fold
    from transom_cli.view.read import read_run_settings
    from transom_cli.view.terminal import waiting

    found = named_run(run, root, kind)
    state = fold(found.journal).state
    if state.phase.over:
        require_stopped(found, state)
        done = "the training is done; `transom run` starts a new one"
        hint = done if state.phase is Phase.DONE else f"`transom resume {_named(found)}` continues it"
        if state.policy.observe:
            hint = "its job was only observed: act on it with Slurm's commands"
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
    from transom_cli.config.run_settings import read_run_file
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
        read_run_file(found, found.settings)
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


def require_stopped(run: RunDir, state: State) -> None:
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
    """Wait until the run is over, or for `STOP_PATIENCE`. If that waits for Slurm, print one line about it."""
    import time

    from transom_cli.supervise.journal import fold

    deadline, reported = time.monotonic() + STOP_PATIENCE, False
    while not (state := fold(run.journal).state).phase.over and time.monotonic() < deadline:
        if state.slurm_error and not reported:
            reported = True
            todo = f"to cancel job {state.job.id}" if state.job.id else "to say whether it has a job of this run"
            waits = f"Slurm does not respond; waiting up to {STOP_PATIENCE:g} s for it {todo}"
            print(printable(f"{waits}: {' '.join(state.slurm_error.split())}"), file=sys.stderr, flush=True)
        time.sleep(0.2)
    return state

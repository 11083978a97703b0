"""`transom run` and `transom attach`: submit and supervise a run, or continue where its journal ends."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime, timezone
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.common import active_of_name, leaving, run_to_act_on
from transom_cli.cli.options import AutoBeat, Plain, Root, Run, Set, SettingsFile
from transom_cli.errors import TransomError, UsageError, printable
from transom_cli.layout import RunDir
from transom_cli.plural import some
from transom_cli.slurm.port import Job, JobState, Slurm, SlurmDenied, SlurmRefused

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.core.operator.state import State
    from transom_cli.health.history.records import Isolation
    from transom_cli.submit.prepare import Prepared


_INTERRUPTED = 130
SUBMISSION_PATIENCE = 20.0  # seconds until `run --detach` returns without Slurm's answer


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="SCRIPT | -- COMMAND...", help="An sbatch script, or a command.")
    ],
    file: SettingsFile = None,
    name: Annotated[str | None, typer.Option(help="Name of the run [default: run, or the script's name].")] = None,
    root: Root = None,
    cluster: Annotated[
        str | None, typer.Option("--clusters", "-M", help="Cluster to submit to, where there are several.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Account to charge.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", "-q", help="Quality of service.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes", "-N", metavar="N|MIN-MAX", help="Nodes [default: 1]. With MIN, the run may shrink to it."
        ),
    ] = None,
    spares: Annotated[int | None, typer.Option(help="Additional nodes, as hot spares [default: 0].")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node.")] = None,
    tasks_per_node: Annotated[int | None, typer.Option(help="Ranks per node.")] = None,
    cpus_per_task: Annotated[int | None, typer.Option("--cpus-per-task", "-c", help="CPUs per task.")] = None,
    mem: Annotated[str | None, typer.Option(help="Memory per node.")] = None,
    time: Annotated[str | None, typer.Option("--time", "-t", help="Time limit of one attempt.")] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", "-x", help="Nodes to exclude.")] = None,
    torchrun: Annotated[bool, typer.Option("--torchrun", help="Start the ranks with one torchrun per node.")] = False,
    container_image: Annotated[str | None, typer.Option(help="Container image for the training step (pyxis).")] = None,
    apptainer: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Container image for the training step (Apptainer, Singularity)."),
    ] = None,
    auto_beat: AutoBeat = None,
    set_: Set = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-text", help="Write the operator's log as JSON lines, or as text.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option(metavar="login|job", help="Run the operator here, or as a Slurm job of its own.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Submit even if this host cannot find the command, or enough nodes.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script and the policy; submit nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit, start the operator in the background, and return.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run the operator in this process (tmux, systemd, cron).")
    ] = False,
    as_lines: Plain = False,
) -> None:
    """Submit a training run and keep it alive."""
    flags: dict[str, Any] = {
        "name": name,
        "root": str(root) if root else None,
        "auto_beat": auto_beat,
        "log_json": log_json,
        "job.cluster": cluster,
        "job.partition": partition,
        "job.account": account,
        "job.qos": qos,
        **nodes_range(nodes),
        "job.spares": spares,
        "job.gpus_per_node": gpus_per_node,
        "job.tasks_per_node": tasks_per_node,
        "job.cpus_per_task": cpus_per_task,
        "job.mem": mem,
        "job.time": time,
        "job.exclude": exclude,
        "launch.kind": "torchrun" if torchrun else None,
        "operator.where": operator,
        "launch.container.image": container_image or apptainer,
        "launch.container.runtime": "apptainer" if apptainer else "pyxis" if container_image else None,
    }
    if container_image and apptainer:
        raise UsageError("`--container-image` and `--apptainer` cannot be combined", hint="omit one of them")
    flags |= dict(assignment(text) for text in set_ or ())
    if detach and foreground:
        raise UsageError("`--detach` and `--foreground` cannot be combined", hint="omit one of them")
    from transom_cli.submit.prepare import create, leave_outer_job, leave_outer_launch, leave_outer_run, prepare

    leave_outer_run()
    leave_outer_job()
    leave_outer_launch(tuple(words))
    given = {k: v for k, v in flags.items() if v is not None}
    prepared = prepare(tuple(words), file, given, nodes_to_avoid, force=force or dry_run)
    if foreground and len(prepared.array) > 1:
        raise UsageError(
            "`--foreground` operates one run, and a job array is several",
            f"the array of `{words[0]}` has {len(prepared.array)} elements",
            "omit `--foreground`: each run gets an operator in the background",
        )
    if dry_run:
        _dry_run(prepared)
        return
    from transom_cli.bootstrap.notifications import require_notifications
    from transom_cli.bootstrap.slurm import require_backend, require_slurm
    from transom_cli.view.terminal import waiting

    require_notifications(prepared.settings)
    require_backend(prepared.settings.slurm)
    with waiting("contacting Slurm"):
        cluster = require_slurm(prepared.settings)  # fail before anything is created
        if not force:
            _require_nodes(prepared)
    array = len(prepared.array) > 1
    for one in prepared.each():
        made = create(one, cluster)
        code = operate_new(made, detach=detach or array, foreground=foreground, as_lines=as_lines)
        if code:
            break
    raise typer.Exit(code)


def attach(
    run: Run = None,
    root: Root = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start an operator if there is none, and return.")] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Run the operator in this process.")] = False,
    as_lines: Plain = False,
) -> None:
    """Watch a run. Start an operator if it has none."""
    from transom_cli.config.sources import runs_root

    where = runs_root(root, os.environ)
    unanswered = leaving(where, run)
    found = run_to_act_on(where, run)
    if not detach:
        unanswered.stop()
    raise typer.Exit(operate_or_watch(found, detach=detach, foreground=foreground, as_lines=as_lines))


def _require_nodes(prepared: Prepared) -> None:
    """Refuse a job for an unknown partition, or for more than the cluster's nodes have: it would wait forever."""
    from transom_cli.bootstrap.slurm import known_nodes, partitions
    from transom_cli.submit.capacity import needs_nodes, refuse_too_large

    settings, wanted = prepared.settings, max(prepared.num_nodes, 1)
    options = prepared.options()
    named, cluster = options.get("partition"), settings.job.cluster or ""
    if not named and not needs_nodes(options, wanted):
        return
    known = partitions(cluster)
    if named and known and not {one for one in map(str.strip, named.split(",")) if one} <= set(known):
        hint = "name one with `--partition`, or `--force`"
        raise UsageError(f"There is no partition `{named}`", f"the partitions are: {', '.join(known)}", hint)
    if needs_nodes(options, wanted):
        nodes = known_nodes(known, settings.slurm.timeout, cluster)  # if there are none, sbatch decides
        refuse_too_large(options, wanted, prepared.spares, nodes)


def operate_new(made: RunDir, *, detach: bool, foreground: bool, as_lines: bool = False) -> int:
    """Operate and watch a run that was just created. An interrupt before its job is submitted ends it."""
    from transom_cli.submit.rundir import run_name

    try:
        print(f"run {made.run_id}", file=sys.stderr)
        name = run_name(made)
        if others := [other for other in active_of_name(made.path.parent, name, 2) if other != made.run_id]:
            also = "another run of that name has" if len(others) == 1 else "other runs of that name have"
            print(f"note: {also} not ended: {some(others, 3)}; to stop one, give its ID", file=sys.stderr)
        return _operate_or_watch(made, detach=detach, foreground=foreground, new=True, as_lines=as_lines)
    except KeyboardInterrupt:
        from transom_cli.cli.requests import end_unsubmitted

        return _INTERRUPTED if end_unsubmitted(made) else _interrupted(made)


def operate_or_watch(made: RunDir, *, detach: bool, foreground: bool, new: bool = False, as_lines: bool = False) -> int:
    """Make sure that the run has an operator, then watch the run. Returns the exit code."""
    try:
        return _operate_or_watch(made, detach=detach, foreground=foreground, new=new, as_lines=as_lines)
    except KeyboardInterrupt:
        return _interrupted(made)


def _interrupted(made: RunDir) -> int:
    print(
        f"\ninterrupted before the view started; the run may continue. Check with `transom status {made.run_id}`, "
        f"continue with `transom attach {made.run_id}`, or end it with `transom stop {made.run_id}`.",
        file=sys.stderr,
    )
    return _INTERRUPTED


def _operate_or_watch(made: RunDir, *, detach: bool, foreground: bool, new: bool, as_lines: bool) -> int:
    from transom_cli.bootstrap.operator import operator_for
    from transom_cli.bootstrap.slurm import require_own_cluster
    from transom_cli.cli.show import query_slurm
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive
    from transom_cli.supervise.operator.background import operate_here
    from transom_cli.view.live import watch_run
    from transom_cli.view.terminal import waiting

    if not fold(made.journal).state.phase.over:
        if foreground:
            require_own_cluster(made)
            return operate_here(made, operator_for)
        with waiting("starting the operator"):
            if operator_alive(made) is None:
                require_own_cluster(made)
                _start_operator(made, new=new, detach=detach)
    if detach:
        if code := _await_submission(made) if new else 0:
            return code  # scripts read the ID of a run that exists in Slurm
        print(made.run_id)
        return 0
    code = watch_run(made, query_slurm, lambda: _next_operator_started(made), as_lines=as_lines)
    if code and new and (known := _known_partitions(fold(made.journal).state)):
        print(f"      {known}", file=sys.stderr)  # below the hint of the failure
    return code


def _known_partitions(state: State) -> str:
    """Return the partitions that exist, if Slurm refused the job because of its partition; else ""."""
    from transom_cli.bootstrap.slurm import partitions

    refused = state.phase.over and not state.job.id and "partition" in state.verdict.lower()
    known = ", ".join(partitions()) if refused else ""
    return f"the partitions are: {known}" if known else ""


def _await_submission(made: RunDir) -> int:
    """Wait until Slurm has accepted or refused the job. Returns 0, or the exit code of the refused run."""
    import time

    from transom_cli.supervise.journal import fold

    if not submits_here(made):
        return 0
    deadline = time.monotonic() + SUBMISSION_PATIENCE
    while time.monotonic() < deadline:
        state = fold(made.journal).state
        if state.phase.over and not state.job.id:
            hint = _known_partitions(state) or f"transom explain {made.run_id}"
            print(
                f"error: {TransomError(f'Run `{made.run_id}` was not submitted', state.verdict, hint)}", file=sys.stderr
            )
            return state.exit_code or 1
        if state.job.id:
            return 0
        time.sleep(0.05)
    print(f"note: Slurm has not answered yet; see `transom status {made.run_id}`", file=sys.stderr)
    return 0


def submits_here(made: RunDir) -> bool:
    """Whether the operator is a process on this host; as a job it submits when Slurm starts it."""
    from transom_cli.config.run_settings import read_settings

    return read_settings(made).operator.where == "login"


def assignment(text: str) -> tuple[str, str]:
    """Parse `--set KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"`--set {text}` is not KEY=VALUE", hint="for example `--set restart.backoff=10`")
    return key.strip(), value


def nodes_to_avoid(cluster: str) -> tuple[str, ...]:
    """Return the nodes with a proven fault from earlier runs that could not be drained, and print each.

    Args:
        cluster: as in `job.cluster`. Nodes that its Slurm does not know are left out: sbatch would reject the job.
    """
    import time

    from transom_cli.health.history.files import history_dir, read_history
    from transom_cli.health.history.nodes import fold, to_avoid
    from transom_cli.view.tables import avoided_line

    now = time.time()
    try:
        found = to_avoid(fold(read_history(history_dir(os.environ), now), now), now)
    except OSError as error:
        print(f"warning: cannot read the history of nodes: {error}", file=sys.stderr)
        return ()
    avoided = _on_this_cluster(found, cluster) if found else ()
    for isolation in avoided:
        print(avoided_line(isolation, now), file=sys.stderr)
    return tuple(isolation.node for isolation in avoided)


def _on_this_cluster(found: tuple[Isolation, ...], cluster: str) -> tuple[Isolation, ...]:
    """Keep the nodes of this cluster, or all of them if Slurm does not answer."""
    from transom_cli.bootstrap.slurm import cluster_name, slurm_client
    from transom_cli.slurm.successor import known_nodes

    try:
        name = cluster_name(cluster)
        here = tuple(one for one in found if not name or one.cluster in ("", name))
        known = {node.name for node in known_nodes(slurm_client(10.0, cluster), tuple(one.node for one in here))}
    except TransomError:
        return found
    return tuple({one.node: one for one in here if one.node in known}.values())


def _dry_run(prepared: Prepared) -> None:
    """Print the script to stdout; print the sbatch options, the operator's job and the policy to stderr."""

    from transom_cli.config.run_settings import rules_of
    from transom_cli.submit.render import operator_options
    from transom_cli.submit.rundir import plan_run
    from transom_cli.view.tables import policy_lines

    first, *more = prepared.each()
    planned = plan_run(first.settings.root, first.settings.name, datetime.now(timezone.utc))
    record, script = first.record(planned.path), first.script(planned.path)
    sys.stdout.write(script if script.endswith("\n") else script + "\n")
    cluster = (f"--clusters={record.requested_cluster}",) if record.requested_cluster else ()
    options = (*cluster, *record.options)
    if options:
        print(f"note: options on sbatch's command line: {' '.join(options)}", file=sys.stderr)
    operator = prepared.settings.operator
    if operator.where == "job":
        command = f"sbatch {join(operator_options(planned, operator))} {planned.operator_script.name}"
        print(f"note: the operator runs as a separate job: {command}", file=sys.stderr)
    if more:
        print(f"note: {1 + len(more)} runs, one for each element of the job array", file=sys.stderr)
    rules = rules_of(prepared.settings)
    if all(rule.source == "default" for rule in rules):
        print("note: the default policy applies; `transom policy` shows it", file=sys.stderr)
        return
    print("note: policy of this run; the first rule that matches decides (docs/policy.md)", file=sys.stderr)
    print("\n".join(f"  {line}" for line in policy_lines(rules)), file=sys.stderr)


def _start_operator(made: RunDir, *, new: bool, detach: bool) -> None:
    """Start the operator where the settings say: a process on this host, or a Slurm job.

    Returns when the operator runs, or with `detach`, when Slurm has accepted its job.

    new: the run was created by this command. Raises TransomError: there will be no operator; a new run is then over.
    """
    from transom_cli.bootstrap.slurm import run_slurm
    from transom_cli.config.run_settings import read_settings
    from transom_cli.supervise.operator.background import start_operator

    settings = read_settings(made)
    if settings.operator.where == "login":
        start_operator(made)
        return
    from transom_cli.supervise.operator.job import await_operator

    slurm = run_slurm(made, settings.slurm.timeout)
    job_id = _submit_operator(made, settings, slurm, new=new)
    if not detach:
        await_operator(made, job_id, slurm, _print_job)


def _next_operator_started(made: RunDir) -> bool:
    """Return whether another job replaces the operator's job that left; wait for it. Errors are printed."""
    from transom_cli.bootstrap.slurm import run_slurm
    from transom_cli.config.run_settings import read_settings
    from transom_cli.supervise.operator.job import await_next

    settings = read_settings(made)
    if settings.operator.where == "login":
        return False
    try:
        return await_next(made, run_slurm(made, settings.slurm.timeout), _print_job)
    except TransomError as error:
        print(f"warning: {error}", file=sys.stderr)
        return False


def _submit_operator(made: RunDir, settings: Settings, slurm: Slurm, *, new: bool) -> int:
    from transom_cli.supervise.operator.job import give_up_unsubmitted, submit_operator

    try:
        job = submit_operator(made, settings, slurm)
    except (SlurmRefused, SlurmDenied) as error:
        if new:
            give_up_unsubmitted(made, f"the operator's job: {error.what}: {' '.join(error.why.split())}")
        hint = "the settings operator.partition, operator.time and operator.sbatch define the operator's job"
        raise TransomError(f"The operator of run `{made.run_id}` cannot be submitted", error.why, hint) from error
    print(job.words, file=sys.stderr)
    return job.job_id


def _print_job(job: Job) -> None:
    from transom_cli.view.slurm_reasons import reason_message

    reason = f": {reason_message(job.reason)}" if job.state is JobState.PENDING and job.reason else ""
    print(printable(f"job {job.job_id} {job.state.value}{reason}"), file=sys.stderr)


def cancel_pending_operator(run: RunDir) -> None:
    """Cancel the operator's job of a finished run if it is still pending. Errors are printed."""
    from transom_cli.bootstrap.slurm import run_slurm
    from transom_cli.supervise.operator.job import cancel_waiting
    from transom_cli.view.read import operator_job

    if not operator_job(run):
        return
    try:
        for job_id in cancel_waiting(run, run_slurm(run)):
            print(f"its operator, job {job_id}, was still pending and is cancelled", file=sys.stderr)
    except TransomError as error:
        what = printable(error.what)
        print(f"warning: cannot check whether the operator's job is still pending: {what}", file=sys.stderr)


def nodes_range(given: str | None) -> dict[str, int]:
    """Read `4`, or `2-4` as srun does (also `2:4` as torchrun does): at most 4 nodes, and at least 2."""
    if given is None:
        return {}
    found = re.fullmatch(r"(\d+)(?:[-:](\d+))?", given.strip())
    low, high = (int(found[1]), int(found[2] or found[1])) if found is not None else (0, 0)
    if low > high >= 1:
        raise UsageError(
            f"`--nodes {given}` has the larger number first", hint=f"put the smaller number first: --nodes {high}-{low}"
        )
    if not 1 <= low <= high:
        raise UsageError(
            f"`--nodes {given}` is not a number of nodes",
            hint="--nodes 4; or --nodes 2-4: 4 nodes, and the run continues while at least 2 are left",
        )
    return {"job.nodes": high} | ({"job.min_nodes": low} if found is not None and found[2] else {})

"""`transom run` and `transom attach`: submit and supervise, or take up a run where its journal ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom_cli.cli.complete import run_ids
from transom_cli.errors import UsageError

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.layout import RunDir

_INTERRUPTED = 130
Root = Annotated[Path | None, typer.Option("--root", help="Where run directories live.")]


def run(
    words: Annotated[
        list[str], typer.Argument(metavar="SCRIPT | -- COMMAND...", help="An sbatch script, or a command.")
    ],
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Settings of this run (TOML).")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    root: Root = None,
    cluster: Annotated[str | None, typer.Option("--clusters", "-M", help="Cluster, of several.")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Account to charge.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", "-q", help="Quality of service.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", "-N", help="Number of nodes.")] = None,
    spares: Annotated[int | None, typer.Option(help="Further nodes, allocated as hot spares.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node.")] = None,
    tasks_per_node: Annotated[int | None, typer.Option(help="Ranks per node.")] = None,
    cpus_per_task: Annotated[int | None, typer.Option("--cpus-per-task", "-c", help="CPUs per task.")] = None,
    mem: Annotated[str | None, typer.Option(help="Memory per node.")] = None,
    time: Annotated[str | None, typer.Option("--time", "-t", help="Time limit of one attempt.")] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", "-x", help="Nodes not to use.")] = None,
    torchrun: Annotated[bool, typer.Option("--torchrun", help="One torchrun per node starts the ranks.")] = False,
    container_image: Annotated[str | None, typer.Option(help="Container of the training step (pyxis).")] = None,
    apptainer: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Container of the training step (Apptainer, Singularity).")
    ] = None,
    auto_beat: Annotated[
        bool | None, typer.Option("--auto-beat/--no-auto-beat", help="Beats without a changed line in the trainer.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; see docs/settings.md.")
    ] = None,
    log_json: Annotated[
        bool | None, typer.Option("--log-json/--log-text", help="The operator's log as JSON, one object a line.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option(metavar="login|job", help="Where the operator lives: here, or as a Slurm job.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script that would be submitted, and the policy.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Submit, start the operator, and return.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Operate in this process (tmux, systemd, cron).")
    ] = False,
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
        "job.nodes": nodes,
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
        raise UsageError("`--container-image` and `--apptainer` exclude each other")
    flags |= dict(assignment(text) for text in set_ or ())
    if detach and foreground:
        raise UsageError("`--detach` and `--foreground` exclude each other")
    from transom_cli.cli.submitting import create, leave_outer_run, prepare
    from transom_cli.submit.rundir import plan_run

    leave_outer_run()
    prepared = prepare(tuple(words), file, {k: v for k, v in flags.items() if v is not None})
    if foreground and len(prepared.array) > 1:
        raise UsageError(
            "`--foreground` operates one run, and a job array is several",
            f"the array of `{words[0]}` has {len(prepared.array)} elements",
            "leave `--foreground` out: each gets an operator in the background",
        )
    if dry_run:
        from datetime import datetime, timezone

        first, *more = prepared.each()
        planned = plan_run(first.settings.root, first.settings.name, datetime.now(timezone.utc))
        plan = first.plan(planned.path)
        there = (f"--clusters={plan.asked_cluster}",) if plan.asked_cluster else ()
        _show(first.script(planned.path), (*there, *plan.options))
        _show_operator(planned, prepared.settings)
        if more:
            print(f"note: {1 + len(more)} runs, one for each element of the job array", file=sys.stderr)
        _show_policy(prepared.settings)
        return
    from transom_cli.ui.waiting import waiting
    from transom_cli.wiring.slurm import require_backend, require_slurm
    from transom_cli.wiring.telling import require_telling

    require_telling(prepared.settings)
    require_backend(prepared.settings.slurm)
    with waiting("Slurm is asked"):
        cluster = require_slurm(prepared.settings)  # no Slurm, no run: said before anything is made
    several = len(prepared.array) > 1
    for one in prepared.each():
        made = create(one, cluster)
        print(f"run {made.run_id}", file=sys.stderr)
        code = operate_or_watch(made, detach=detach or several, foreground=foreground, new=True)
        if code:
            break
    raise typer.Exit(code)


def attach(
    run: Annotated[
        str | None, typer.Argument(help="Run id, name or path [default: the newest].", autocompletion=run_ids)
    ] = None,
    root: Root = None,
    detach: Annotated[bool, typer.Option("--detach", help="Make sure that an operator lives, and return.")] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Operate in this process.")] = False,
) -> None:
    """Watch a run; start an operator if it has none."""
    from transom_cli.cli.unanswered import leaving
    from transom_cli.submit.rundir import find_run
    from transom_cli.wiring.settings import runs_root

    where = runs_root(root)
    unanswered = leaving(where, run)
    found = find_run(where, run)
    if not detach:
        unanswered.stop()
    raise typer.Exit(operate_or_watch(found, detach=detach, foreground=foreground))


def operate_or_watch(made: Any, *, detach: bool, foreground: bool, new: bool = False) -> int:
    try:
        return _operate_or_watch(made, detach=detach, foreground=foreground, new=new)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted before the view began: the run may go on. Look with `transom status {made.run_id}`; "
            f"`transom attach {made.run_id}` goes on, `transom stop {made.run_id}` ends it.",
            file=sys.stderr,
        )
        return _INTERRUPTED


def _operate_or_watch(made: Any, *, detach: bool, foreground: bool, new: bool) -> int:
    from transom_cli.cli.operating import comes_back, start
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.lease import operator_alive
    from transom_cli.supervise.operator.background import operate_here
    from transom_cli.ui.live import watch_run
    from transom_cli.ui.waiting import waiting
    from transom_cli.wiring.slurm import require_own_cluster

    if not fold(made.journal).state.phase.over:
        if foreground:
            require_own_cluster(made)
            return operate_here(made)
        with waiting("the operator is started"):
            if operator_alive(made) is None:
                require_own_cluster(made)
                start(made, new=new, detach=detach)
    if detach:
        print(made.run_id)
        return 0
    return watch_run(made, lambda: comes_back(made))


def assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"`--set {text}` is not KEY=VALUE", hint="For example `--set restart.backoff=10`.")
    return key.strip(), value


def _show_policy(settings: Settings) -> None:
    """Beside the script, which stdout has alone."""
    from transom_cli.ui.policy import policy_lines
    from transom_cli.wiring.settings import rules_of

    print("note: policy of this run, the first rule that fits decides (docs/policy.md)", file=sys.stderr)
    print("\n".join(f"  {line}" for line in policy_lines(rules_of(settings))), file=sys.stderr)


def _show_operator(run: RunDir, settings: Settings) -> None:
    """The job that would submit and supervise the other one."""
    from shlex import join

    from transom_cli.submit.operatorjob import operator_options

    if settings.operator.where == "job":
        options = join(operator_options(run, settings.operator))
        print(f"note: the operator is a job of its own: sbatch {options} {run.operator_script.name}", file=sys.stderr)


def _show(script: str, options: tuple[str, ...]) -> None:
    sys.stdout.write(script if script.endswith("\n") else script + "\n")
    if options:
        print(f"note: sbatch is given {' '.join(options)} on its command line", file=sys.stderr)

"""`transom launch`, `agent` and `operate`: the processes of a run, started by the templates and `transom run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.options import Root
from transom_cli.errors import UsageError


def launch(
    command: Annotated[list[str], typer.Argument(help="The training command, after `--`.")],
    run_dir: Annotated[Path, typer.Option(help="The run directory.")],
    kind: Annotated[str, typer.Option(help="srun: one task per rank; torchrun: one task per node.")] = "srun",
    tasks_per_node: Annotated[int, typer.Option(min=1, help="Ranks on each node.")] = 1,
    nodes: Annotated[int, typer.Option(min=0, help="Nodes with ranks; the others are spares [0: all].")] = 0,
    srun_arg: Annotated[list[str] | None, typer.Option(help="A flag for srun; repeatable.")] = None,
    torchrun_arg: Annotated[list[str] | None, typer.Option(help="A flag for torchrun; repeatable.")] = None,
    auto_beat: Annotated[bool, typer.Option(help="Send heartbeats without a change in the trainer.")] = True,
) -> None:
    """Start and watch one attempt's training step (used by the sbatch templates)."""
    import os
    import shutil

    import transom_cli
    from transom_cli.bootstrap.slurm import launcher_slurm
    from transom_cli.cli.common import require_own_run
    from transom_cli.config.model import OBSERVE
    from transom_cli.config.run_settings import (
        checkpoints_of,
        health_options,
        read_settings,
        rules_of,
        stall_limits,
    )
    from transom_cli.layout import RunDir
    from transom_cli.modes import close_to_writers
    from transom_cli.supervise.launcher.allocation import gpus_on_node, require_commands, require_run_dir
    from transom_cli.supervise.launcher.loop import main
    from transom_cli.supervise.launcher.plan import Image, LaunchOptions, container_words, find_program

    if kind not in ("srun", "torchrun"):
        raise UsageError(f"`--kind {kind}` is unknown", hint="use `srun` or `torchrun`")
    run = RunDir(run_dir.absolute())
    require_run_dir(run)
    close_to_writers(run.job_log(int(os.environ.get("SLURM_JOB_ID") or 0)))
    require_own_run(run)
    warning = require_commands()
    if warning:
        print(f"transom: {warning}", file=sys.stderr, flush=True)
    settings = read_settings(run)
    container = settings.launch.container
    within: tuple[str, ...] = ()
    if container.image and container.runtime == "apptainer":
        image = Image(container.image, container.mounts, container.args)
        folders = (run.path, checkpoints_of(run, settings), Path(transom_cli.__file__).resolve().parent)
        gpus = gpus_on_node(os.environ) > 0
        within = container_words(image, find_program(shutil.which), folders, gpus=gpus)
    options = LaunchOptions(
        run=run,
        kind=kind,
        command=tuple(command),
        python=(sys.executable,),
        tasks_per_node=tasks_per_node,
        srun_args=tuple(srun_arg or ()),
        torchrun_args=tuple(torchrun_arg or ()),
        auto_beat=auto_beat,
        checkpoints=checkpoints_of(run, settings),
        limits=stall_limits(settings),
        relaunches=settings.restart.relaunches,
        max_without_progress=settings.restart.max_without_progress,
        nodes=nodes,
        resubmit=settings.restart.how == "resubmit",
        leave_drained=settings.restart.leave_drained,
        expiry=settings.isolate.expiry,
        warn_before=settings.job.warn_before,
        health=health_options(settings),
        rules=rules_of(settings),
        within=within,
        observe=settings.run.mode == OBSERVE,
    )
    raise typer.Exit(main(options, launcher_slurm))


def agent(
    attempt_dir: Annotated[Path, typer.Option(help="The attempt's folder in the run directory.")],
    beats_dir: Annotated[
        str, typer.Option(help="Folder of the ranks' heartbeat records [default: where their wrappers put them].")
    ] = "",
    node: Annotated[str, typer.Option(help="Slurm's name of this node [default: SLURMD_NODENAME].")] = "",
) -> None:
    """Supervise one node of an attempt (the launcher starts one on each node, as its own module)."""
    from transom_cli.supervise.agent.agent import main

    given = ["--attempt-dir", str(attempt_dir), "--beats-dir", beats_dir, *(["--node", node] if node else [])]
    raise typer.Exit(main(given))


def operate(
    run_dir: Annotated[Path | None, typer.Option(help="Operate only the run in this directory.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Operate all of your runs that have not ended.")] = False,
    idle_exit: Annotated[bool, typer.Option("--idle-exit", help="Exit when no run remains.")] = False,
    root: Root = None,
) -> None:
    """Operate your runs in this process, as a service does.

    `transom run` and `transom attach` start this in the background. One process operates all of your runs on a host.
    """
    from transom_cli.bootstrap.operator import operator_for, services
    from transom_cli.cli.common import require_own_run
    from transom_cli.cli.operate import operate_all_runs
    from transom_cli.submit.rundir import find_run
    from transom_cli.supervise.journal import fold
    from transom_cli.supervise.operator.background import operate_here

    if all_ == (run_dir is not None):
        why = "both were given" if all_ else "neither was given"
        raise UsageError("give either `--all` or `--run-dir`", why, "`transom operate --all` operates all of your runs")
    if run_dir is None:
        operate_all_runs(root, idle_exit=idle_exit)
        return
    run = find_run(run_dir, str(run_dir.absolute()))
    require_own_run(run)
    state = fold(run.journal).state
    if state.phase.over:
        print(f"run {run.run_id} has already ended: {state.phase.value}", file=sys.stderr)
    raise typer.Exit(operate_here(run, operator_for, services()))

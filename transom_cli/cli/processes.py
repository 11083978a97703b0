"""`transom attempt-launcher` and `operate`: processes that the templates and `transom run` start."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.common import require_own_run
from transom_cli.cli.options import Root
from transom_cli.errors import UsageError
from transom_cli.layout import RunDir

if TYPE_CHECKING:
    from transom_cli.bootstrap.launcher import LaunchForm


def attempt_launcher(
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
    from transom_cli.bootstrap.launcher import LaunchForm

    if kind not in ("srun", "torchrun"):
        raise UsageError(f"`--kind {kind}` is unknown", hint="use `srun` or `torchrun`")
    form = LaunchForm(
        tuple(command),
        kind,
        tasks_per_node=tasks_per_node,
        nodes=nodes,
        srun_args=tuple(srun_arg or ()),
        torchrun_args=tuple(torchrun_arg or ()),
        auto_beat=auto_beat,
    )
    raise typer.Exit(start_launcher(RunDir(run_dir.absolute()), form))


def start_launcher(run: RunDir, form: LaunchForm) -> int:
    """Run a launcher in this process, after a look at the run directory. Returns the exit code of its training."""

    from transom_cli.bootstrap import launcher
    from transom_cli.modes import close_to_writers
    from transom_cli.supervise.launcher.allocation import require_run_dir

    require_run_dir(run)
    close_to_writers(run.job_log(int(os.environ.get("SLURM_JOB_ID") or 0)))
    require_own_run(run)
    return launcher.start_launcher(run, form)


def operate(
    run_dir: Annotated[Path | None, typer.Option(help="Operate only the run in this directory.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Operate all of your runs that have not ended.")] = False,
    idle_exit: Annotated[bool, typer.Option("--idle-exit", help="Exit when no run remains.")] = False,
    root: Root = None,
) -> None:
    """Operate your runs in this process.

    `transom run` and `transom attach` start this in the background. One process operates all of your runs on a host.
    """
    from transom_cli.bootstrap.operator import import_ahead, operator_for, services
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
    import_ahead()
    state = fold(run.journal).state
    if state.phase.over:
        print(f"run {run.run_id} has already ended: {state.phase.value}", file=sys.stderr)
    raise typer.Exit(operate_here(run, operator_for, services()))

"""Build a launcher with all its parts, from the run's settings."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import transom_cli
from transom_cli.bootstrap.slurm import launcher_slurm
from transom_cli.config.run_settings import checkpoints_of, health_options, read_settings, rules_of, stall_limits
from transom_cli.layout import RunDir
from transom_cli.submit.render import top_up_options
from transom_cli.supervise.launcher.allocation import gpus_on_node, limit_of, require_commands
from transom_cli.supervise.launcher.loop import main
from transom_cli.supervise.launcher.plan import Image, LaunchOptions, container_words, find_program

if TYPE_CHECKING:
    from transom_cli.config.model import Settings


@dataclass(frozen=True)
class LaunchForm:
    """What the command line of a launcher says. The fields are as in `LaunchOptions`."""

    command: tuple[str, ...]
    kind: str = "srun"
    tasks_per_node: int = 1
    nodes: int = 0
    srun_args: tuple[str, ...] = ()
    torchrun_args: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = ()
    auto_beat: bool | None = None
    job_step: str = ""
    checkpoints: Path | None = None


def start_launcher(run: RunDir, form: LaunchForm) -> int:
    """Run the launcher of a run's job. Returns the exit code of its training.

    A generated script passes `launch.srun_args` and the like on its command line; the user's own does not.
    """
    warning = require_commands()
    if warning:
        print(f"transom: {warning}", file=sys.stderr, flush=True)
    settings = read_settings(run)
    checkpoints = form.checkpoints or checkpoints_of(run, settings)
    if form.job_step:
        os.environ["TRANSOM_CHECKPOINT_DIR"] = str(checkpoints)
    container = settings.launch.container
    within: tuple[str, ...] = ()
    if container.image and container.runtime == "apptainer":
        image = Image(container.image, container.mounts, container.args)
        folders = (run.path, checkpoints, Path(transom_cli.__file__).resolve().parent)
        gpus = gpus_on_node(os.environ) > 0
        within = container_words(image, find_program(shutil.which), folders, gpus=gpus)
    options = LaunchOptions(
        run=run,
        kind=form.kind,
        command=form.command,
        python=(sys.executable,),
        tasks_per_node=form.tasks_per_node,
        srun_args=(*(settings.launch.srun_args if form.job_step else ()), *form.srun_args),
        torchrun_args=(*(settings.launch.torchrun_args if form.job_step else ()), *form.torchrun_args),
        torchrun=form.torchrun,
        auto_beat=settings.auto_beat if form.auto_beat is None else form.auto_beat,
        checkpoints=checkpoints,
        limits=stall_limits(settings),
        relaunches=settings.restart.relaunches,
        max_without_progress=settings.restart.max_without_progress,
        nodes=settings.job.nodes if settings.job.min_nodes and not form.job_step else form.nodes,
        min_nodes=0 if form.job_step else settings.job.min_nodes,
        shrink_unit=settings.job.shrink_unit,
        top_up=top_up_options(settings, run) if settings.job.top_up and not form.job_step else (),
        exclude=settings.job.exclude,
        resubmit=settings.restart.how == "resubmit",
        leave_drained=settings.restart.leave_drained,
        expiry=settings.isolate.expiry,
        warn_before=_warn_before(settings) if form.job_step else settings.job.warn_before,
        health=health_options(settings),
        rules=rules_of(settings),
        foreign=settings.checkpoint.foreign.pattern or "",
        within=within,
        job_step=form.job_step,
        observe=settings.run.mode == "observe",
        standby=settings.launch.standby,
        standby_reach=settings.launch.standby_reach,
        recoverable=settings.launch.recoverable,
        agent_cpus=settings.launch.agent_cpus,
    )
    return main(options, launcher_slurm)


def _warn_before(settings: Settings) -> int:
    """Seconds before the time limit of the user's own job at which its ranks save: at most a quarter of the limit."""
    limit = limit_of(os.environ)
    given = settings.job.signal_before
    return settings.job.warn_before if given is not None or limit is None else min(settings.job.warn_before, limit // 4)

"""The sbatch script of a run, from its settings. Pure but for reading templates; `--dry-run` shows this very text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import UsageError
from transom_cli.layout import JOB_LOG, RunDir
from transom_cli.submit.options import read_options
from transom_cli.submit.quoting import Quoted, code, directive, output_pattern, sh
from transom_cli.submit.templates import template_folder

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_SETTINGS = {
    "account": "job.account",
    "chdir": "job.chdir",
    "clusters": "job.cluster",
    "constraint": "job.constraint",
    "cpus-per-task": "job.cpus_per_task",
    "exclude": "job.exclude",
    "job-name": "name",
    "mem": "job.mem",
    "nodes": "job.nodes",
    "ntasks": "job.tasks_per_node",
    "ntasks-per-node": "job.tasks_per_node",
    "partition": "job.partition",
    "qos": "job.qos",
    "reservation": "job.reservation",
    "signal": "job.signal_before",
    "time": "job.time",
    "workdir": "job.chdir",
}
"""Flags that a setting stands for: the flag would win in the script, and a restart asks for what the setting says."""

_IN_RUN_DIR = "the log is in the run directory"
_REQUEUED = "a run lives on being requeued, and asks for it itself"
_ANSWER = "transom reads what sbatch answers"
_NOT_YOURS = {
    **{flag: f"use `{setting}`" for flag, setting in _SETTINGS.items()},
    "gpus-per-node": "use `job.gpus_per_node` (for GPUs of one type: `--gres=gpu:TYPE:N` and `job.tasks_per_node`)",
    "array": "start a run for each element, or write `#SBATCH --array=0-7` into a script of your own",
    "comment": "transom tags its jobs with the comment",
    "error": _IN_RUN_DIR,
    "output": _IN_RUN_DIR,
    "open-mode": "the log of a requeued job must be appended to",
    "no-kill": "use `job.spares`: without spares a job that loses a node is to end",
    "requeue": _REQUEUED,
    "no-requeue": _REQUEUED,
    "parsable": _ANSWER,
    "quiet": _ANSWER,
    "help": _ANSWER,
    "usage": _ANSWER,
    "version": _ANSWER,
    "test-only": "use `--dry-run`",
    "wait": "transom watches the job itself",
    "wrap": "give the command after `--`",
}


def render_script(settings: Settings, run_dir: Path, command: Sequence[str]) -> str:
    """The batch script that starts ``command`` under `transom launch`, for the run at ``run_dir`` (absolute).

    Raises UsageError for an empty command, for what Slurm cannot carry in an #SBATCH line, and for sbatch flags that a
    run cannot live with.
    """
    if not command:
        raise UsageError("no command to run", hint="transom run [options] -- python train.py")
    _refuse_flags(settings.job.sbatch)
    # Jinja costs start-up time: only who renders pays
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        autoescape=False,
        finalize=_only_quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sh=sh, code=code, directive=directive)
    launch = settings.launch
    torchrun = launch.kind == "torchrun"
    return environment.get_template(f"{launch.kind}.sbatch.j2").render(
        name=settings.name,
        output=output_pattern(str(run_dir), JOB_LOG),
        job=settings.job,
        signal_before=settings.job.warn_before,
        flags=_flags(settings),
        slurm_tasks_per_node=1 if torchrun else settings.ranks_per_node,
        python=interpreter(launch.python),
        run_dir=run_dir,
        checkpoints=settings.checkpoint.directory or RunDir(run_dir).checkpoints,
        ranks_per_node=settings.ranks_per_node,
        auto_beat=settings.auto_beat,
        srun_args=_srun_args(settings),
        torchrun_args=launch.torchrun_args,
        container=launch.container,
        command=tuple(command),
    )


def _flags(settings: Settings) -> list[str]:
    """sbatch flags for what was asked for; what is unset is left to Slurm."""
    job = settings.job
    asked = {
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "reservation": job.reservation,
        "constraint": job.constraint,
        "time": job.time,
        "mem": job.mem,
        "cpus-per-task": job.cpus_per_task,
        "exclude": ",".join(job.exclude) or None,
        "chdir": job.chdir,
    }
    return [f"--{flag}={value}" for flag, value in asked.items() if value is not None] + list(job.sbatch)


def _srun_args(settings: Settings) -> tuple[str, ...]:
    """Since Slurm 22.05 srun no longer takes --cpus-per-task over from sbatch, and would bind a rank to one CPU."""
    cpus = settings.job.cpus_per_task
    own = any(option.name == "cpus-per-task" for option in read_options(settings.launch.srun_args))
    taken_over = (f"--cpus-per-task={cpus}",) if cpus is not None and not own else ()
    return (*taken_over, *settings.launch.srun_args)


def interpreter(python: str) -> tuple[str, ...]:
    """With -P (Python 3.11) the job's folder is not searched for modules: a user's `queue.py` must not stop transom."""
    return (python, "-P") if python == sys.executable and sys.version_info >= (3, 11) else (python,)


def _refuse_flags(flags: Sequence[str]) -> None:
    bad = [(option.name, _NOT_YOURS[option.name]) for option in read_options(flags) if option.name in _NOT_YOURS]
    if bad:
        raise UsageError(
            "`job.sbatch` holds what a run cannot live with",
            why="\n".join(f"--{name}: {why}" for name, why in bad),
            hint="take it out of `job.sbatch`; docs/settings.md explains the settings",
        )


def _only_quoted(value: object) -> object:
    """Jinja's last word on every printed value: numbers and quoted text, and nothing that could be forgotten."""
    if isinstance(value, (int, Quoted)):
        return value
    raise TypeError(f"a template prints {value!r} unquoted")

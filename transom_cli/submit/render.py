"""Render batch scripts: the job's, from its settings, and the operator's when it runs as a Slurm job. Pure.

`transom run --dry-run` shows exactly the text of `render_script`.

Quoting: sbatch does not parse #SBATCH lines like a shell (tested on Slurm 22.05). Both kinds of quotes group, a
backslash escapes the next character *even inside single quotes*, and an unquoted `#` starts a comment. So `shlex.quote`
is wrong there; `directive` is right.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import UsageError
from transom_cli.layout import JOB_LOG, RunDir
from transom_cli.start import installed
from transom_cli.submit.directives import SBATCH, Option, read_options
from transom_cli.submit.inputs import template_folder

if TYPE_CHECKING:
    from transom_cli.config.model import OperatorSection, Settings


_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+")


class Quoted(str):
    """Text that is safe in a script as it is. Templates print nothing else."""


def sh(value: object) -> Quoted:
    """Quote for a line of shell. Anything except NUL is possible, even line breaks."""
    return Quoted(shlex.quote(_text(value)))


def code(value: object) -> Quoted:
    """Accept shell code as the user wrote it (``job.setup``)."""
    return Quoted(_text(value))


def directive(value: object) -> Quoted:
    """Quote for an #SBATCH line. Raises UsageError for line breaks and other control characters."""
    text = _text(value)
    bad = next((c for c in text if ord(c) < 32 or ord(c) == 127), None)
    if bad is not None:
        raise UsageError(
            f"{text!r} is not possible in an #SBATCH line",
            why=f"an #SBATCH line cannot contain the control character {bad!r}",
            hint="choose another name or folder (`--name`, `--root`, `job.chdir`)",
        )
    if _PLAIN.fullmatch(text):
        return Quoted(text)
    return Quoted('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


def output_pattern(folder: str, pattern: str) -> str:
    """Return the path of a log file `pattern` (with `%j`) in `folder`, with the folder's own percent signs escaped.

    Raises:
        UsageError: the folder's name contains a backslash, which disables Slurm's `%j` and is dropped from the name.
    """
    if "\\" in folder:
        raise UsageError(
            f"Slurm cannot write logs into {folder!r}",
            why="a backslash in a log file's path disables Slurm's %j",
            hint="choose a run directory without a backslash in its path (--root)",
        )
    return folder.replace("%", "%%") + "/" + pattern


def _text(value: object) -> str:
    text = str(value)
    if "\0" in text:
        raise UsageError(
            f"{text!r} contains a NUL character", hint="neither a script nor a command line can contain one"
        )
    return text


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
"""Flags that have a setting. The flag would win in the script, but a restart uses the setting."""

_IN_RUN_DIR = "the log is in the run directory"
_REQUEUED = "transom requeues the job, and sets this itself"
_ANSWER = "transom reads the output of sbatch"
_UNSUPPORTED = {
    **{flag: f"use `{setting}`" for flag, setting in _SETTINGS.items()},
    "gpus-per-node": "use `job.gpus_per_node` (for GPUs of one type: `--gres=gpu:TYPE:N` and `job.tasks_per_node`)",
    "array": "start one run per element, or use `#SBATCH --array=0-7` in your own script",
    "comment": "transom stores the tag of its jobs there",
    "error": _IN_RUN_DIR,
    "output": _IN_RUN_DIR,
    "open-mode": "a requeued job must append to its log",
    "no-kill": "use `job.spares` or `job.min_nodes`: otherwise a job that loses a node must end",
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
    """Return the batch script that starts `command` under `transom attempt-launcher`. run_dir: absolute.

    Raises:
        UsageError: the command is empty, a value is not possible in an #SBATCH line, or `job.sbatch` contains an
            unsupported option.
    """
    if not command:
        raise UsageError("no command to run", hint="transom run [options] -- python train.py")
    _refuse_flags(settings.job.sbatch)
    # imported here to keep the start-up time of other commands low
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
        flags=job_flags(settings),
        slurm_tasks_per_node=1 if torchrun else settings.ranks_per_node,
        transom=installed(launch.python, "transom_cli"),
        run_dir=run_dir,
        checkpoints=settings.checkpoint.directory or RunDir(run_dir).checkpoints,
        ranks_per_node=settings.ranks_per_node,
        auto_beat=settings.auto_beat,
        srun_args=_srun_args(settings),
        torchrun_args=launch.torchrun_args,
        container=launch.container,
        command=tuple(command),
    )


def job_flags(settings: Settings) -> list[str]:
    """Return the sbatch flags of the settings. Settings without a value are left to Slurm."""
    job = settings.job
    given = {
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
    return [f"--{flag}={value}" for flag, value in given.items() if value is not None] + list(job.sbatch)


def _srun_args(settings: Settings) -> tuple[str, ...]:
    """Since Slurm 22.05, srun does not inherit --cpus-per-task from sbatch and would bind each rank to one CPU."""
    cpus = settings.job.cpus_per_task
    own = any(option.name == "cpus-per-task" for option in read_options(settings.launch.srun_args))
    inherited = (f"--cpus-per-task={cpus}",) if cpus is not None and not own else ()
    return (*inherited, *settings.launch.srun_args)


def _refuse_flags(flags: Sequence[str]) -> None:
    bad = [(option.name, _UNSUPPORTED[option.name]) for option in read_options(flags) if option.name in _UNSUPPORTED]
    if bad:
        raise UsageError(
            "`job.sbatch` contains an unsupported option",
            why="\n".join(f"--{name}: {why}" for name, why in bad),
            hint="remove it from `job.sbatch`; docs/settings.md explains the settings",
        )


def instead_of(option: str, value: str) -> str:
    """Return what to use in `transom run` in place of sbatch's option; "" if sbatch has no such option."""
    name = next(iter(read_options([option])), Option("")).name
    if name not in SBATCH.takes:
        return ""
    setting, refused = _SETTINGS.get(name), _UNSUPPORTED.get(name, "")
    if refused and not setting:
        return f"not possible: {refused}"
    given = shlex.quote(value or "VALUE")
    if not setting:
        given = shlex.quote(f"--{name}={value or 'VALUE'}") if SBATCH.takes[name] == "=" else f"--{name}"
    return f"use `--set {setting or 'job.sbatch'}={given}`, or an `#SBATCH` line of your own script"


def _only_quoted(value: object) -> object:
    """Jinja's `finalize`: print only numbers and quoted text, so that no value is printed unquoted by mistake."""
    if isinstance(value, (int, Quoted)):
        return value
    raise TypeError(f"a template prints {value!r} unquoted")


WARNED = 180  # seconds before its time limit at which the operator job leaves and the next one is submitted
RUN_CONTINUES = 22  # exit code of an operator that left an unfinished run
_SCRIPT = """\
#!/bin/bash
# The operator of this run. On USR1, before the time limit, it leaves and another job replaces it. On TERM (scancel,
# preemption) it leaves without a replacement; `transom attach` starts another one.
again= left= operator=
trap 'again=yes; [ -z "$operator" ] || kill -TERM $operator' USR1
trap 'left=yes; [ -z "$operator" ] || kill -TERM $operator' TERM
{transom} operate --run-dir {run} &
operator=$!
[ -z "$again$left" ] || kill -TERM $operator  # the signal arrived before the operator started
wait $operator
code=$?
while kill -0 $operator 2>/dev/null; do  # a trap ends `wait`, but not the operator
    wait $operator
    code=$?
done
if [ -n "$again" ] && [ $code -eq {run_continues} ]; then
    exec {transom} attach --detach {run}
fi
exit $code
"""


def operator_tag(run_id: str) -> str:
    """Return the comment of a run's operator jobs. It differs from the tags by which the run's own jobs are found."""
    return f"transom-operator:{run_id}"


def top_up_comment(run_id: str, attempt: str = "") -> str:
    """Return the comment of a job that brings nodes to an attempt. It is no tag: the job never trains by itself."""
    return f"transom-top-up:{run_id}:{attempt}"


def top_up_options(settings: Settings, run: RunDir) -> tuple[str, ...]:
    """Return the sbatch options of a top-up job: what the run's own job asks for on each node."""
    torchrun = settings.launch.kind == "torchrun"
    return (
        *job_flags(settings),
        f"--job-name=top-up-{run.run_id}",
        f"--output={output_pattern(str(run.path), 'top-up-%j.log')}",
        f"--ntasks-per-node={1 if torchrun else settings.ranks_per_node}",
        *([f"--gres=gpu:{settings.job.gpus_per_node}"] if settings.job.gpus_per_node else []),
        "--no-kill",
        "--no-requeue",
        "--mail-type=NONE",
    )


def operator_script(run: RunDir, transom: Sequence[str]) -> str:
    """Return the operator's batch script. transom: the command line that starts transom."""
    words = " ".join(str(sh(word)) for word in transom)
    return _SCRIPT.format(transom=words, run=sh(str(run.path)), run_continues=RUN_CONTINUES)


def operator_options(run: RunDir, section: OperatorSection) -> tuple[str, ...]:
    """Return the sbatch options of the operator job: one core, requeued like any job.

    They go on sbatch's command line, where SBATCH_* variables cannot override them. `operator.sbatch` comes last, so it
    has priority.
    """
    given = {"partition": section.partition, "time": section.time}
    return (
        f"--job-name=operator-{run.run_id}",
        f"--output={output_pattern(str(run.path), run.operator_log.name)}",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--mem=1G",
        "--requeue",
        f"--signal=B:USR1@{WARNED}",
        f"--comment={operator_tag(run.run_id)}",
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        *section.sbatch,
    )

"""From a command line to a run directory that is ready to be operated. `transom run` and its `--dry-run` share this."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from transom_cli.config.load import load
from transom_cli.config.model import OBSERVE, Settings
from transom_cli.config.run_settings import policy_of
from transom_cli.config.sources import outer_run_variables
from transom_cli.config.validation import flag_of
from transom_cli.errors import UsageError, printable
from transom_cli.inherited import rank_variables
from transom_cli.layout import RunDir
from transom_cli.submit import unsupported
from transom_cli.submit.adopt import Kind, find_steps, step_notes
from transom_cli.submit.directives import read_directives
from transom_cli.submit.inputs import missing_program, read_script, root_warning, similar_program
from transom_cli.submit.render import render_script
from transom_cli.submit.rundir import new_run, path_error
from transom_cli.submit.script import (
    ScriptFacts,
    added_options,
    elements,
    export_options,
    inspect_script,
    refuse_no_job,
    refuse_whole,
    script_notes,
)
from transom_cli.submit.sharing import check_sharing
from transom_cli.submit.starters import apply, refuse_python_within_torchrun
from transom_cli.submit.submission import (
    SubmissionRecord,
    fingerprints,
    refuse_caller,
    sbatch_variables,
    script_environment,
)
from transom_cli.supervise.journal import write_header

_SCRIPT_SUFFIXES = (".sbatch", ".slurm")
_PYTHON = re.compile(r"python[\d.]*")


@dataclass(frozen=True)
class Prepared:
    """What would be submitted: the settings, the script, and what sbatch gets in addition."""

    settings: Settings
    words: tuple[str, ...]
    script_text: str = ""  # the user's own script; empty if it is rendered
    num_nodes: int = 0
    spares: int = 0
    chdir: str = ""  # the job's directory
    avoided: tuple[str, ...] = ()  # nodes to exclude in addition to those that the user's own script excludes
    array: tuple[int, ...] = ()  # the elements of the script's job array; each becomes a run

    def each(self) -> tuple[Prepared, ...]:
        """Return one run, or one for each element of the script's job array."""
        if not self.array:
            return (self,)
        name = self.settings.name
        named = {i: self.settings.model_copy(update={"name": f"{name}-{i}"}) for i in self.array}
        return tuple(replace(self, settings=settings, array=(i,)) for i, settings in named.items())

    def script(self, run_dir: Path) -> str:
        return self.script_text or render_script(self.settings, run_dir, self.words)

    def options(self) -> dict[str, str | None]:
        """Return the sbatch options of the script by name. SBATCH_PARTITION is preferred to a user's own script."""
        found = {one.option.name: one.option.value for one in read_directives(self.script(Path("/")))}
        partition: dict[str, str | None] = {"partition": one} if (one := os.environ.get("SBATCH_PARTITION")) else {}
        return found | partition if self.script_text else partition | found

    def record(self, run_dir: Path) -> SubmissionRecord:
        shell = fingerprints(os.environ, run_dir.name)
        return replace(self._record(run_dir), shell=tuple(shell.items()))

    def _record(self, run_dir: Path) -> SubmissionRecord:
        cluster = self.settings.job.cluster or ""
        if not self.script_text:
            # Repeated on the command line, where the caller's SBATCH_* variables cannot override them.
            exported = export_options(ScriptFacts(), (), os.environ)
            given = [directive.option.name for directive in read_directives(self.script(run_dir))]
            kept = tuple(sbatch_variables(os.environ, given).items())
            options = ("--requeue", "--open-mode=append", *exported)
            return SubmissionRecord(options, chdir=self.chdir, requested_cluster=cluster, sbatch=kept)
        facts = inspect_script(self.script_text)
        checkpoints = self.settings.checkpoint.directory
        env = script_environment(run_dir, self.settings.auto_beat, os.environ, checkpoints=checkpoints)
        options = added_options(facts, job_name=Path(self.words[0]).name, exported=tuple(env), environ=os.environ)
        if any(step.spares for step in find_steps(self.script_text)):
            options = (*options, "--no-kill")  # the job survives the loss of a node
        if self.array:
            options = (*options, f"--array={self.array[0]}")
        if self.avoided:
            options = (*options, f"--exclude={','.join(x for x in (facts.exclude, *self.avoided) if x)}")
        folder = "" if facts.chdir else self.chdir
        kept = tuple(sbatch_variables(os.environ).items())
        return SubmissionRecord(options, tuple(self.words[1:]), folder, tuple(env.items()), cluster, sbatch=kept)


def is_script(words: tuple[str, ...]) -> bool:
    """Return whether the first word is the user's own script, by its suffix or its #SBATCH lines."""
    path = Path(words[0])
    if path.suffix in _SCRIPT_SUFFIXES:
        return True
    try:
        with path.open("rb") as f:
            return b"\n#SBATCH" in f.read(65536)
    except OSError:
        return False


def leave_outer_run() -> None:
    """Drop an outer run's variables, so that a run started inside it does not write into its run directory."""
    for name in outer_run_variables(os.environ):
        del os.environ[name]


def leave_outer_launch(words: tuple[str, ...]) -> None:
    """Drop the variables of another launch (torchrun, an interactive job), so that they do not reach this run's ranks.

    The user's own script may take its rendezvous address from the shell, so it keeps MASTER_ADDR and MASTER_PORT.
    """
    rendezvous = () if is_script(words) else tuple(n for n in ("MASTER_ADDR", "MASTER_PORT") if n in os.environ)
    dropped = (*rank_variables(os.environ), *rendezvous)
    for name in dropped:
        del os.environ[name]
    if dropped:
        *most, last = dropped
        names, be = (f"{', '.join(most)} and {last}", "are") if most else (last, "is")
        print(f"note: {names} {be} set in this shell and {be} not passed to the job", file=sys.stderr)


_OF_JOB = ("SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")


def leave_outer_job() -> None:
    """Drop the variables of a Slurm job that this process is in: its sizes and its GPUs are not those of the run."""
    job, node = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURMD_NODENAME")
    if not job:
        return
    for name in tuple(os.environ):
        if (name.startswith(_OF_JOB) and name not in _KEPT) or name in _DEVICES:
            del os.environ[name]
    print(
        f"note: this shell is in job {job}: the run gets a job of its own, and none of its variables", file=sys.stderr
    )
    if node:
        print(
            f"warning: an operator that starts here ends with job {job}, and the run continues without one: run this "
            "on a login node, or use --operator job; `transom attach` starts another operator",
            file=sys.stderr,
        )


def _given_options() -> tuple[str, ...]:
    """Return the options of this `transom run`, for the command that an error suggests."""
    words = sys.argv[1:]
    ours = words[: words.index("--")] if "--" in words else []
    return tuple(ours[ours.index("run") + 1 :]) if "run" in ours else ()


def prepare(
    words: tuple[str, ...],
    run_file: Path | None,
    flags: dict[str, Any],
    nodes_to_avoid: Callable[[str], tuple[str, ...]] = lambda cluster: (),
    *,
    force: bool = False,
) -> Prepared:
    """Check a command line and combine it with the settings. Notes and warnings go to stderr.

    Args:
        words: the user's own script with its arguments, or the training command.
        flags: settings from the command line.
        nodes_to_avoid: returns the nodes to exclude, given `job.cluster`.
        force: the command need not exist on this host.
    """
    refuse_caller(os.environ)
    kind = _prepare_script if is_script(words) else _prepare_command
    prepared = kind(words, run_file, flags, nodes_to_avoid, force)
    if prepared.settings.run.mode == OBSERVE:
        print(
            "note: run.mode is observe: transom reports what it would do about faults, and does nothing",
            file=sys.stderr,
        )
    check_sharing(prepared.settings)
    return prepared


def _prepare_script(
    words: tuple[str, ...],
    run_file: Path | None,
    flags: dict[str, Any],
    nodes_to_avoid: Callable[[str], tuple[str, ...]],
    force: bool = False,
) -> Prepared:
    text = read_script(Path(words[0]))
    job_flags = sorted(key for key, value in flags.items() if key.startswith(("job.", "launch.")) and value)
    if job_flags:
        raise UsageError(
            "Job options cannot be combined with your own sbatch script",
            f"given: {', '.join(filter(None, map(flag_of, job_flags)))}",
            f"add them to `{words[0]}` as #SBATCH lines, or give a command after `--` instead of a script",
        )
    facts = inspect_script(text, words[0])
    refuse_no_job(facts)
    try:
        _require_output_folders(facts, words[0])
    except UsageError as error:
        if not force:
            raise
        print(f"warning: {error.what}: {printable(error.why)}", file=sys.stderr)
    array: tuple[int, ...] = ()
    if facts.array is not None:
        refuse_whole(text)
        array = elements(facts.array, f"line {facts.lines['array']} of the script: --array={facts.array}")
    for note in (*script_notes(facts), *step_notes(text, words[0])):
        print(f"note: {words[0]}, {note}", file=sys.stderr)
    named = {**flags, "name": flags.get("name") or facts.job_name or Path(words[0]).stem}
    settings = load(run_file, named, os.environ)
    settings = _on_cluster(settings, facts.clusters, facts.lines.get("clusters", 0))
    _check_auto_resume(settings, text, words)
    unused = unused_settings(settings, text)
    if unused:
        print(
            f"note: {words[0]} is submitted unchanged; these settings are not used: {', '.join(unused)}",
            file=sys.stderr,
        )
    by_file = "/" in (facts.exclude or "")  # a file of names cannot be combined with names
    avoided = () if by_file else nodes_to_avoid(settings.job.cluster or "")
    return Prepared(settings, words, text, facts.nodes or 0, 0, _job_directory(settings), avoided, array)


def _require_output_folders(facts: ScriptFacts, script: str) -> None:
    """Refuse a script whose output has no folder: Slurm could not start it, and would say only JobLaunchFailure."""
    for name, pattern in (("output", facts.output), ("error", facts.error)):
        folder = Path(facts.chdir or ".", pattern or "").parent.absolute()
        if pattern and "%" not in str(folder) and not folder.exists():
            line = f"line {facts.lines[name]} of `{script}`: --{name}={pattern}"
            why = f"{line}; on a node without it, Slurm cannot start the job"
            hint = f"mkdir -p {shlex.quote(str(folder))}, or `--force` if the nodes have it"
            raise UsageError(f"There is no folder `{folder}` on this host", why, hint)


def _prepare_command(
    words: tuple[str, ...],
    run_file: Path | None,
    flags: dict[str, Any],
    nodes_to_avoid: Callable[[str], tuple[str, ...]],
    force: bool = False,
) -> Prepared:
    if "/" in words[0] and Path(words[0]).is_dir():
        raise UsageError(
            f"`{words[0]}` is a folder, neither a script nor a command",
            hint="transom run train.sbatch, or transom run [options] -- COMMAND",
        )
    if len(words) == 1 and len(parts := words[0].split()) > 1 and shutil.which(parts[0]):
        what = f"`{words[0]}` is one word: its quotes make it the name of a program"
        raise UsageError(what, hint=f"transom run -- {words[0]}")
    if len(words) >= 1 and words[0].endswith(".py") and not flags.get("launch.kind") and not shutil.which(words[0]):
        command = shlex.join(("python", *words))
        raise UsageError(f"`{words[0]}` is a Python script, not a command", hint=f"transom run -- {command}")
    if len(words) == 1 and _PYTHON.fullmatch(Path(words[0]).name) and not force:
        raise UsageError(f"`{words[0]}` is given no script", hint=f"transom run -- {words[0]} train.py")
    words, settings, note = apply(words, _on_cluster(load(run_file, flags, os.environ)))
    if note:
        print(f"note: {note}", file=sys.stderr)
    if 0 < settings.job.min_nodes < settings.job.nodes:
        fewer = f"on fewer than {settings.job.nodes} nodes, your trainer must load a checkpoint"
        why = "transom cannot check that in advance (docs/elastic.md)"
        print(f"note: {fewer} that another number of ranks wrote; {why}", file=sys.stderr)
    refuse_python_within_torchrun(words, settings)
    unsupported.refuse_nested(words, settings, _given_options())
    _check_auto_resume(settings, "", words)
    exclude = tuple(dict.fromkeys((*settings.job.exclude, *nodes_to_avoid(settings.job.cluster or ""))))
    settings = settings.model_copy(update={"job": settings.job.model_copy(update={"exclude": exclude})})
    directory = _job_directory(settings)
    missing = missing_program(words, settings, Path(directory))
    if missing:
        if missing == words[0] and (Path(directory) / missing).is_file() and not force:
            raise UsageError(
                f"`{missing}` is neither a command nor an sbatch script",
                "PATH has no such command, and the file has no #SBATCH line",
                f"a script: add #SBATCH lines, or name it {missing}.sbatch; a program: transom run -- ./{missing}",
            )
        what = f"`{missing}` was not found on this host"
        near = similar_program(missing, Path(directory))
        remedy = "if the nodes have it: add `--force`"
        if near:
            remedy = f"did you mean `{near}`?\n{remedy}"
        if not force:
            raise UsageError(what, f"the job starts in {directory}", remedy)
        where = f"the job starts in {directory}"
        print(f"warning: {what} ({where}): the ranks fail unless the nodes have it", file=sys.stderr)
    spares = settings.job.spares
    return Prepared(settings, words, "", settings.job.nodes + spares, spares, directory)


def _check_auto_resume(settings: Settings, script: str, words: tuple[str, ...]) -> None:
    """Raise UsageError if HyperPod would restart the training too."""
    own = () if script else (*settings.launch.srun_args, *words)
    found = unsupported.find_auto_resume(script, own, {**os.environ, **settings.job.env})
    note = unsupported.judge_auto_resume(found, hyperpod=Path(unsupported.HYPERPOD_FOLDER).is_dir())
    if note:
        print(f"note: {note}", file=sys.stderr)


def _on_cluster(settings: Settings, script: str | None = None, line: int = 0) -> Settings:
    """Freeze the cluster's name in the settings: a later `transom attach` may have another environment."""
    name = unsupported.cluster_of(settings.job.cluster, script, line, os.environ)
    return settings.model_copy(update={"job": settings.job.model_copy(update={"cluster": name or None})})


def unused_settings(settings: Settings, script: str = "") -> list[str]:
    """Return the settings of job and launcher that do not apply to the user's own script."""
    launched = any(step.kind is Kind.LAUNCHED for step in find_steps(script))
    used = {"chdir", "cluster", *(("signal_before",) if launched else ())}
    job = [f"job.{key}" for key in settings.job.model_fields_set - used]
    if launched:
        return sorted(job)
    launch = [f"launch.{key}" for key in settings.launch.model_fields_set]
    restart = [f"restart.{key}" for key in settings.restart.model_fields_set & {"relaunches", "leave_drained"}]
    return sorted([*job, *launch, *restart])


def _job_directory(settings: Settings) -> str:
    """Return the job's directory. Raises OSError, before anything is created, if the current one was deleted."""
    return str(settings.job.chdir or Path.cwd())


def create(prepared: Prepared, cluster: str = "") -> RunDir:
    """Create the run directory: settings, script, submission record, and an empty journal.

    Args:
        cluster: the ClusterName of the Slurm that will have the job.
    """
    root = prepared.settings.root
    warning = root_warning(root)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    run = new_run(root, prepared.settings.name, datetime.now(timezone.utc), prepared.settings, prepared.script)
    fewest = prepared.settings.job.min_nodes if prepared.num_nodes else 0
    try:
        replace(prepared.record(run.path), cluster=cluster).save(run)
        write_header(run.journal, policy_of(prepared.settings), prepared.num_nodes, prepared.spares, fewest)
    except (OSError, KeyboardInterrupt) as error:  # nothing was submitted: half a run is no run
        shutil.rmtree(run.path, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise path_error(error, run.path) from error
    return run

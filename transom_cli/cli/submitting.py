"""From a command line to a run directory that is ready to be operated. Shared by `run` and its `--dry-run`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom_cli.errors import UsageError
from transom_cli.layout import RunDir

if TYPE_CHECKING:
    from transom_cli.config.model import Settings
    from transom_cli.health.history.records import Isolation
    from transom_cli.wiring.plan import Plan

_SCRIPT_ENDINGS = (".sbatch", ".slurm")


@dataclass(frozen=True)
class Prepared:
    """What would be submitted: the settings, the script for a run directory, and what sbatch gets beside it."""

    settings: Settings
    words: tuple[str, ...]
    script_text: str = ""  # of a user's own script; empty when it is rendered
    num_nodes: int = 0
    spares: int = 0
    chdir: str = ""  # where the job starts
    avoided: tuple[str, ...] = ()  # nodes to exclude beside what a script of the user's own excludes
    array: tuple[int, ...] = ()  # the elements that the script asks for, each to be a run

    def each(self) -> tuple[Prepared, ...]:
        """One run, or one for each element of the script's job array."""
        if not self.array:
            return (self,)
        name = self.settings.name
        named = {i: self.settings.model_copy(update={"name": f"{name}-{i}"}) for i in self.array}
        return tuple(replace(self, settings=settings, array=(i,)) for i, settings in named.items())

    def script(self, run_dir: Path) -> str:
        from transom_cli.submit.render import render_script

        return self.script_text or render_script(self.settings, run_dir, self.words)

    def plan(self, run_dir: Path) -> Plan:
        from transom_cli.submit.directives import read_directives
        from transom_cli.submit.environment import sbatch_variables, script_environment
        from transom_cli.submit.script import ScriptFacts, completing_options, export_options, inspect_script
        from transom_cli.wiring.plan import Plan

        cluster = self.settings.job.cluster or ""
        if not self.script_text:
            # Said again on the command line, where no SBATCH_* variable of the caller can undo it.
            exported = export_options(ScriptFacts(), (), os.environ)
            answered = [directive.option.name for directive in read_directives(self.script(run_dir))]
            kept = tuple(sbatch_variables(os.environ, answered).items())
            options = ("--requeue", "--open-mode=append", *exported)
            return Plan(options, chdir=self.chdir, asked_cluster=cluster, sbatch=kept)
        facts = inspect_script(self.script_text)
        checkpoints = self.settings.checkpoint.directory
        env = script_environment(run_dir, self.settings.auto_beat, os.environ, checkpoints=checkpoints)
        options = completing_options(facts, job_name=Path(self.words[0]).name, exported=tuple(env), environ=os.environ)
        if self.array:
            options = (*options, f"--array={self.array[0]}")
        if self.avoided:
            options = (*options, f"--exclude={','.join(x for x in (facts.exclude, *self.avoided) if x)}")
        folder = "" if facts.chdir else self.chdir
        kept = tuple(sbatch_variables(os.environ).items())
        return Plan(options, tuple(self.words[1:]), folder, tuple(env.items()), cluster, sbatch=kept)


def is_script(words: tuple[str, ...]) -> bool:
    """`transom run train.sbatch`: a user's own script, by its name or by its #SBATCH lines; else a command."""
    path = Path(words[0])
    if path.suffix in _SCRIPT_ENDINGS:
        return True
    try:
        with path.open("rb") as f:
            return b"\n#SBATCH" in f.read(65536)
    except OSError:
        return False


def leave_outer_run() -> None:
    """A run started from inside another one must not write into the outer run's directory."""
    from transom_cli.config.variables import outer_run_variables

    for name in outer_run_variables(os.environ):
        del os.environ[name]


def prepare(words: tuple[str, ...], run_file: Path | None, flags: dict[str, Any]) -> Prepared:
    from transom_cli.config.load import load
    from transom_cli.submit.arrays import elements, refuse_whole
    from transom_cli.submit.environment import refuse_caller
    from transom_cli.submit.program import missing
    from transom_cli.submit.script import completing_notes, inspect_script, refuse_no_job
    from transom_cli.submit.script_file import read_script

    refuse_caller(os.environ)
    if is_script(words):
        text = read_script(Path(words[0]))
        job_flags = sorted(key for key, value in flags.items() if key.startswith(("job.", "launch.")) and value)
        if job_flags:
            raise UsageError(
                "A script of your own says itself what it asks of Slurm",
                f"given beside it: {', '.join(job_flags)}",
                f"Put these into `{words[0]}` as #SBATCH lines, or give a command after `--`.",
            )
        facts = inspect_script(text)
        refuse_no_job(facts)
        array: tuple[int, ...] = ()
        if facts.array is not None:
            refuse_whole(text)
            array = elements(facts.array, f"line {facts.lines['array']} of the script: --array={facts.array}")
        for note in completing_notes(facts):
            print(f"note: {words[0]}, {note}", file=sys.stderr)
        named = {**flags, "name": flags.get("name") or facts.job_name or Path(words[0]).stem}
        settings = load(run_file, named, os.environ)
        settings = _on_cluster(settings, facts.clusters, facts.lines.get("clusters", 0))
        _restarted_once(settings, text, words)
        unused = unused_settings(settings)
        if unused:
            print(f"note: {words[0]} is submitted as it is; not used: {', '.join(unused)}", file=sys.stderr)
        by_file = "/" in (facts.exclude or "")  # a file of names cannot be joined with names
        avoided = () if by_file else nodes_to_avoid(settings.job.cluster or "")
        return Prepared(settings, words, text, facts.nodes or 0, 0, _where(settings), avoided, array)
    if "/" in words[0] and Path(words[0]).is_dir():
        raise UsageError(
            f"`{words[0]}` is a folder, neither a script nor a command",
            hint="transom run train.sbatch, or transom run [options] -- COMMAND",
        )
    settings = _on_cluster(load(run_file, flags, os.environ))
    _restarted_once(settings, "", words)
    exclude = tuple(dict.fromkeys((*settings.job.exclude, *nodes_to_avoid(settings.job.cluster or ""))))
    settings = settings.model_copy(update={"job": settings.job.model_copy(update={"exclude": exclude})})
    spares = settings.job.spares
    lacking = missing(words, settings, Path(_where(settings)))
    if lacking:
        print(
            f"warning: `{lacking}` is not found from here (the job starts in {_where(settings)}): "
            "its ranks fail unless the nodes find it",
            file=sys.stderr,
        )
    return Prepared(settings, words, "", settings.job.nodes + spares, spares, _where(settings))


def _restarted_once(settings: Settings, script: str, words: tuple[str, ...]) -> None:
    """UsageError where the cluster would restart the training too."""
    from transom_cli.submit.hyperpod import MARK, find_auto_resume, judge_auto_resume

    own = () if script else (*settings.launch.srun_args, *words)
    found = find_auto_resume(script, own, {**os.environ, **settings.job.env})
    note = judge_auto_resume(found, hyperpod=Path(MARK).is_dir())
    if note:
        print(f"note: {note}", file=sys.stderr)


def _on_cluster(settings: Settings, script: str | None = None, line: int = 0) -> Settings:
    """With the cluster by its name, frozen: whoever attaches later need not have the same environment."""
    from transom_cli.submit.clusters import cluster_of

    name = cluster_of(settings.job.cluster, script, line, os.environ)
    return settings.model_copy(update={"job": settings.job.model_copy(update={"cluster": name or None})})


def unused_settings(settings: Settings) -> list[str]:
    """What a file or a variable says of job and launcher, and a script of the user's own has no place for."""
    job = [f"job.{key}" for key in settings.job.model_fields_set - {"chdir", "cluster"}]
    launch = [f"launch.{key}" for key in settings.launch.model_fields_set]
    restart = [f"restart.{key}" for key in settings.restart.model_fields_set & {"relaunches", "leave_drained"}]
    return sorted([*job, *launch, *restart])


def nodes_to_avoid(cluster: str) -> tuple[str, ...]:
    """Of which a check of an earlier run has proven a fault, and which could not be drained; each is told.

    cluster: as `job.cluster`. Left out are nodes that its Slurm does not know: sbatch would refuse the whole job.
    """
    import time

    from transom_cli.health.history.files import history_dir, read_history
    from transom_cli.health.history.fold import fold, to_avoid
    from transom_cli.ui.nodes import avoided_line

    now = time.time()
    try:
        found = to_avoid(fold(read_history(history_dir(os.environ), now), now), now)
    except OSError as error:
        print(f"warning: the history of nodes cannot be read: {error}", file=sys.stderr)
        return ()
    avoided = _on_this_cluster(found, cluster) if found else ()
    for isolation in avoided:
        print(avoided_line(isolation, now), file=sys.stderr)
    return tuple(isolation.node for isolation in avoided)


def _on_this_cluster(found: tuple[Isolation, ...], cluster: str) -> tuple[Isolation, ...]:
    """All of them where Slurm does not answer."""
    from transom_cli.errors import TransomError
    from transom_cli.supervise.operator.lifting import known_nodes
    from transom_cli.wiring.slurm import cluster_name, slurm_client

    try:
        name = cluster_name(cluster)
        here = tuple(one for one in found if not name or one.cluster in ("", name))
        known = {node.name for node in known_nodes(slurm_client(10.0, cluster), tuple(one.node for one in here))}
    except TransomError:
        return found
    return tuple({one.node: one for one in here if one.node in known}.values())


def _where(settings: Settings) -> str:
    """The job's directory. OSError before anything is made when the current one is gone."""
    return str(settings.job.chdir or Path.cwd())


def create(prepared: Prepared, cluster: str = "") -> RunDir:
    """Make the run directory: settings, script, how to submit it, and an empty journal.

    cluster: the ClusterName of the Slurm that is to have the job.
    """
    from transom_cli.submit.rundir import new_run
    from transom_cli.submit.shared import shared_enough
    from transom_cli.supervise.journal import write_header
    from transom_cli.wiring.settings import policy_of

    root = prepared.settings.root
    warning = shared_enough(root)
    if warning:
        print(f"warning: {warning}", file=sys.stderr)
    run = new_run(root, prepared.settings.name, datetime.now(timezone.utc), prepared.settings, prepared.script)
    replace(prepared.plan(run.path), cluster=cluster).save(run)
    write_header(run.journal, policy_of(prepared.settings), prepared.num_nodes, prepared.spares)
    return run

"""The run directory of a job whose own script starts `transom launch`: that of `transom run`, or one made in the job.

A job that plain sbatch submitted has none yet. The first launcher makes it, and puts the run's tag into the job's
comment, by which later job steps and later starts of the job find it. If a site forbids changing the comment, they find
it by the job's ID and script.
"""

import os
import shlex
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import psutil

from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.config.run_settings import policy_of
from transom_cli.config.sources import outer_run_variables
from transom_cli.core.events import Started, Submitted
from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.layout import RunDir, parse_attempt
from transom_cli.ownership import is_own
from transom_cli.slurm.guards import retry_unanswered
from transom_cli.slurm.port import Job, Slurm, SlurmRefused
from transom_cli.slurm.runner import Runner, read_cluster_name
from transom_cli.slurm.tags import of_run, run_tag, tag_of, tagged
from transom_cli.submit.prepare import Prepared, create
from transom_cli.submit.rundir import find_run, list_runs, new_run
from transom_cli.submit.script import inspect_script
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import Journal, write_header

_RUN = "TRANSOM_RUN_DIR"
_OBSERVED = "#!/bin/sh\n# transom observes job {job}, which was submitted without it, and does not submit this file\n"
PATIENCE = 600.0  # seconds for Slurm to answer
SLACK = 60.0  # seconds that the clocks of a node and of the file server may differ by
# Options that a successor of the job gets, from the batch script's environment. The script's own lines hold too.
_OPTIONS = {
    "partition": "SLURM_JOB_PARTITION",
    "account": "SLURM_JOB_ACCOUNT",
    "qos": "SLURM_JOB_QOS",
    "reservation": "SLURM_JOB_RESERVATION",
    "nodes": "SLURM_JOB_NUM_NODES",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "mem": "SLURM_MEM_PER_NODE",
}


def run_of_job(environ: MutableMapping[str, str], slurm: Slurm, root: Path | None = None) -> tuple[RunDir, bool]:
    """Return the run of the job that this process is in, and whether it was made now.

    Raises:
        UsageError: this is no batch job.
    """
    job_id, restart = _job_id(environ), int(environ.get("SLURM_RESTART_COUNT") or 0)
    script = _answer(lambda: _script_of(job_id))
    given = RunDir(Path(environ[_RUN])) if environ.get(_RUN) else None
    if given is not None and _has_script(given, script):
        return given, False
    job = _answer(lambda: slurm.job(job_id))
    if given is not None and of_run(job.comment, run_tag(given.run_id)):
        return given, False  # the site changes scripts
    if given is not None:  # of an outer run, from whose job this one was submitted
        for name in outer_run_variables(environ):
            del environ[name]
    settings = load(None, {"name": job.name or "run", "root": str(root) if root else None}, environ)
    found = _known(settings.root, job, restart, script)
    if found is not None:
        return found, False
    words = ("batch script", *shlex.split(job.command)[1:])
    nodes = int(environ.get("SLURM_JOB_NUM_NODES") or 0)
    element = environ.get("SLURM_ARRAY_TASK_ID", "")
    array = (int(element),) if element else ()
    where = environ.get("SLURM_SUBMIT_DIR", "")
    run = create(Prepared(settings, words, script, nodes, chdir=where, array=array), _cluster())
    _complete_submission(run, environ)
    _begin_journal(run, job_id)
    try:
        if not job.comment:
            slurm.set_comment(job_id, run_tag(run.run_id))
    except TransomError:
        pass  # found by its script
    return run, True


T = TypeVar("T")


def _answer(call: Callable[[], T]) -> T:
    return retry_unanswered(call, time.monotonic() + PATIENCE, time.sleep, time.monotonic, cap=5.0)


def _job_id(environ: Mapping[str, str]) -> int:
    try:
        return int(environ["SLURM_JOB_ID"])
    except (KeyError, ValueError) as error:
        raise UsageError(
            "`transom launch` runs inside a Slurm job's batch script",
            "SLURM_JOB_ID is not set here",
            "submit a script that contains it (`transom run train.sbatch`, or sbatch), or use `transom run -- COMMAND`",
        ) from error


def _script_of(job_id: int) -> str:
    try:
        return Runner().run(["scontrol", "write", "batch_script", str(job_id), "-"]).rstrip("\n")
    except SlurmRefused as error:
        raise UsageError(
            "This job has no batch script",
            error.why,
            "transom restarts jobs by their script: write `transom launch` into one, and submit it",
        ) from error


def _has_script(run: RunDir, script: str) -> bool:
    try:
        return run.script.read_text(encoding="utf-8", errors="replace").rstrip("\n") == script
    except OSError:
        return False


def _known(root: Path, job: Job, restart: int, script: str) -> RunDir | None:
    if tagged(job.comment):
        return find_run(root, tag_of(job.comment).split(":")[1])
    began = psutil.Process(os.getppid()).create_time()  # the batch script
    for run in list_runs(root):
        starts = [path for path in run.attempts.glob(f"{job.job_id}.*") if parse_attempt(path.name)[1] <= restart]
        if not starts or not is_own(run) or not _has_script(run, script):
            continue
        if restart or max(path.stat().st_mtime for path in starts) > began - SLACK:  # else an older job with this ID
            return run
    return None


def _cluster() -> str:
    try:
        return read_cluster_name(Runner(timeout=10.0))
    except TransomError:
        return ""


def _complete_submission(run: RunDir, environ: Mapping[str, str]) -> None:
    """Record how the job was submitted, as far as its environment tells, for a site where it cannot be requeued."""
    record = SubmissionRecord.load(run)
    lines = inspect_script(run.script.read_text(encoding="utf-8", errors="surrogateescape")).lines
    given = {name: environ.get(variable, "") for name, variable in _OPTIONS.items() if name not in lines}
    options = tuple(f"--{name}={value}" for name, value in given.items() if value)
    SubmissionRecord(
        (*record.options, *options), record.args, record.chdir, record.env, cluster=record.cluster, sbatch=()
    ).save(run)


def _begin_journal(run: RunDir, job_id: int) -> None:
    """Write what an operator would have: `transom attach` then continues with this job."""
    journal = Journal(run.journal, 0)
    try:
        journal.append(Started(time.time(), 0))
        journal.append(Submitted(time.time(), "submit", job_id, released=True))
    finally:
        journal.close()


# --- a job that somebody submitted without transom: nothing of its run reaches it ---


def require_observable(job: Job, user: str) -> None:
    """Raise NotPermitted for another user's job; UsageError for one that transom has, has ended, or is a part."""
    name = f"job {job.job_id}"
    if tagged(job.comment):
        run = tag_of(job.comment).split(":")[1]
        raise UsageError(
            f"transom already operates {name}", f"it belongs to run `{run}`", f"`transom status {run}` shows it"
        )
    if job.user != user:
        hint = "its owner can observe it"
        raise NotPermitted(f"{name} belongs to {job.user}", "you can observe your own jobs", hint)
    if job.part_of:
        why = "it is part of a job array" if job.part_of == "array" else "it is part of a heterogeneous job"
        raise UsageError(f"{name} cannot be observed", why, "observe a job of its own")
    if job.state.ended:
        hint = f"`transom diagnose {job.output or 'LOG'}` looks for the cause in its log"
        raise UsageError(f"{name} has already ended", job.state.value, hint)


def observe_job(job: Job, settings: Settings, cluster: str, log: Path | None) -> RunDir:
    """Create the run. log: where the job writes, if not where Slurm says."""
    text = _OBSERVED.format(job=job.job_id)
    run = new_run(settings.root, settings.name, datetime.now(timezone.utc), settings, text)
    if log is not None:
        run.job_log(job.job_id).symlink_to(log.absolute())
    requested = settings.job.cluster or ""
    SubmissionRecord(requested_cluster=requested, cluster=cluster, observed=job.job_id).save(run)
    write_header(run.journal, policy_of(settings), 0)
    return run

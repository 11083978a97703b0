"""The launcher's surroundings: Slurm's allocation, its time limit, and the run directory as this node sees it."""

import shutil
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from transom_cli.core.costs import Waits
from transom_cli.errors import BadNodes, TransomError, UsageError
from transom_cli.layout import RunDir
from transom_cli.slurm import gpus
from transom_cli.slurm.port import slurm_seconds
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.launcher.plan import Allocation


def allocation_from(environ: Mapping[str, str]) -> Allocation:
    from ClusterShell.NodeSet import NodeSet

    try:
        job_id = int(environ["SLURM_JOB_ID"])
        nodes = tuple(NodeSet(environ["SLURM_JOB_NODELIST"]))
    except (KeyError, ValueError) as error:
        raise UsageError(
            "`transom launch` runs inside a Slurm job's batch script",
            f"missing or unreadable: {error}",
            "submit a script that contains it (`transom run train.sbatch`, or sbatch), or use `transom run -- COMMAND`",
        ) from error
    restart = int(environ.get("SLURM_RESTART_COUNT") or 0)  # unset on a job's first start
    return Allocation(
        job_id,
        restart,
        nodes,
        environ.get("SLURM_CPUS_PER_TASK", ""),
        environ.get("SLURMD_NODENAME", ""),
        gpus=gpus_on_node(environ),
        all_gpus=tuple(gpus.all_of_them(environ)),
        unwatched=gpus.unwatched(environ),
        since=start_time(environ),
    )


def start_time(environ: Mapping[str, str]) -> float:
    """The wall-clock time at which this start of the job began; 0 where Slurm does not say (22.05)."""
    return _number(environ.get("SLURM_JOB_START_TIME", ""))


def limit_of(environ: Mapping[str, str]) -> int | None:
    """The length of this start of the job in seconds; None if Slurm does not say."""
    end = _number(environ.get("SLURM_JOB_END_TIME", ""))
    return int(end - start_time(environ)) if end > start_time(environ) > 0 else None


def end_time(job_id: int) -> str:
    """When the job's time is up, as SLURM_JOB_END_TIME has it, which older releases do not set; "" if unknown."""
    try:
        left = Runner(timeout=10.0).run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%L"]).strip()
        seconds = slurm_seconds(left)
    except (TransomError, ValueError):
        return ""
    return str(int(time.time()) + seconds) if seconds else ""


NO_LIMIT = 30 * 86400  # seconds: a longer time limit is a site's way to have none


def time_is_up(job_id: int) -> float | None:
    """Return when the job's time is up, in seconds since the epoch; None: unknown, or it has no limit."""
    end = _number(end_time(job_id))
    return end if 0 < end - time.time() < NO_LIMIT else None


def queue_waits(job_id: int, partition: str) -> Waits:
    """Return for how long the running jobs of this partition waited in the queue; () if Slurm does not answer.

    Held and dependent jobs wait only from the time at which they were eligible. A site may hide other users' jobs:
    then these are the user's own.
    """
    which = f"--partition={partition}" if partition else f"--jobs={job_id}"
    columns = "--Format=StartTime:|,EligibleTime:|,NumNodes:|"
    try:
        text = Runner(timeout=30.0).run(["squeue", "--noheader", "--states=RUNNING", which, columns])
    except TransomError:
        return ()
    found = []
    for line in sorted(text.split(), reverse=True):
        try:
            started, eligible, nodes, _ = line.split("|")
            waited = (datetime.fromisoformat(started) - datetime.fromisoformat(eligible)).total_seconds()
            found.append((int(nodes), max(0.0, waited)))
        except ValueError:
            continue
    return tuple(found)


def gpus_on_node(environ: Mapping[str, str]) -> int:
    """The number of GPUs that Slurm granted on each node, taken from this one."""
    listed = [name for name in environ.get("SLURM_JOB_GPUS", "").split(",") if name]
    return int(_number(environ.get("SLURM_GPUS_ON_NODE", ""))) or len(listed)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def require_commands(which: Callable[[str], str | None] = shutil.which) -> str:
    """Check for Slurm's commands. A launcher without scontrol still watches and relaunches.

    Returns what will be missing, for a person; "" if nothing. Raises UsageError: the training cannot be started.
    """
    if which("srun") is None:
        raise UsageError(
            "`transom launch` needs Slurm's srun, and it is not here",
            "it is not on the PATH of the batch script: does the whole script run inside a container?",
            "put the training alone into the container: `--container-image`, or `--apptainer`",
        )
    if which("scontrol") is None:
        return "scontrol is not here: without an operator this job is not requeued, and no node is given back"
    return ""


def require_run_dir(run: RunDir) -> None:
    try:
        run.settings.stat()
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        why = "its run.toml is not there" if missing else f"its run.toml cannot be seen ({error.strerror})"
        raise BadNodes(
            f"The run directory `{run.path}` is not visible on node {socket.gethostname()}",
            f"{why}; the run directory must be on a file system that every node mounts",
            "Set `root` to a folder on a shared file system, and submit again.",
        ) from error


EARLY = 60.0  # seconds by which Slurm may warn too early


def warning_due(environ: Mapping[str, str], before: int, now: float, *, by_slurm: bool = True) -> float | None:
    """Return when this launcher has to warn itself before the time limit.

    While the batch script prepares the job and the launcher's modules load, Slurm's USR2 is ignored, since it would end
    the script. A launcher that starts only then has to warn itself.

    Args:
        before: seconds before the end at which the warning is due.
        now: wall-clock time.
        by_slurm: Slurm warns. A user's own script requests no warning, so its launchers always warn themselves.

    Returns:
        Seconds until then. None if Slurm's warning cannot have come yet, none is wanted, or Slurm does not say when the
        time is up (SLURM_JOB_END_TIME is newer than 22.05).
    """
    try:
        end = float(environ["SLURM_JOB_END_TIME"])
    except (KeyError, ValueError):
        return None
    moment = end - before
    earliest = moment - EARLY if by_slurm else 0.0
    if not before or not earliest <= now < end:  # beyond the end: this node's clock is wrong
        return None
    return max(0.0, moment - now)

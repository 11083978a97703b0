"""Run Slurm's commands: no shell, a deadline, a clean environment, and errors by kind. The only place that does."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import SlurmUnreachable, TransomError
from transom_cli.inherited import rank_variables
from transom_cli.slurm.parse import clean
from transom_cli.slurm.port import NoSuchJob, SlurmDenied, SlurmRefused, SlurmUnknown, cluster_command

PACKAGES = "slurm-client (Debian, Ubuntu) or slurm (Fedora, RHEL)"
# Slurm's messages (slurm_errno.c and the commands themselves), by what they mean to a caller.
_UNKNOWN = re.compile(
    r"unable to contact slurm|socket timed out|connection refused|connection timed out|connect failure"
    r"|communication connection failure|zero bytes were transmitted|message receive failure"
    r"|message send failure|slurm backup controller in standby|munge (?:encode|decode) failed|authentication error"
    r"|insane message length|header lengths are longer|incompatible versions|unexpected message received"
    r"|slurm_persist_conn|dbd?.*connect|unable to establish a? ?configuration|could not establish a configuration"
    r"|unable to process configuration file"
    r"|temporarily unable|slurmctld.*not (?:running|responding)|connection reset|resource temporarily unavailable"
    r"|accounting storage is disabled|talking to the database|can't be reached now",
    re.IGNORECASE,
)
_DENIED = re.compile(r"invalid user id|access/permission denied|access denied|user not permitted", re.IGNORECASE)
_NO_CONF = re.compile(r"could not establish a? ?configuration|unable to establish a? ?configuration", re.IGNORECASE)
_NO_CLUSTER = re.compile(r"No cluster '|invalid entry for --cluster", re.IGNORECASE)
_SEARCHED = 4096  # last characters of an error message
_NO_JOB = re.compile(r"invalid job id specified", re.IGNORECASE)
# These variables would filter or reformat Slurm's output, or, inside another job, give that job's shape to ours.
# SBATCH_* is kept: sites and users set defaults for sbatch there. With SBATCH_WAIT, sbatch would answer only when the
# job ends.
_STRIPPED = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_", "SLURM_", "SLURMD_", "SRUN_", "SBATCH_WAIT")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")


class SlurmTimeout(SlurmUnknown):
    """The command was still running at its deadline and was killed."""


@dataclass(frozen=True)
class Runner:
    """Runs Slurm's commands."""

    timeout: float = 30.0  # seconds for each command
    prefix: tuple[str, ...] = ()  # put before every command line (`sudo -n -u trainer`, or a wrapper of the site)
    env: Mapping[str, str] | None = None  # replaces the caller's environment
    cluster: str = ""  # the name for --clusters, for which Slurm's commands need slurmdbd; "": their default cluster
    umask: int = -1  # replaces the caller's, which sbatch passes on to the job; -1: the caller's

    def run(self, argv: Sequence[str], *, timeout: float | None = None, extra: Mapping[str, str] | None = None) -> str:
        """Return what the command printed.

        Args:
            extra: Slurm's variables that format the output.

        Raises:
            SlurmUnknown, SlurmDenied, NoSuchJob, SlurmRefused: the command failed.
        """
        return self._run(argv, self.environment({"LC_ALL": "C", **(extra or {})}), timeout)

    def submit(self, argv: Sequence[str], extra: Mapping[str, str]) -> str:
        """Like `run`, for sbatch. Its environment becomes the job's, so only `extra` is added and no locale is set."""
        env = self.environment(extra)
        for name in rank_variables(env):  # of an outer launch: the job is no rank of it
            del env[name]
        return self._run(argv, env, None)

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for a Slurm client, without variables that would reformat its output."""
        base = os.environ if self.env is None else self.env
        kept = {key: value for key, value in base.items() if key in _KEPT or not key.startswith(_STRIPPED)}
        return kept | dict(extra)

    def _run(self, argv: Sequence[str], env: Mapping[str, str], timeout: float | None) -> str:
        limit = self.timeout if timeout is None else timeout
        if any("\0" in part for part in argv):
            raise SlurmRefused(f"Cannot run {argv[0]}", "an argument contains a NUL byte")
        there = [f"--clusters={self.cluster}"] if self.cluster else []
        try:
            process = subprocess.Popen(
                [*self.prefix, argv[0], *there, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                umask=self.umask,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise SlurmUnreachable(
                f"Slurm's command `{argv[0]}` was not found",
                f"no directory in PATH contains `{argv[0]}`",
                f"install {PACKAGES}, or run this on a host where `which {argv[0]}` finds it\n"
                "without a cluster: `transom sandbox up` starts a small one on this machine",
            ) from error
        except OSError as error:
            raise SlurmUnknown(
                f"Slurm's command `{argv[0]}` could not be started", str(error), "transom doctor"
            ) from error
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as expired:
            raise SlurmTimeout(
                f"Slurm did not answer `{argv[0]}` within {limit:g} s",
                clean(_text(expired.stderr)),
                _ping(self.cluster),
            ) from expired
        finally:
            _end_group(process)
        if process.returncode != 0:
            raise classify(argv, process.returncode, _text(out), _text(err), self.cluster)
        return _text(out)


def _ping(cluster: str) -> str:
    """Say how to find out whether Slurm answers; in a shell that uses a sandbox, how to start that again."""
    ping, conf = cluster_command("scontrol ping", cluster), os.environ.get("SLURM_CONF", "")
    in_sandbox = bool(conf) and Path(conf).with_name("sandbox.json").exists()
    return f"{ping}\nif the sandbox is down: transom sandbox up" if in_sandbox else ping


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Leave no process of the command behind, neither at the deadline nor on Ctrl-C."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def classify(argv: Sequence[str], code: int, out: str, err: str, cluster: str = "") -> TransomError:
    """Return the error for a failed command, by Slurm's message."""
    words = clean(err) or clean(out) or f"(nothing; exit status {code})"
    command = " ".join(argv[:2] if argv[0] == "scontrol" else argv[:1])
    what, ping = f"Slurm refused `{command}`", _ping(cluster)
    if code < 0:
        return SlurmUnknown(f"`{command}` was killed by signal {-code}", words, ping)
    if _DENIED.search(words):
        return SlurmDenied(what, f"Slurm said: {words}", "ask an administrator of the cluster")
    if _NO_JOB.search(words):
        job_id = next((word for word in argv[1:] if word.isdecimal()), "JOBID")
        now, ended = cluster_command("squeue --me", cluster), cluster_command(f"sacct -D -j {job_id}", cluster)
        hint = f"`{now}` lists your jobs, `{ended}` one that has ended, if the cluster has accounting"
        return NoSuchJob("Slurm does not know this job", f"Slurm said: {words}", hint)
    if _UNKNOWN.search(words[-_SEARCHED:]):
        return SlurmUnknown(f"Slurm did not answer `{command}`", f"Slurm said: {words}", _hint(words, ping))
    return SlurmRefused(what, f"Slurm said: {words}", _hint(words, ping) if _NO_CLUSTER.search(words) else "")


def _hint(words: str, ping: str) -> str:
    if _NO_CLUSTER.search(words):
        where = "`sacctmgr show clusters` lists the clusters; the name comes from --clusters (-M),"
        return f"{where}\njob.cluster, the script, SBATCH_CLUSTERS or SLURM_CLUSTERS"
    if _NO_CONF.search(words):
        where = "no slurm.conf was found: use a login node, or `export SLURM_CONF=/path/to/slurm.conf`"
        return f"{where}\nwithout a cluster: `transom sandbox up` starts a small one on this machine"
    return ping


def read_cluster_name(runner: Runner) -> str:
    """Return the ClusterName of the controller that answers, or "" if it reports none. Raises the port's errors."""
    text = runner.run(["scontrol", "show", "config"])
    rows = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for name, _, value in rows if name.strip() == "ClusterName"), "")

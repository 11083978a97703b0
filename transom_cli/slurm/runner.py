"""The only place that starts Slurm's commands: no shell, a deadline, a clean environment, errors by kind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import SlurmUnreachable, TransomError
from transom_cli.slurm.parse import clean
from transom_cli.slurm.port import NoSuchJob, SlurmDenied, SlurmRefused, SlurmUnknown

PACKAGES = "slurm-client (Debian, Ubuntu) or slurm (Fedora, RHEL)"
# Slurm's own words (slurm_errno.c, and the commands' own messages), by what they mean to a caller.
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
_LOOKED_AT = 4096  # characters of an error's words, the last ones
_NO_JOB = re.compile(r"invalid job id specified", re.IGNORECASE)
# These would filter or reshape answers behind our back, or, started inside another job, hand that job's
# shape to ours. SBATCH_* stays: it is how a site or a user sets defaults for sbatch.
_STRIPPED = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_", "SLURM_", "SLURMD_", "SRUN_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")


class SlurmTimeout(SlurmUnknown):
    """The command was still running at its deadline, and was killed."""


@dataclass(frozen=True)
class Runner:
    """Runs Slurm's commands.

    `timeout` is in seconds, for each command. `prefix` is put before every argv (`sudo -n -u trainer`, or a
    wrapper of the site). `env` replaces the caller's environment. `cluster` is asked for by name (--clusters, for which
    Slurm's commands need slurmdbd); "": the one that they speak to.
    """

    timeout: float = 30.0
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cluster: str = ""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        cwd: Path | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> str:
        """What the command printed; SlurmUnknown, SlurmDenied, NoSuchJob or SlurmRefused when it failed.

        `extra`: variables of Slurm's own by which the command shapes its answer.
        """
        return self._run(argv, self.environment({"LC_ALL": "C", **(extra or {})}), timeout, cwd)

    def submit(self, argv: Sequence[str], extra: Mapping[str, str], cwd: Path | None) -> str:
        """As `run`, for sbatch, whose environment becomes the job's: only `extra` is added, no locale set."""
        return self._run(argv, self.environment(extra), None, cwd)

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """What a process that speaks to Slurm gets: nothing that would reshape its answers."""
        base = os.environ if self.env is None else self.env
        kept = {key: value for key, value in base.items() if key in _KEPT or not key.startswith(_STRIPPED)}
        return kept | dict(extra)

    def _run(self, argv: Sequence[str], env: Mapping[str, str], timeout: float | None, cwd: Path | None) -> str:
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
                cwd=cwd,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            if cwd is not None and not cwd.is_dir():
                raise SlurmRefused(f"Cannot run {argv[0]} in {cwd}", "there is no such directory") from error
            raise SlurmUnreachable(
                f"Slurm's command `{argv[0]}` is not here",
                str(error),
                f"install {PACKAGES}, or run this where `which {argv[0]}` finds it",
            ) from error
        except OSError as error:
            raise SlurmUnknown(f"Slurm's command `{argv[0]}` could not be started", str(error)) from error
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as expired:
            raise SlurmTimeout(
                f"Slurm did not answer `{argv[0]}` within {limit:g} s",
                clean(_text(expired.stderr)),
                "scontrol ping",
            ) from expired
        finally:
            _end_group(process)
        if process.returncode != 0:
            raise classify(argv, process.returncode, _text(out), _text(err))
        return _text(out)


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """After this no process of the command is left: not at the deadline, not on Ctrl-C."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def classify(argv: Sequence[str], code: int, out: str, err: str) -> TransomError:
    """The error for a failed command, by Slurm's words in it."""
    words = clean(err) or clean(out) or f"(nothing; exit status {code})"
    command = " ".join(argv[:2] if argv[0] == "scontrol" else argv[:1])
    what = f"Slurm refused `{command}`"
    if code < 0:
        return SlurmUnknown(f"`{command}` was killed by signal {-code}", words, "scontrol ping")
    if _DENIED.search(words):
        return SlurmDenied(what, f"Slurm said: {words}", "ask an administrator of the cluster")
    if _NO_JOB.search(words):
        return NoSuchJob("Slurm does not know this job (any more)", f"Slurm said: {words}", "sacct -D -j JOBID")
    if _UNKNOWN.search(words[-_LOOKED_AT:]):
        return SlurmUnknown(f"Slurm did not answer `{command}`", f"Slurm said: {words}", _what_now(words))
    return SlurmRefused(what, f"Slurm said: {words}", _what_now(words) if _NO_CLUSTER.search(words) else "")


def _what_now(words: str) -> str:
    if _NO_CLUSTER.search(words):
        told = "`sacctmgr show clusters` lists those that Slurm's database knows; the name comes from --clusters (-M),"
        return f"{told}\njob.cluster, the script, SBATCH_CLUSTERS or SLURM_CLUSTERS"
    if _NO_CONF.search(words):
        return "no slurm.conf is found from here: go to a login node, or `export SLURM_CONF=/path/to/slurm.conf`"
    return "scontrol ping"

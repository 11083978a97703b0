"""Paths of everything in a run directory, and the version of its format. Pure; see docs/architecture.md.

Every file has exactly one writer. State is keyed by attempt, never by job ID alone: a requeued job keeps its ID.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN_FORMAT = 2  # increase it when this transom can no longer read the files of runs that older versions created
JOB_LOG = "slurm-%j.log"  # sbatch replaces %j with the job ID
RUN_ID = re.compile(r"(?P<name>[A-Za-z0-9._-]+)-(?P<stamp>\d{8}-\d{6})-[0-9a-f]{4}")  # the stamp is in UTC


def attempt_name(job_id: int, restart: int) -> str:
    """Return `<job ID>.<restart count>`, the name of one Slurm start of the job. An unset count is 0."""
    return f"{job_id}.{restart}"


def parse_attempt(name: str) -> tuple[int, int]:
    job, _, restart = name.partition(".")
    return int(job), int(restart)


class At:
    """A file or folder in a directory, as an attribute of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, directory: AttemptDir | RunDir, of: object = None) -> Path:
        return directory.path / self._name


@dataclass(frozen=True)
class AttemptDir:
    path: Path

    launcher_journal = At("launcher.jsonl")
    # The launcher's sign of life: a counter that it rewrites once a second while it handles faults.
    launcher_alive = At("launcher.alive")
    # `<node>.beats` (the heartbeat table), and `<node>` with .endpoint, .jsonl, .memory, .spent, .gpus, .nccl.
    nodes = At("nodes")
    heartbeats = At("heartbeats")  # all heartbeat tables in one file, from the launcher (heartbeat.aggregate)
    # Addresses that may connect to the attempt's agents, and where each agent listens, as JSON. The launcher writes it
    # before they start.
    peers = At("peers.json")
    # The random part of the names of the nodes' heartbeat directories (`heartbeat.paths`); private.
    beats_suffix = At("beats.suffix")
    reports = At("reports.json")  # anomalies of the training, as JSON, from the launcher (supervise.launcher.anomalies)
    # What silent corruption is suspected, and which step is to be repeated, as JSON, from the launcher.
    doubt = At("doubt.json")
    saves = At("saves.json")  # whether the training's saves fail, as JSON, from rank 0 (ckpt.save.status)
    # Steps and their times, one JSON object per line, from the launcher.
    progress = At("progress.jsonl")
    agents_log = At("agents.log")  # the output of the agents' step, from srun
    outcome = At("outcome.json")
    modules = At("modules.json")  # the modules that rank 0 has imported, as JSON, for standbys (heartbeat.standby)
    standbys = At("standbys.json")  # how many standbys are ready on each node, as JSON; absent if there are none
    standby_log = At("standby.log")  # what standbys print before their launch begins
    # Results of health checks of the attempt's nodes (preflight, incidents), as JSON, from the launcher.
    health = At("health")
    preflight = At("health/preflight.progress")  # how many nodes the preflight has checked so far, as JSON

    @property
    def name(self) -> str:
        return self.path.name

    def endpoint(self, node: str) -> Path:
        """The address of the node's agent, as JSON."""
        return self.nodes / f"{node}.endpoint"

    def findings(self, node: str) -> Path:
        """Findings of the node's agent about rank logs and host: one JSON object per line."""
        return self.nodes / f"{node}.jsonl"

    def memory(self, node: str) -> Path:
        """The content of the node's snapshot daemon, as JSON (ckpt.snapshot.status_file)."""
        return self.nodes / f"{node}.memory"

    def spent(self, node: str) -> Path:
        """What the node's ranks spend their steps on, as JSON, from the agent (agent.step_breakdown)."""
        return self.nodes / f"{node}.spent"

    def gpus(self, node: str) -> Path:
        """The readings of the node's GPUs, as JSON, from the agent (health.gpu.status)."""
        return self.nodes / f"{node}.gpus"

    def nccl(self, node: str) -> Path:
        """Which ranks the others wait for by NCCL's RAS, as JSON, from the agent (supervise.agent.nccl_behind)."""
        return self.nodes / f"{node}.nccl"

    def samples(self, launch: int) -> Path:
        """Which samples its steps use, one JSON object per line, from rank 0 (ckpt.samples)."""
        return self.path / "samples" / f"{launch}.jsonl"

    def logs(self, launch: int) -> Path:
        """Rank logs of one launch: `rank-<n>.log`."""
        return self.path / "logs" / str(launch)

    def exits(self, launch: int) -> Path:
        """How each rank of one launch ended: `rank-<n>.json`, from the rank's own wrapper."""
        return self.path / "exits" / str(launch)

    def hosts(self, launch: int) -> Path:
        """The node of each task of one launch, for srun, if the ranks are not in Slurm's order of nodes."""
        return self.path / "hosts" / str(launch)

    def resume(self, launch: int, folder: int) -> Path:
        """The checkpoint that one launch resumes from, as JSON, from rank 0 (ckpt.seal). folder: CRC of its folder."""
        return self.path / "resume" / f"{launch}-{folder:08x}.json"

    def evidence(self, incident: str) -> Path:
        return self.path / "evidence" / incident


@dataclass(frozen=True)
class RunDir:
    path: Path

    settings = At("run.toml")  # run.toml: the settings, frozen at submission
    script = At("job.sbatch")  # the sbatch script exactly as it was submitted
    # How the script was submitted (options, arguments, folder), so that a successor gets the same.
    submission = At("submission.json")
    journal = At("operator.jsonl")
    # A run that is over in one small file, for `transom list`; from the operator, or from the first listing.
    summary = At("summary.json")
    # The operator's sign of life: host, PID, epoch. It rewrites the file while it is alive.
    lease = At("operator.lease")
    epochs = At("epochs")  # one empty file per epoch, created with O_EXCL: its creator is the operator of that epoch
    # The secret by which launcher and agents of this run authenticate each other; mode 0600.
    secret = At("agent.secret")
    notified = At("notified")  # the messages sent to each target (`notify.delivery`): one file per operator epoch
    operator_log = At("operator.log")
    operator_script = At("operator.sbatch")  # the batch script of an operator that runs as a Slurm job
    # The ID of the Slurm job that was last submitted as the operator, from its submitter.
    operator_job = At("operator.job")
    templates = At("templates.json")  # log lines of the healthy run, from the operator at its end (supervise.past_runs)
    requests = At("requests")  # users' requests to the operator (stop), one file per request
    request_address = At("operator.socket")  # where users on call reach the operator, as JSON, from the operator
    attempts = At("attempts")
    checkpoints = At("checkpoints")

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def needed(self) -> tuple[Path, ...]:
        """The files without which no further job of the run can be submitted."""
        return self.settings, self.submission, self.script

    def job_log(self, job_id: int) -> Path:
        """The batch script's output, written by Slurm: all attempts of that job, one after the other."""
        return self.path / JOB_LOG.replace("%j", str(job_id))

    def saved(self, checkpoints: Path) -> Path:
        """Record that the training with this checkpoint directory has saved, as JSON (ckpt.saved_marker)."""
        name = str(checkpoints).encode("utf-8", "surrogateescape")
        return self.path / "saved" / f"{zlib.crc32(name):08x}.json"

    def attempt(self, job_id: int, restart: int) -> AttemptDir:
        return AttemptDir(self.attempts / attempt_name(job_id, restart))


def other_format(run: RunDir, header: Mapping[str, object], version: str) -> tuple[str, str, str]:
    """Explain that this transom cannot read the run: what happened, why, and what to do.

    header: the first record of the operator's journal. version: the version of this transom.
    """
    found = header.get("format", header.get("schema"))
    newer = isinstance(found, int) and found > RUN_FORMAT
    creator = f"transom {header['transom']}" if header.get("transom") else "the transom that created it"
    return (
        f"The run `{run.run_id}` was created by {'a newer' if newer else 'an older, incompatible'} version of transom",
        f"its files have format {found}, and transom {version} reads format {RUN_FORMAT}",
        f"use {creator} for this run, or cancel its job and start a new run:\n{resuming(run)}",
    )


def resuming(run: RunDir) -> str:
    """Explain how a new run continues the training of this one."""
    return f"with `--set checkpoint.directory={run.checkpoints}` it resumes from the checkpoints, if they are there"

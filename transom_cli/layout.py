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


@dataclass(frozen=True)
class AttemptDir:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def launcher_journal(self) -> Path:
        return self.path / "launcher.jsonl"

    @property
    def launcher_alive(self) -> Path:
        """The launcher's sign of life: a counter that it rewrites once a second while it handles faults."""
        return self.path / "launcher.alive"

    @property
    def nodes(self) -> Path:
        """`<node>.beats` (the heartbeat table), and `<node>` with .endpoint, .jsonl, .memory, .spent, .gpus, .nccl."""
        return self.path / "nodes"

    @property
    def heartbeats(self) -> Path:
        """All heartbeat tables in one file, from the launcher (heartbeat.aggregate)."""
        return self.path / "heartbeats"

    @property
    def peers(self) -> Path:
        """Addresses that may connect to the attempt's agents, and where each agent listens, as JSON.

        The launcher writes it before they start.
        """
        return self.path / "peers.json"

    @property
    def beats_suffix(self) -> Path:
        """The random part of the names of the nodes' heartbeat directories (`heartbeat.paths`); private."""
        return self.path / "beats.suffix"

    def endpoint(self, node: str) -> Path:
        """The address of the node's agent, as JSON."""
        return self.nodes / f"{node}.endpoint"

    def findings(self, node: str) -> Path:
        """Findings of the node's agent about rank logs and host: one JSON object per line."""
        return self.nodes / f"{node}.jsonl"

    def memory(self, node: str) -> Path:
        """The content of the node's snapshot daemon, as JSON (ckpt.memory.shown)."""
        return self.nodes / f"{node}.memory"

    def spent(self, node: str) -> Path:
        """What the node's ranks spend their steps on, as JSON, from the agent (beats.spent)."""
        return self.nodes / f"{node}.spent"

    def gpus(self, node: str) -> Path:
        """The readings of the node's GPUs, as JSON, from the agent (health.gpu.shown)."""
        return self.nodes / f"{node}.gpus"

    def nccl(self, node: str) -> Path:
        """Which ranks the others wait for by NCCL's RAS, as JSON, from the agent (supervise.agent.nccl_behind)."""
        return self.nodes / f"{node}.nccl"

    @property
    def reports(self) -> Path:
        """Anomalies of the training, as JSON, from the launcher (supervise.launcher.anomalies)."""
        return self.path / "reports.json"

    @property
    def doubt(self) -> Path:
        """What silent corruption is suspected, and which step is to be repeated, as JSON, from the launcher."""
        return self.path / "doubt.json"

    @property
    def saves(self) -> Path:
        """Whether the training's saves fail, as JSON, from rank 0 (ckpt.failing)."""
        return self.path / "saves.json"

    @property
    def progress(self) -> Path:
        """Steps and their times, one JSON object per line, from the launcher (supervise.progress)."""
        return self.path / "progress.jsonl"

    def samples(self, launch: int) -> Path:
        """Which samples its steps use, one JSON object per line, from rank 0 (ckpt.samples)."""
        return self.path / "samples" / f"{launch}.jsonl"

    @property
    def agents_log(self) -> Path:
        """The output of the agents' step, from srun."""
        return self.path / "agents.log"

    @property
    def outcome(self) -> Path:
        return self.path / "outcome.json"

    def logs(self, launch: int) -> Path:
        """Rank logs of one launch: `rank-<n>.log`."""
        return self.path / "logs" / str(launch)

    @property
    def modules(self) -> Path:
        """The modules that rank 0 has imported, as JSON, for standbys (heartbeat.standby)."""
        return self.path / "modules.json"

    @property
    def standbys(self) -> Path:
        """How many standbys are ready on each node, as JSON; absent if there are none."""
        return self.path / "standbys.json"

    @property
    def standby_log(self) -> Path:
        """What standbys print before their launch begins."""
        return self.path / "standby.log"

    def exits(self, launch: int) -> Path:
        """How each rank of one launch ended: `rank-<n>.json`, from the rank's own wrapper."""
        return self.path / "exits" / str(launch)

    def hosts(self, launch: int) -> Path:
        """The node of each task of one launch, for srun, if the ranks are not in Slurm's order of nodes."""
        return self.path / "hosts" / str(launch)

    def resume(self, launch: int, folder: int) -> Path:
        """The checkpoint that one launch resumes from, as JSON, from rank 0 (ckpt.seal). folder: CRC of its folder."""
        return self.path / "resume" / f"{launch}-{folder:08x}.json"

    @property
    def health(self) -> Path:
        """Results of health checks of the attempt's nodes (preflight, incidents), as JSON, from the launcher."""
        return self.path / "health"

    @property
    def preflight(self) -> Path:
        """The number of nodes that the preflight has checked so far, as JSON, from the launcher."""
        return self.health / "preflight.progress"

    def evidence(self, incident: str) -> Path:
        return self.path / "evidence" / incident


@dataclass(frozen=True)
class RunDir:
    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def settings(self) -> Path:
        """run.toml: the settings, frozen at submission."""
        return self.path / "run.toml"

    @property
    def script(self) -> Path:
        """The sbatch script exactly as it was submitted."""
        return self.path / "job.sbatch"

    @property
    def submission(self) -> Path:
        """How the script was submitted (options, arguments, folder), so that a successor gets the same."""
        return self.path / "submission.json"

    @property
    def journal(self) -> Path:
        return self.path / "operator.jsonl"

    @property
    def summary(self) -> Path:
        """A run that is over in one small file, for `transom list`; from the operator, or from the first listing."""
        return self.path / "summary.json"

    @property
    def lease(self) -> Path:
        """The operator's sign of life: host, PID, epoch. It rewrites the file while it is alive."""
        return self.path / "operator.lease"

    @property
    def epochs(self) -> Path:
        """One empty file per epoch, created with O_EXCL: its creator is the operator of that epoch."""
        return self.path / "epochs"

    @property
    def secret(self) -> Path:
        """The secret by which launcher and agents of this run authenticate each other; mode 0600."""
        return self.path / "agent.secret"

    def job_log(self, job_id: int) -> Path:
        """The batch script's output, written by Slurm: all attempts of that job, one after the other."""
        return self.path / JOB_LOG.replace("%j", str(job_id))

    @property
    def notified(self) -> Path:
        """The messages sent to each target (`notify.delivery`): one file per operator epoch."""
        return self.path / "notified"

    @property
    def operator_log(self) -> Path:
        return self.path / "operator.log"

    @property
    def operator_script(self) -> Path:
        """The batch script of an operator that runs as a Slurm job."""
        return self.path / "operator.sbatch"

    @property
    def operator_job(self) -> Path:
        """The ID of the Slurm job that was last submitted as the operator, from its submitter."""
        return self.path / "operator.job"

    @property
    def templates(self) -> Path:
        """Log lines of the healthy run, from the operator at its end (supervise.pastlogs)."""
        return self.path / "templates.json"

    @property
    def requests(self) -> Path:
        """Users' requests to the operator (stop), one file per request."""
        return self.path / "requests"

    @property
    def request_address(self) -> Path:
        """Where users on call reach the operator, as JSON, from the operator."""
        return self.path / "operator.socket"

    def saved(self, checkpoints: Path) -> Path:
        """Record that the training with this checkpoint directory has saved, as JSON, from rank 0 (ckpt.recorded)."""
        name = str(checkpoints).encode("utf-8", "surrogateescape")
        return self.path / "saved" / f"{zlib.crc32(name):08x}.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

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

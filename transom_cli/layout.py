"""Where everything in a run directory lives. Pure path arithmetic; see docs/architecture.md, "The run directory".

Every file has exactly one writer. What is keyed by a job id is keyed by
attempt, since a requeued job keeps its job id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

JOB_LOG = "slurm-%j.log"  # as sbatch takes it
RUN_ID = re.compile(r"(?P<name>[A-Za-z0-9._-]+)-(?P<stamp>\d{8}-\d{6})-[0-9a-f]{4}")  # the stamp in UTC


def attempt_name(job_id: int, restart: int) -> str:
    """`<job id>.<restart count>`: one Slurm start of the job. The count is 0 where Slurm leaves it unset."""
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
        """The launcher's sign of life: a count, rewritten once a second by one that handles faults itself."""
        return self.path / "launcher.alive"

    @property
    def nodes(self) -> Path:
        """`<node>.beats` (the node's beat table), `<node>.endpoint` (where its agent listens), `<node>.jsonl`,
        `<node>.memory`, `<node>.spent`, `<node>.gpus`."""
        return self.path / "nodes"

    @property
    def peers(self) -> Path:
        """Addresses that may connect to the attempt's agents, written by the launcher before they start."""
        return self.path / "peers.json"

    def endpoint(self, node: str) -> Path:
        """Where the node's agent listens, as JSON."""
        return self.nodes / f"{node}.endpoint"

    def findings(self, node: str) -> Path:
        """What the node's agent found in the rank logs and about the host: one JSON object a line."""
        return self.nodes / f"{node}.jsonl"

    def memory(self, node: str) -> Path:
        """What the node's memory holder holds, as JSON (ckpt.memory.shown)."""
        return self.nodes / f"{node}.memory"

    def spent(self, node: str) -> Path:
        """What the node's ranks spend their steps on, by its agent, as JSON (beats.spent)."""
        return self.nodes / f"{node}.spent"

    def gpus(self, node: str) -> Path:
        """What the node's GPUs tell, by its agent, as JSON (health.gpu.shown)."""
        return self.nodes / f"{node}.gpus"

    @property
    def reports(self) -> Path:
        """What the launcher finds odd about the training, as JSON (supervise.launcher.reporting)."""
        return self.path / "reports.json"

    @property
    def progress(self) -> Path:
        """Steps and when they were done, one JSON object a line, by the launcher (supervise.progress)."""
        return self.path / "progress.jsonl"

    @property
    def agents_log(self) -> Path:
        """What the step of the node agents printed, by srun."""
        return self.path / "agents.log"

    @property
    def outcome(self) -> Path:
        return self.path / "outcome.json"

    def logs(self, launch: int) -> Path:
        """Rank logs of one launch: `rank-<n>.log`."""
        return self.path / "logs" / str(launch)

    def exits(self, launch: int) -> Path:
        """How each rank of one launch ended: `rank-<n>.json`, written by the rank's own wrapper."""
        return self.path / "exits" / str(launch)

    @property
    def health(self) -> Path:
        """What examinations of the attempt's nodes found, as JSON, by the launcher: preflight, or an incident's."""
        return self.path / "health"

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
        """run.toml: what was asked for, frozen at submission."""
        return self.path / "run.toml"

    @property
    def script(self) -> Path:
        """The sbatch script exactly as it was submitted."""
        return self.path / "job.sbatch"

    @property
    def submission(self) -> Path:
        """How the script was submitted (options, arguments, folder), so that a successor is submitted alike."""
        return self.path / "submission.json"

    @property
    def journal(self) -> Path:
        return self.path / "operator.jsonl"

    @property
    def lease(self) -> Path:
        """The live operator's sign of life: host, pid, epoch; rewritten while it lives."""
        return self.path / "operator.lease"

    @property
    def epochs(self) -> Path:
        """One empty file an epoch, made with O_EXCL: who makes it is the operator of that epoch."""
        return self.path / "epochs"

    @property
    def secret(self) -> Path:
        """By which launcher and agents of this run know each other; 0600."""
        return self.path / "agent.secret"

    def job_log(self, job_id: int) -> Path:
        """The batch script's output, which Slurm writes: of all attempts of that job, one after the other."""
        return self.path / JOB_LOG.replace("%j", str(job_id))

    @property
    def told(self) -> Path:
        """What was told to whom (telling.ledger): one file an epoch, written by that operator."""
        return self.path / "told"

    @property
    def operator_log(self) -> Path:
        return self.path / "operator.log"

    @property
    def operator_script(self) -> Path:
        """Where the operator is a job of its own."""
        return self.path / "operator.sbatch"

    @property
    def operator_job(self) -> Path:
        """The number of the Slurm job that was last submitted to be the operator, by who submitted it."""
        return self.path / "operator.job"

    @property
    def templates(self) -> Path:
        """What the run printed while all was well, by the operator at its end (supervise.pastlogs)."""
        return self.path / "templates.json"

    @property
    def requests(self) -> Path:
        """What people ask of the operator (stop), one file a request."""
        return self.path / "requests"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def attempt(self, job_id: int, restart: int) -> AttemptDir:
        return AttemptDir(self.attempts / attempt_name(job_id, restart))

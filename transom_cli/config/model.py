"""Every setting of a run, with its default and one line on what it means.

The descriptions are the one source of `docs/settings.md` and of help texts. Times are in seconds unless a line says
otherwise. A settings object never changes; `load` makes it, `freeze` writes it into the run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from transom_cli.config.notify import SecretsPath, Targets
from transom_cli.config.places import default_root
from transom_cli.config.policy import Rules
from transom_cli.config.slurmtime import slurm_seconds
from transom_cli.config.values import (
    CheckNames,
    Flags,
    Line,
    Lines,
    OptionalLine,
    OptionalMemory,
    OptionalText,
    OptionalTime,
    Text,
    Texts,
    Thresholds,
    Variables,
    empty_as_unset,
)

WARNING = 120  # seconds before the time limit
OptionalPath = Annotated[Path | None, BeforeValidator(empty_as_unset)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Job(Section):
    """What is asked of Slurm, and the batch script's surroundings."""

    partition: OptionalLine = Field(default=None, description="Slurm partition (sbatch --partition)")
    account: OptionalLine = Field(default=None, description="account to charge (sbatch --account)")
    qos: OptionalLine = Field(default=None, description="quality of service (sbatch --qos)")
    reservation: OptionalLine = Field(default=None, description="reservation to run in (sbatch --reservation)")
    constraint: OptionalLine = Field(default=None, description="node features asked for (sbatch --constraint)")
    cluster: OptionalLine = Field(
        default=None,
        description="the cluster, of several (sbatch --clusters); unset: the one Slurm's commands speak to",
    )
    time: OptionalTime = Field(default=None, description="time limit of one attempt, as sbatch --time takes it")
    mem: OptionalMemory = Field(default=None, description="memory per node, as sbatch --mem takes it")
    cpus_per_task: int | None = Field(default=None, ge=1, description="CPUs per task (under torchrun: per node)")
    nodes: int = Field(default=1, ge=1, description="number of nodes")
    spares: int = Field(
        default=0, ge=0, description="further nodes that stand by, allocated, to take the place of one that fails"
    )
    gpus_per_node: int = Field(default=0, ge=0, description="GPUs per node (sbatch --gres=gpu:N)")
    tasks_per_node: int | None = Field(
        default=None, ge=1, description="ranks per node; unset: one per GPU, or one on nodes without GPUs"
    )
    exclude: Lines = Field(default=(), description="nodes that the job must not use, as Slurm node lists")
    chdir: OptionalPath = Field(default=None, description="working directory; unset: where transom run was called")
    setup: Texts = Field(default=(), description="shell lines run in the batch script first (module load, source ...)")
    env: Variables = Field(default={}, description="environment variables of the job; layers are joined by name")
    sbatch: Flags = Field(default=(), description='further sbatch flags, each one whole, as "--switches=1"')
    signal_before: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="seconds before the time limit of the warning (USR2); unset: 120, or a quarter of `time`; 0: never",
    )

    @model_validator(mode="after")
    def _warned_after_the_start(self) -> Job:
        limit = slurm_seconds(self.time)
        if limit is not None and (self.signal_before or 0) >= limit:
            raise ValueError(
                f"signal_before ({self.signal_before} s) is not below the time limit of {limit} s (time {self.time}): "
                "the job would be warned at its very start; raise time, or leave signal_before out"
            )
        return self

    @property
    def warn_before(self) -> int:
        """Seconds before the time limit at which Slurm warns; 0: never. Of a short limit, no more than a quarter."""
        if self.signal_before is not None:
            return self.signal_before
        return min(WARNING, (slurm_seconds(self.time) or 4 * WARNING) // 4)


class Container(Section):
    """A container of the training step only, by pyxis/enroot or by Apptainer."""

    image: Line = Field(
        default="", description="image, as srun --container-image or apptainer exec takes it; empty: no container"
    )
    runtime: Literal["pyxis", "apptainer"] = Field(
        default="pyxis", description="pyxis: srun --container-image; apptainer: each rank behind `apptainer exec`"
    )
    mounts: Lines = Field(default=(), description="mounts, each as SRC:DST[:flags]")
    args: Flags = Field(
        default=(), description='further flags of the runtime, as "--no-container-mount-home" or "--cleanenv"'
    )

    @model_validator(mode="after")
    def _nothing_without_an_image(self) -> Container:
        if not self.image and (self.mounts or self.args):
            raise ValueError("mounts or args are given, but no image")
        return self


class Launch(Section):
    """How the ranks are started on the nodes."""

    kind: Literal["srun", "torchrun"] = Field(
        default="srun", description="srun: Slurm starts every rank; torchrun: Slurm starts one torchrun per node"
    )
    srun_args: Flags = Field(
        default=(), description='further flags of the training step\'s srun, as "--cpu-bind=cores"'
    )
    torchrun_args: Flags = Field(default=(), description='further flags of torchrun, as "--max-restarts=0"')
    python: Text = Field(
        default_factory=lambda: sys.executable,
        min_length=1,
        description="the interpreter on the nodes that has transom; unset: the one that transom run has",
    )
    container: Container = Field(default_factory=Container, description="container of the training step")


class Detect(Section):
    """When a rank or node counts as hung. All in seconds, but for the factor."""

    factor: float = Field(default=8.0, gt=1, description="a step may last this many times the run's own median step")
    floor: float = Field(default=5.0, gt=0, description="no rank is called hung before this many seconds")
    ceiling: float = Field(default=1800.0, gt=0, description="every rank is called hung after this many seconds")
    first_step: float = Field(default=1800.0, gt=0, description="time allowed from start to the end of the first step")
    checkpoint: float = Field(default=900.0, gt=0, description="time allowed to a step that writes a checkpoint")
    node_silent: float = Field(default=10.0, gt=0, description="a node whose agent is silent this long is suspected")

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> Detect:
        if self.floor > self.ceiling:
            raise ValueError(f"floor ({self.floor:g} s) is above ceiling ({self.ceiling:g} s)")
        return self


class Restart(Section):
    """When and how a failed run is started again."""

    how: Literal["requeue", "resubmit"] = Field(
        default="requeue",
        description="requeue: the same job again, or a new one where Slurm refuses that; resubmit: always a new job",
    )
    max_without_progress: int = Field(
        default=3,
        ge=0,
        description="restarts in a row with no newer checkpoint (without any: no new step) before the run stops",
    )
    backoff: float = Field(
        default=5.0, ge=0, description="wait before the first restart without progress; doubles each time, 300 at most"
    )
    relaunches: int = Field(
        default=3,
        ge=0,
        description="relaunches inside the allocation without progress, for each cause, before a requeue; 0: none",
    )
    leave_drained: bool = Field(
        default=True, description="leave a node that an administrator drains, at a checkpoint of the training"
    )
    release_held: bool = Field(default=False, description="release the job when Slurm requeued it held")


class Isolate(Section):
    """What happens to a node that is to blame."""

    drain: bool = Field(default=True, description="try to drain a bad node; without the right to, it is only excluded")
    drain_command: Texts = Field(
        default=(), description="the site's own drain command; node and reason are added as its last two arguments"
    )
    drain_spool: OptionalPath = Field(
        default=None, description="folder for requests to the site's administrators to drain a node; unset: none"
    )
    max_nodes: int = Field(default=2, ge=0, description="nodes isolated per window, at most (the larger cap counts)")
    max_fraction: float = Field(
        default=0.10,
        ge=0,
        le=1,
        description="share of the job's nodes isolated per window, at most (the larger cap counts)",
    )
    window: float = Field(default=3600.0, gt=0, description="length in seconds of the window of the caps")
    expiry: float = Field(default=3600.0, gt=0, description="seconds after which an exclusion on suspicion alone ends")


class Health(Section):
    """When nodes are examined, and by which checks. `transom check --list` names checks and thresholds."""

    preflight: Literal["quick", "deep", "off"] = Field(
        default="quick", description="examine every node before the first launch of an attempt; deep: minutes each time"
    )
    budget: float = Field(
        default=30.0, gt=0, description="seconds for the quick examination; what comes later is unknown"
    )
    deep: bool = Field(
        default=True, description="examine suspects and their neighbours after a failure that speaks against a node"
    )
    deep_budget: float = Field(default=300.0, gt=0, description="seconds for that deep examination")
    probe: bool = Field(
        default=True, description="compute and send a little on every node, and compare them; needs PyTorch"
    )
    python: OptionalText = Field(
        default=None, description="the interpreter of the probe, which has the job's PyTorch; unset: `launch.python`"
    )
    watch: bool = Field(default=True, description="repeat the cheap checks while the ranks train")
    every: float = Field(default=30.0, ge=5, description="seconds between two of these looks")
    off: CheckNames = Field(default=(), description="checks that are not wanted, by name")
    limits: Thresholds = Field(default={}, description="thresholds other than the default, by name")
    site_checks: OptionalPath = Field(
        default=None, description="folder of the site's own executables (exit codes 0 to 3, as Nagios has them)"
    )


class SlurmCalls(Section):
    """How Slurm is called."""

    timeout: float = Field(default=30.0, gt=0, description="seconds that one Slurm command may take")
    poll: float = Field(default=2.0, gt=0, description="seconds between looks at the job's state while things change")
    poll_max: float = Field(default=30.0, gt=0, description="seconds between looks while nothing changes, at most")

    backend: Literal["auto", "pyslurm", "cli"] = Field(
        default="auto",
        description="the operator's way to Slurm; auto: pyslurm where it fits the cluster's release, else the commands",
    )
    pyslurm_python: OptionalPath = Field(
        default=None, description="a Python that has pyslurm; unset: the one that transom runs on"
    )

    @model_validator(mode="after")
    def _poll_below_max(self) -> SlurmCalls:
        if self.poll > self.poll_max:
            raise ValueError(f"poll ({self.poll:g} s) is above poll_max ({self.poll_max:g} s)")
        return self


class OperatorSection(Section):
    """Where a run's operator lives."""

    where: Literal["login", "job"] = Field(
        default="login", description="login: a process where `transom run` is called; job: a one-core Slurm job"
    )
    partition: OptionalLine = Field(default=None, description="partition of such a job; unset: Slurm's default")
    time: OptionalTime = Field(
        default="1-00:00:00", description="its time limit; before that it hands the run to another such job"
    )
    sbatch: Flags = Field(default=(), description='further sbatch flags of it, each one whole, as "--qos=service"')


class Checkpoint(Section):
    """Where checkpoints live."""

    directory: OptionalPath = Field(default=None, description="directory of the checkpoints; unset: <run>/checkpoints")


class PolicySection(Section):
    """What is done about a failure: `[[policy.rules]]`, explained in docs/policy.md."""

    rules: Rules = Field(
        default=(),
        description="what is done about a failure; the rules of all layers count, a stronger layer's first",
    )


class Notify(Section):
    """Who is told of incidents, holds and ends: `[[notify.targets]]`, explained in docs/notifications.md."""

    targets: Targets = Field(
        default=(), description="who is told; the targets of all layers count, one of the same name is replaced"
    )
    secrets: SecretsPath = Field(
        default=None, description="file of URLs and tokens, mode 0600; unset: secrets.toml beside your own settings"
    )
    per_hour: int = Field(
        default=20, ge=1, le=1000, description="messages that each target gets in an hour; what is more becomes one"
    )
    timeout: float = Field(default=10.0, gt=0, le=60, description="seconds that one message may take to be told")


class Metrics(Section):
    """Numbers for Prometheus (docs/notifications.md). Needs `transom-cli[metrics]`."""

    textfile: OptionalPath = Field(
        default=None, description="folder of node_exporter's textfile collector, for a file of this run; unset: none"
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="port of an HTTP endpoint; unset: none")
    address: Line = Field(
        default="127.0.0.1", min_length=1, description="address that this endpoint listens on, with no password"
    )
    every: float = Field(default=15.0, ge=1, description="seconds between two looks at the numbers")

    @property
    def wanted(self) -> bool:
        return self.textfile is not None or self.port is not None


class Settings(Section):
    """All of it. Sections are tables in TOML files; the first four keys stand above them."""

    name: Line = Field(default="run", min_length=1, max_length=200, description="name of the run, and of its Slurm job")
    root: Path = Field(
        default_factory=default_root,
        description="where run directories live; login and compute nodes must see it; unset: ~/.transom/runs",
    )
    auto_beat: bool = Field(default=True, description="beats without a changed line, from PyTorch's optimizer steps")
    steps: int | None = Field(
        default=None, ge=1, description="how many steps the training makes; nothing but what is shown depends on it"
    )
    log_json: bool = Field(default=False, description="the operator's log as JSON, one object a line")
    job: Job = Field(default_factory=Job)
    launch: Launch = Field(default_factory=Launch)
    detect: Detect = Field(default_factory=Detect)
    restart: Restart = Field(default_factory=Restart)
    isolate: Isolate = Field(default_factory=Isolate)
    policy: PolicySection = Field(default_factory=PolicySection)
    health: Health = Field(default_factory=Health)
    operator: OperatorSection = Field(default_factory=OperatorSection)
    slurm: SlurmCalls = Field(default_factory=SlurmCalls)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    notify: Notify = Field(default_factory=Notify)
    metrics: Metrics = Field(default_factory=Metrics)

    @property
    def ranks_per_node(self) -> int:
        """How many training processes each node runs."""
        return self.job.tasks_per_node or self.job.gpus_per_node or 1

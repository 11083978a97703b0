"""Every setting of a run, with its default and a one-line description.

The descriptions are the only source of `docs/settings.md` and of help texts. Times are in seconds unless stated
otherwise. A settings object is immutable; `load` creates it, `freeze` writes it into the run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from transom_cli.config.notify import SecretsPath, Targets
from transom_cli.config.policy import Rules
from transom_cli.config.sources import default_root
from transom_cli.config.validation import (
    CheckNames,
    Flags,
    Line,
    Lines,
    OptionalLine,
    OptionalMemory,
    OptionalText,
    OptionalTime,
    Share,
    Text,
    Texts,
    Thresholds,
    Variables,
    empty_as_unset,
)
from transom_cli.slurm.port import slurm_seconds

WARNING = 120  # seconds before the time limit
OptionalPath = Annotated[Path | None, BeforeValidator(empty_as_unset)]


def setting(default: Any, description: str, **limits: Any) -> Any:
    return Field(default=default, description=description, **limits)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Job(Section):
    """The job that Slurm runs, and the environment of the batch script."""

    partition: OptionalLine = setting(None, "Slurm partition (sbatch --partition)")
    account: OptionalLine = setting(None, "account to charge (sbatch --account)")
    qos: OptionalLine = setting(None, "quality of service (sbatch --qos)")
    reservation: OptionalLine = setting(None, "reservation to run in (sbatch --reservation)")
    constraint: OptionalLine = setting(None, "required node features (sbatch --constraint)")
    cluster: OptionalLine = setting(
        None, "cluster to submit to (sbatch --clusters); unset: the default of Slurm's commands"
    )
    time: OptionalTime = setting(None, "time limit of one attempt, as sbatch --time takes it")
    mem: OptionalMemory = setting(None, "memory per node, as sbatch --mem takes it")
    cpus_per_task: int | None = setting(None, "CPUs per task (under torchrun: per node)", ge=1)
    nodes: int = setting(1, "number of nodes", ge=1)
    spares: int = setting(0, "additional nodes, allocated as hot spares", ge=0)
    min_nodes: int = setting(0, "fewest nodes to train on while others are lost; 0: always `nodes`", ge=0)
    shrink_unit: int = setting(1, "with min_nodes: train on multiples of this many nodes (one model replica)", ge=1)
    top_up: bool = setting(True, "with min_nodes: submit a job for the missing nodes, which join the running one")
    gpus_per_node: int = setting(0, "GPUs per node (sbatch --gres=gpu:N)", ge=0)
    tasks_per_node: int | None = setting(None, "ranks per node; unset: one per GPU, or one on nodes without GPUs", ge=1)
    exclude: Lines = setting((), "nodes that the job must not use, as Slurm node lists")
    chdir: OptionalPath = setting(None, "working directory; unset: where transom run was called")
    setup: Texts = setting((), "shell commands at the start of the batch script (module load, source ...)")
    env: Variables = setting({}, "environment variables of the job; layers are merged by name")
    sbatch: Flags = setting((), 'additional sbatch flags, each complete, such as "--switches=1"')
    signal_before: int | None = setting(
        None,
        "seconds from the warning (USR2) to the time limit; unset: 120, or a quarter of `time`; 0: none",
        ge=0,
        le=65535,
    )

    @model_validator(mode="after")
    def _warned_after_the_start(self) -> Job:
        limit = slurm_seconds(self.time)
        if limit is not None and (self.signal_before or 0) >= limit:
            raise ValueError(
                f"signal_before ({self.signal_before} s) is not below the time limit of {limit} s (time {self.time}): "
                "the warning would come when the job starts; raise time, or remove signal_before"
            )
        return self

    @model_validator(mode="after")
    def _can_shrink(self) -> Job:
        if self.min_nodes > self.nodes:
            raise ValueError(f"min_nodes ({self.min_nodes}) is above nodes ({self.nodes})")
        for name, count in (("nodes", self.nodes), ("min_nodes", self.min_nodes)):
            if count % self.shrink_unit:
                raise ValueError(f"{name} ({count}) is not a multiple of shrink_unit ({self.shrink_unit})")
        return self

    @property
    def warn_before(self) -> int:
        """Seconds from Slurm's warning to the time limit, by default at most a quarter of it; 0: no warning."""
        if self.signal_before is not None:
            return self.signal_before
        return min(WARNING, (slurm_seconds(self.time) or 4 * WARNING) // 4)


class Container(Section):
    """A container for the training step only, with pyxis/enroot or Apptainer."""

    image: Line = setting("", "image for srun --container-image or apptainer exec; empty: no container")
    runtime: Literal["pyxis", "apptainer"] = setting(
        "pyxis", "pyxis: srun --container-image; apptainer: each rank through `apptainer exec`"
    )
    mounts: Lines = setting((), "mounts, each as SRC:DST[:flags]")
    args: Flags = setting((), 'additional flags of the runtime, such as "--no-container-mount-home" or "--cleanenv"')

    @model_validator(mode="after")
    def _nothing_without_an_image(self) -> Container:
        if not self.image and (self.mounts or self.args):
            raise ValueError("mounts or args are set, but no image")
        return self


class Launch(Section):
    """How the ranks are started on the nodes."""

    kind: Literal["srun", "torchrun"] = setting(
        "srun", "srun: Slurm starts every rank; torchrun: Slurm starts one torchrun per node"
    )
    srun_args: Flags = setting((), 'additional flags of the training step\'s srun, such as "--cpu-bind=cores"')
    torchrun_args: Flags = setting((), 'additional flags of torchrun, such as "--max-restarts=0"')
    python: Text = Field(
        default_factory=lambda: sys.executable,
        min_length=1,
        description="interpreter on the nodes that has transom; unset: the interpreter of transom run",
    )
    standby: bool = setting(
        False, "keep a Python per rank ready, with the training's modules imported, for the next relaunch or swap"
    )
    standby_reach: Literal["imports", "recoverable"] = setting(
        "imports", "how far standbys go: to the imports, or up to the call of the script's @recoverable function"
    )
    recoverable: bool = setting(
        False, "after a fault, ranks whose training is @recoverable stay, and only the lost ones are started"
    )
    agent_cpus: str = setting(
        "",
        "CPUs of each node's agent and snapshot daemon, such as 0-1,64; empty: not bound",
        pattern=r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$",
    )
    container: Container = Field(default_factory=Container, description="container of the training step")

    @model_validator(mode="after")
    def _reach(self) -> Launch:
        if self.standby_reach == "recoverable" and not (self.standby and self.recoverable):
            raise ValueError('standby_reach="recoverable" needs standby=true and recoverable=true')
        return self


class Detect(Section):
    """When a rank or node counts as hung. Everything except the factor is in seconds."""

    factor: float = setting(
        8.0, "a step may last this many times the run's median step; 3 times that if only silence shows it", gt=1
    )
    floor: float = setting(5.0, "minimum time before a rank counts as hung", gt=0)
    ceiling: float = setting(1800.0, "time after which any rank counts as hung, unless the run has paused longer", gt=0)
    first_step: float = setting(1800.0, "time allowed from start to the end of the first step", gt=0)
    checkpoint: float = setting(900.0, "time allowed for a step that writes a checkpoint", gt=0)
    node_silent: float = setting(10.0, "a node is suspected when its agent is silent for this long", gt=0)

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> Detect:
        if self.floor > self.ceiling:
            raise ValueError(f"floor ({self.floor:g} s) is above ceiling ({self.ceiling:g} s)")
        return self


class Restart(Section):
    """When and how a failed run is restarted."""

    how: Literal["requeue", "resubmit"] = setting(
        "requeue", "requeue: the same job, or a new one if Slurm rejects that; resubmit: always a new job"
    )
    max_without_progress: int = setting(
        3, "consecutive restarts without a newer checkpoint (if there is none: a new step) before a stop", ge=0
    )
    backoff: float = setting(
        5.0, "wait before the first restart without progress; doubles each time, at most 300", ge=0
    )
    relaunches: int = setting(
        3, "relaunches in the allocation without progress, for each cause, before a requeue; 0: none", ge=0
    )
    leave_drained: bool = setting(True, "leave a node that an administrator drains, at a checkpoint")
    release_held: bool = setting(False, "release the job if Slurm requeued it held")


class Isolate(Section):
    """What happens to a faulty node."""

    drain: bool = setting(True, "drain a faulty node; without permission to drain, it is only excluded")
    drain_command: Texts = setting((), "the site's drain command; node and reason are its last two arguments")
    drain_spool: OptionalPath = setting(None, "folder for drain requests to the site's administrators; unset: none")
    max_nodes: int = setting(2, "maximum of nodes isolated per window (the larger cap counts)", ge=0)
    max_fraction: float = setting(
        0.10, "share of the job's maximum of nodes isolated per window (the larger cap counts)", ge=0, le=1
    )
    max_cluster_nodes: int = setting(
        5, "maximum of nodes drained per window by transom for all users of the cluster", ge=0
    )
    window: float = setting(3600.0, "window of the caps in seconds", gt=0)
    expiry: float = setting(3600.0, "seconds after which an exclusion on suspicion ends", gt=0)
    expiry_by_cost: bool = setting(
        True, "on large jobs, exclude for longer, up to a day, if another failure would cost more than the node"
    )
    shared_history: OptionalPath = setting(
        None, "root's folder in which users report the nodes that they exclude (docs/sites.md); unset: none"
    )


class Health(Section):
    """When nodes are checked, and how. `transom check --list` lists checks and thresholds."""

    preflight: Literal["quick", "deep", "off"] = setting(
        "quick", "check every node before the first launch of an attempt; deep: takes minutes"
    )
    budget: float = setting(30.0, "seconds for the quick checks; later results are unknown", gt=0)
    deep: bool = setting(True, "check suspects and their neighbours after a failure that points to a node")
    deep_budget: float = setting(300.0, "seconds for these deep checks", gt=0)
    probe: bool = setting(True, "run a short compute and network test on every node and compare them; needs PyTorch")
    python: OptionalText = setting(None, "interpreter for this test, with the job's PyTorch; unset: `launch.python`")
    watch: bool = setting(True, "repeat the cheap checks while the ranks train")
    every: float = setting(30.0, "seconds between two rounds of these checks", ge=5)
    off: CheckNames = setting((), "names of disabled checks")
    limits: Thresholds = setting({}, "thresholds that differ from the default, by name")
    site_checks: OptionalPath = setting(
        None, "folder of the site's own executables (exit codes 0 to 3, as Nagios has them)"
    )


class SlurmCalls(Section):
    """How Slurm is called."""

    timeout: float = setting(30.0, "seconds that one Slurm command may take", gt=0)
    poll: float = setting(1.0, "seconds between the first two polls of the job after a change; then longer", gt=0)
    poll_max: float = setting(90.0, "about this many seconds between two polls while nothing changes", gt=0)
    poll_held: float = setting(300.0, "seconds between two polls of a held job", gt=0)
    backend: Literal["auto", "pyslurm", "cli"] = setting(
        "auto", "the operator's interface to Slurm; auto: pyslurm if it suits the cluster, else the commands"
    )
    pyslurm_python: OptionalPath = setting(None, "a Python with pyslurm; unset: the Python of transom")

    @model_validator(mode="after")
    def _poll_below_max(self) -> SlurmCalls:
        if self.poll > self.poll_max:
            raise ValueError(f"poll ({self.poll:g} s) is above poll_max ({self.poll_max:g} s)")
        return self


class OperatorSection(Section):
    """Where a run's operator runs."""

    where: Literal["login", "job"] = setting(
        "login", "login: a process on the host of `transom run`; job: a one-core Slurm job"
    )
    partition: OptionalLine = setting(None, "partition of that job; unset: Slurm's default")
    time: OptionalTime = setting("1-00:00:00", "time limit of that job; before it ends, another such job takes over")
    sbatch: Flags = setting((), 'additional sbatch flags of that job, each complete, such as "--qos=service"')


class Foreign(Section):
    """Checkpoints that the trainer makes by itself (docs/frameworks.md)."""

    pattern: OptionalText = setting(
        None, 'their names in the job\'s directory, such as "out/ckpt-*.pt", to be sealed; unset: none'
    )


class Checkpoint(Section):
    """Where checkpoints are stored."""

    directory: OptionalPath = setting(None, "directory of the checkpoints; unset: <run>/checkpoints")
    foreign: Foreign = Field(default_factory=Foreign, description="checkpoints that the trainer makes by itself")


class PolicySection(Section):
    """The reaction to failures: `[[policy.rules]]`, explained in docs/policy.md."""

    rules: Rules = setting((), "the reaction to failures; the rules of all layers apply, a stronger layer's first")


class Notify(Section):
    """Notifications of incidents, holds and ends: `[[notify.targets]]`, explained in docs/notifications.md."""

    targets: Targets = setting(
        (), "notification targets of all layers; a stronger layer replaces targets of the same name"
    )
    secrets: SecretsPath = setting(
        None, "file with URLs and tokens, mode 0600; unset: secrets.toml beside your own settings"
    )
    per_hour: int = setting(20, "messages per hour to each target; further ones are combined into one", ge=1, le=1000)
    timeout: float = setting(10.0, "timeout in seconds for sending one message", gt=0, le=60)


class Metrics(Section):
    """Metrics for Prometheus (docs/notifications.md). Needs `transom-cli[metrics]`."""

    textfile: OptionalPath = setting(None, "folder of node_exporter's textfile collector; unset: none")
    port: int | None = setting(None, "port of an HTTP endpoint; unset: none", ge=1, le=65535)
    address: Line = setting("127.0.0.1", "address that this endpoint listens on, without authentication", min_length=1)
    every: float = setting(15.0, "seconds between two updates", ge=1)

    @property
    def wanted(self) -> bool:
        return self.textfile is not None or self.port is not None


class Report(Section):
    """The cost of a run in `transom report` (docs/report.md)."""

    gpu_hour: float = setting(0.0, "price of a GPU-hour; 0: the cost is not shown in money", ge=0)
    currency: Line = setting("USD", "currency of that price", min_length=1, max_length=8)


OBSERVE = "observe"


class RunSection(Section):
    """Whether transom acts on the run (docs/observe.md), and who else may read it and act on it (docs/sharing.md)."""

    mode: Literal["act", "observe"] = setting(
        "act", "observe: report what transom would do, and do nothing; no other layer can undo it"
    )

    share: Share = setting(None, '"group:NAME" lets this Unix group read the run; unset: nobody else')
    on_call: Lines = setting((), "users of that group whose requests the operator carries out")

    @property
    def group(self) -> str:
        return (self.share or "").partition(":")[2]

    @model_validator(mode="after")
    def _readable_by_those_on_call(self) -> RunSection:
        if self.on_call and not self.share:
            raise ValueError("on_call is set without share, so the users on call could not read the run")
        return self


class Security(Section):
    """Whom you trust. Read from the site's settings, your own and the environment, never from a run's."""

    trusted_groups: Lines = setting(
        (), "Unix groups whose members may write to your run directories; commands refuse others"
    )


class Settings(Section):
    """All settings. Sections are tables in TOML files; the first keys are outside of sections."""

    name: Line = setting("run", "name of the run and of its Slurm job", min_length=1, max_length=200)
    root: Path = Field(
        default_factory=default_root,
        description="folder of the run directories, visible to login and compute nodes; unset: ~/.transom/runs",
    )
    auto_beat: bool = setting(True, "send heartbeats from PyTorch's optimizer steps, without changes in the trainer")
    steps: int | None = setting(None, "total number of training steps; only used for display", ge=1)
    log_json: bool = setting(False, "write the operator's log as JSON lines")
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
    report: Report = Field(default_factory=Report)
    security: Security = Field(default_factory=Security)
    run: RunSection = Field(default_factory=RunSection)

    @property
    def ranks_per_node(self) -> int:
        """How many training processes each node runs."""
        return self.job.tasks_per_node or self.job.gpus_per_node or 1

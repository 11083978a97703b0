"""The command lines of one launch: the agents' step and the training step. Pure.

All are lists of words; nothing here meets a shell.

In a container (Apptainer or Singularity) runs only a rank's command. Its wrapper stays outside, so the image needs
nothing of transom's. By default /dev, with /dev/shm, and the processes are the host's, and the command gets the signals
that srun sends.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transom_cli.core.launcher import Policy
from transom_cli.core.policy import Rule
from transom_cli.core.stall import StallLimits
from transom_cli.errors import UsageError
from transom_cli.health.check import HealthOptions
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.start import own

PATIENCE = 30.0  # seconds beyond its budget for a health check
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
EXPIRY = tuple(f"{cloud}_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP" for cloud in ("MLP", "SAGEMAKER"))
"""Unix time at which the nodes are taken back: verl and others save a checkpoint before it, and read either."""


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave this attempt, from the batch script's environment."""

    job_id: int
    restart: int
    nodes: tuple[str, ...]
    cpus_per_task: str = ""
    host: str = ""  # the batch script's node, which stays in the job until it ends
    gpus: int = 0  # per node
    all_gpus: tuple[str, ...] = ()  # srun's options by which a step of one task per node has all of them
    unwatched: str = ""  # GPUs that such a step does not have, for a person
    since: float = 0.0  # wall-clock time at which this start of the job began; 0: unknown
    left_out: tuple[str, ...] = ()  # nodes of the job that earlier job steps gave up; not in `nodes`
    borrowed: dict[str, int] = field(default_factory=dict)  # nodes of top-up jobs -> job; changes during the attempt

    @property
    def every_node(self) -> tuple[str, ...]:
        return (*self.nodes, *(n for n in self.borrowed if n not in self.nodes))

    def job_of(self, node: str) -> int:
        return self.borrowed.get(node, self.job_id)

    def by_job(self, nodes: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
        """Group nodes by their job, in their order: a Slurm step cannot span two jobs."""
        jobs = dict.fromkeys(map(self.job_of, nodes))
        return {job: tuple(n for n in nodes if self.job_of(n) == job) for job in jobs}

    def step_env(self, env: Mapping[str, str], job_id: int) -> dict[str, str]:
        """The environment of an srun. For another job it must say nothing of this one."""
        if job_id == self.job_id:
            return dict(env)
        return {k: v for k, v in env.items() if k == "SLURM_CONF" or not k.startswith(("SLURM_", "SBATCH_"))}


@dataclass(frozen=True)
class LaunchOptions:
    run: RunDir
    kind: str  # srun or torchrun
    command: tuple[str, ...]
    python: tuple[str, ...]  # the interpreter and its options
    tasks_per_node: int = 1
    srun_args: tuple[str, ...] = ()
    torchrun_args: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = ()  # the program; (): that of `python`
    auto_beat: bool = True
    checkpoints: Path = Path("checkpoints")
    limits: StallLimits = field(default_factory=StallLimits)
    relaunches: int = 3
    max_without_progress: int = 3
    nodes: int = 0  # that carry ranks; 0: all nodes of the attempt
    min_nodes: int = 0  # the fewest that may carry ranks; 0: as many as `nodes`
    shrink_unit: int = 1  # nodes that carry ranks are a multiple of this
    leave_drained: bool = True
    resubmit: bool = False  # as a new job, also without an operator
    expiry: float = 3600.0  # seconds after which the blame of an earlier attempt expires
    health: HealthOptions = field(default_factory=HealthOptions)
    rules: tuple[Rule, ...] = ()  # the policy's table
    warn_before: int = 0  # seconds before the time limit at which Slurm warns; 0: never
    foreign: str = ""  # pattern of the checkpoints that the trainer makes by itself
    within: tuple[str, ...] = ()  # the command prefix that puts a rank into a container
    observe: bool = False  # report what the launcher would do, and leave the ranks alone
    standby: bool = False  # keep the ranks of the next launch ready
    standby_reach: str = "imports"  # or "recoverable": they have run the script up to the call
    recoverable: bool = False  # ranks that survive a failure may stay
    agent_cpus: str = ""  # CPUs of agents and snapshot daemons, such as 0-1,64; "": not bound
    job_step: str = ""  # its name in the user's own script; "": the batch script is transom's
    top_up: tuple[str, ...] = ()  # sbatch options of a job for nodes that the run lacks; (): none is submitted
    exclude: tuple[str, ...] = ()  # nodes that no job of the run may use

    @property
    def tasks_on_node(self) -> int:
        """Tasks of the training step on each node: its ranks, or one torchrun."""
        return 1 if self.kind == "torchrun" else self.tasks_per_node

    @property
    def keeps_standby(self) -> bool:
        """Whether a rank is a process that can wait: it is started by the wrapper, and reads PYTHONPATH."""
        plain = self.kind == "srun" and self.auto_beat and not (self.within or self.foreign or self.observe)
        return self.standby and plain

    @property
    def standby_runs_script(self) -> bool:
        return self.keeps_standby and self.recovers and self.standby_reach == "recoverable"

    @property
    def recovers(self) -> bool:
        return self.recoverable and self.kind == "srun" and not (self.within or self.foreign or self.observe)

    @property
    def policy(self) -> Policy:
        health = replace(self.health, deep=self.health.deep and not self.observe)  # ranks use the nodes meanwhile
        policy = launcher_policy(self.relaunches, self.max_without_progress, health, self.rules)
        policy = replace(policy, recoverable=self.recovers)
        return replace(policy, grow=not self.observe, top_up=bool(self.top_up and self.min_nodes and not self.observe))


def launcher_policy(
    relaunches: int, max_without_progress: int, health: HealthOptions, rules: tuple[Rule, ...]
) -> Policy:
    """Return what a launcher decides by, from a run's settings."""
    budget = health.deep_budget if health.preflight == "deep" else health.budget
    return Policy(
        relaunches=relaunches,
        max_without_progress=max_without_progress,
        preflight=health.preflight != "off",
        deep=health.deep,
        checking=budget + PATIENCE,
        checking_deep=health.deep_budget + PATIENCE,
        rules=rules,
    )


# Explicit, because in a job of `sbatch --export=NONE` (some sites' default) srun passes nothing on.
EXPORT_ALL = "--export=ALL"
_IN_USE = re.compile(r"address already in use|EADDRINUSE|failed to listen on any local", re.IGNORECASE)
_PORT = re.compile(r"(?:\bport\W{1,3}|[\]\d]:)(\d{2,5})\b", re.IGNORECASE)


def says_in_use(line: str, port: int) -> bool | None:
    """Whether a log line says that `port` is in use. None if it names no port."""
    if not _IN_USE.search(line):
        return False
    named = {int(found) for found in _PORT.findall(line)}
    return port in named if named else None


def pattern(path: Path) -> str:
    """Escape a path for srun's --output, which expands percent signs."""
    return str(path).replace("%", "%%")


def agent_argv(
    allocation: Allocation, options: LaunchOptions, attempt: AttemptDir, node: str | None = None
) -> list[str]:
    """One agent per node, beside the training (`--overlap`), which survives the loss of another node or agent.

    Agents share the job's GPUs to check them. They are bound to no CPU, or they would take the training's first one,
    and so would the snapshot daemons, their children. Without `--wait=0` a site's WaitTime ends all agents after one.

    Args:
        node: start an agent on this node only.
    """
    count = "1" if node else str(len(allocation.nodes))
    return [
        "srun",
        EXPORT_ALL,
        *([f"--jobid={allocation.borrowed[node]}"] if node in allocation.borrowed else []),
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *([f"--nodelist={node or ','.join(allocation.nodes)}"] if node or allocation.left_out else []),
        "--cpu-bind=none",
        "--quiet",  # about clusters that bind no task
        "--mem=0",
        *(allocation.all_gpus if options.health.watch and allocation.gpus else ["--gres=none"]),  # shared: `--overlap`
        "--job-name=transom-agent",
        f"--output={pattern(attempt.agents_log)}",
        "--open-mode=append",
        *own(
            "transom_cli.supervise.agent.agent",
            "--attempt-dir",
            str(attempt.path),
            *(["--watch", watch_words(allocation, options)] if options.health.watch else []),
            *(["--cpus", options.agent_cpus] if options.agent_cpus else []),
            python=options.python,
        ),
    ]


def watch_words(allocation: Allocation, options: LaunchOptions) -> str:
    """The value of an agent's --watch: what to check."""
    health = options.health
    about = {"tier": "watch", "gpus": allocation.gpus, "since": allocation.since, "folders": [str(options.checkpoints)]}
    return json.dumps({"every": health.every, "about": about, "off": health.off, "limits": dict(health.limits)})


def training_argv(
    allocation: Allocation,
    options: LaunchOptions,
    attempt: AttemptDir,
    launch: int,
    nodes: tuple[str, ...],
    *,
    wrapper: Path,
    master: str,
    standby: bool = False,
    every: tuple[str, ...] = (),
    only: tuple[int, ...] = (),
) -> list[str]:
    """The training step: one wrapper per task, which starts the user's command and records how it ended.

    If some of the allocation's nodes carry no rank, an earlier launch may keep its resources until Slurm removes a dead
    node from it: `--overlap` does not wait for that, and `--mem=0` does not count that launch's memory as used.

    With `standby`, the tasks wait beside a launch that trains. On a spare they need `every` too, and get their places
    in it when the launch begins.

    Ranks are placed on `nodes` in this order. If it is not Slurm's, srun reads the file `hosts(launch)` (`hosts_file`).

    A launch on nodes of two jobs is one step in each. Slurm numbers the tasks of each from 0, so the wrapper computes a
    rank from its node's place in `every`, all nodes of the launch, and writes the rank's log itself.

    With `only`, the step starts these ranks of the launch beside the others, and its other tasks end at once.
    """
    job_id = allocation.job_of(nodes[0])
    tasks = options.tasks_on_node
    count = len(nodes)
    argv = [
        "srun",
        EXPORT_ALL,
        *([] if options.observe else [f"--kill-on-bad-exit={int(not options.recovers)}"]),
        # else Slurm ends the survivors of a node that it finds dead; standbys may be used after that
        *(["--no-kill"] if options.recovers or standby else []),
        "--wait=0",  # a site's WaitTime would kill ranks that still save when the first one has ended
        f"--nodes={count}",
        f"--ntasks={count * tasks}",
        f"--ntasks-per-node={tasks}",
        "--job-name=training",
        f"--output={_output(attempt, launch, options, job_id if every else 0, standby=standby)}",
        "--open-mode=append",
    ]
    argv += [f"--jobid={job_id}"] if job_id != allocation.job_id else []
    if nodes != allocation.nodes or allocation.left_out:
        listed = not every and hosts_file(allocation, options, nodes)
        argv += [f"--nodelist={attempt.hosts(launch) if listed else ','.join(nodes)}"]
    others = nodes != allocation.nodes or allocation.left_out or options.min_nodes  # the last: it may have grown back
    if standby or only or (launch and others):
        argv += ["--overlap", "--mem=0"]
    if allocation.cpus_per_task:
        argv.append(f"--cpus-per-task={allocation.cpus_per_task}")  # srun no longer inherits it from sbatch
    argv += options.srun_args
    argv += ["--distribution=arbitrary"] if not every and hosts_file(allocation, options, nodes) else []
    argv += [options.python[0], "-I", "-S", str(wrapper), "--attempt-dir", str(attempt.path), "--launch", str(launch)]
    argv += ["--hosts", ",".join(every), "--tasks-per-node", str(tasks)] if every else []
    argv += ["--only", ",".join(map(str, only))] if only else []
    argv += ["--torchrun"] if options.kind == "torchrun" else []
    argv += ["--auto-beat"] if options.auto_beat else []
    if options.keeps_standby:
        argv += ["--standby" if standby else "--learn", str(attempt.modules)]
        argv += ["--run-script"] if standby and options.standby_runs_script else []
    argv += ["--", *command(every or nodes, options, master, f"{attempt.name}.{launch}")]
    return argv


def _output(attempt: AttemptDir, launch: int, options: LaunchOptions, job_id: int, *, standby: bool) -> str:
    """The value of srun's --output. job_id: of a step whose wrappers open the ranks' logs; 0: srun opens them."""
    if standby:
        return pattern(attempt.standby_log)
    name = "node-%t.log" if options.kind == "torchrun" else "rank-%t.log"
    return f"{pattern(attempt.logs(launch))}/{f'job-{job_id}.log' if job_id else name}"


def hosts_file(allocation: Allocation, options: LaunchOptions, nodes: tuple[str, ...]) -> str:
    """The input of srun's arbitrary distribution: one line per task with its node. "" if Slurm's own order fits."""
    if nodes == tuple(node for node in allocation.nodes if node in nodes):
        return ""
    return "".join(f"{node}\n" * options.tasks_on_node for node in nodes)


def command(nodes: tuple[str, ...], options: LaunchOptions, master: str, rendezvous: str) -> list[str]:
    """The user's command; torchrun's node rank and port come from the wrapper (PET_NODE_RANK, PET_MASTER_PORT).

    Every user of a node can see a command line, so the port is not in it.

    Args:
        rendezvous: its name, unless the user gives one. A surviving torchrun of an older launch cannot join.
    """
    if options.kind != "torchrun":
        return [*options.within, *options.command]
    named = any(word.replace("_", "-").startswith("--rdzv-id") for word in options.torchrun_args)
    python = "python3" if options.within else options.python[0]  # in a container its own
    runs_here = any(word.startswith("--run") for word in options.torchrun_args)  # --run-path: then it is the trainer's
    torchrun = list(options.torchrun) or (
        [python, "-m", "torch.distributed.run"]
        if runs_here
        else own("torch.distributed.run", python=(python,), all_paths=True)
    )
    return [
        *options.within,
        *torchrun,
        f"--nnodes={len(nodes)}",
        f"--nproc-per-node={options.tasks_per_node}",
        "--rdzv-backend=static",
        f"--master-addr={master}",
        "--max-restarts=0",
        *([] if named else [f"--rdzv-id={rendezvous}"]),
        *options.torchrun_args,
        *options.command,
    ]


def training_env(base: Mapping[str, str], master: str, port: int, run: RunDir) -> dict[str, str]:
    """The environment in which ranks find each other. Each launch has a rendezvous of its own, whatever `base` says."""
    env = {**base, **dict(zip(RENDEZVOUS, (master, str(port)), strict=True))}
    env["TRANSOM_RUN_DIR"] = str(run.path)
    env.setdefault("TRANSOM_CHECKPOINT_DIR", str(run.checkpoints))
    end = env.get("SLURM_JOB_END_TIME", "")
    if end.isdecimal() and int(end) > 0 and not any(env.get(name) for name in EXPIRY):
        env.update(dict.fromkeys(EXPIRY, end))
    return env


PROGRAMS = ("apptainer", "singularity")
_GPU_FLAGS = ("--nv", "--nvccli", "--rocm")


@dataclass(frozen=True)
class Image:
    """An image with the user's mounts (SRC:DST[:flags]) and further arguments of `apptainer exec`."""

    image: str
    mounts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


def container_words(image: Image, program: str, folders: Sequence[Path], *, gpus: bool) -> tuple[str, ...]:
    """Return `PROGRAM exec ... IMAGE`, to be put before the command. folders: mounted at the same path as outside."""
    by_user = {mount.split(":")[1] if ":" in mount else mount for mount in image.mounts}
    binds = [str(folder) for folder in dict.fromkeys(folders) if str(folder) not in by_user]
    given = gpus and not any(arg in _GPU_FLAGS for arg in image.args)
    words = [f"--bind={bind}" for bind in (*binds, *image.mounts)]
    return (program, "exec", *(["--nv"] if given else []), *words, *image.args, image.image)


def find_program(which: Callable[[str], str | None]) -> str:
    found = next((name for name in PROGRAMS if which(name) is not None), None)
    if found is None:
        raise UsageError(
            "Neither apptainer nor singularity is here, and the training is to run in a container by it",
            "looked for on the PATH of the batch script, after `job.setup`",
            "load it there: --set 'job.setup=[\"module load apptainer\"]'",
        )
    return found

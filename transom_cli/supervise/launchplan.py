"""The command lines of one launch: the agents' step and the training step. Pure.

Lists of words all the way; nothing here meets a shell.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transom_cli.core.quiet import QuietLimits
from transom_cli.layout import AttemptDir, RunDir

PORTS = range(20000, 60000)


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave this attempt, from the batch script's environment."""

    job_id: int
    restart: int
    nodes: tuple[str, ...]
    cpus_per_task: str = ""


@dataclass(frozen=True)
class LaunchOptions:
    run: RunDir
    kind: str  # srun or torchrun
    command: tuple[str, ...]
    python: tuple[str, ...]  # the interpreter, with the flags that keep the job's folder off its import path
    tasks_per_node: int = 1
    srun_args: tuple[str, ...] = ()
    torchrun_args: tuple[str, ...] = ()
    auto_beat: bool = True
    checkpoints: Path = Path("checkpoints")
    limits: QuietLimits = field(default_factory=QuietLimits)
    relaunches: int = 3
    max_without_progress: int = 3
    nodes: int = 0  # that carry ranks; 0: all that the attempt has
    leave_drained: bool = True
    resubmit: bool = False  # without an operator too: as a new job
    expiry: float = 3600.0  # seconds that the blame of an earlier attempt stands

    @property
    def tasks_on_node(self) -> int:
        """Tasks of the training step on each node: its ranks, or one torchrun."""
        return 1 if self.kind == "torchrun" else self.tasks_per_node


def port_for(allocation: Allocation, launch: int) -> int:
    """A rendezvous port that differs from launch to launch, so that a stale rank of an old one cannot join."""
    seed = zlib.crc32(f"{allocation.job_id}.{allocation.restart}.{launch}".encode())
    return PORTS[seed % len(PORTS)]


def pattern(path: Path) -> str:
    """A path as srun's --output wants it: a percent sign of its own is doubled."""
    return str(path).replace("%", "%%")


def agent_argv(
    allocation: Allocation, options: LaunchOptions, attempt: AttemptDir, node: str | None = None
) -> list[str]:
    """One agent a node, beside the training (`--overlap`), without devices, and not killed by another node's loss.

    node: on this one alone, where an agent is started again.
    """
    count = "1" if node else str(len(allocation.nodes))
    return [
        "srun",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *([f"--nodelist={node}"] if node else []),
        "--cpus-per-task=1",
        "--mem=0",
        "--gres=none",
        "--job-name=transom-agent",
        f"--output={pattern(attempt.path / 'agents.log')}",
        "--open-mode=append",
        *options.python,
        "-m",
        "transom_cli.agent.agent",
        "--attempt-dir",
        str(attempt.path),
    ]


def training_argv(
    allocation: Allocation,
    options: LaunchOptions,
    attempt: AttemptDir,
    launch: int,
    nodes: tuple[str, ...],
    *,
    wrapper: Path,
    master: str,
    port: int,
) -> list[str]:
    """The training step: one wrapper a task, which starts the user's command and records how it ended.

    Where some of the allocation's nodes carry no rank, an earlier launch may hold on to what it had until Slurm takes a
    dead node out of it: `--overlap` does not wait for that, and `--mem=0` does not count that launch's memory as taken.
    """
    tasks = options.tasks_on_node
    count = len(nodes)
    name = "node-%n.log" if options.kind == "torchrun" else "rank-%t.log"
    argv = [
        "srun",
        "--kill-on-bad-exit=1",
        f"--nodes={count}",
        f"--ntasks={count * tasks}",
        f"--ntasks-per-node={tasks}",
        "--job-name=training",
        f"--output={pattern(attempt.logs(launch))}/{name}",
        "--open-mode=append",
    ]
    if nodes != allocation.nodes:
        argv += [f"--nodelist={','.join(nodes)}"]
        argv += ["--overlap", "--mem=0"] if launch else []
    if allocation.cpus_per_task:
        argv.append(f"--cpus-per-task={allocation.cpus_per_task}")  # srun no longer inherits it from sbatch
    argv += options.srun_args
    argv += [options.python[0], "-I", "-S", str(wrapper), "--attempt-dir", str(attempt.path), "--launch", str(launch)]
    argv += ["--torchrun"] if options.kind == "torchrun" else []
    argv += ["--auto-beat"] if options.auto_beat else []
    argv += ["--", *command(nodes, options, master, port)]
    return argv


def command(nodes: tuple[str, ...], options: LaunchOptions, master: str, port: int) -> list[str]:
    """The user's command; torchrun's node rank comes from the wrapper (PET_NODE_RANK): ranks keep their nodes."""
    if options.kind != "torchrun":
        return list(options.command)
    return [
        options.python[0],
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(nodes)}",
        f"--nproc-per-node={options.tasks_per_node}",
        "--rdzv-backend=static",
        f"--master-addr={master}",
        f"--master-port={port}",
        "--max-restarts=0",
        *options.torchrun_args,
        *options.command,
    ]


def training_env(base: Mapping[str, str], master: str, port: int, run: RunDir) -> dict[str, str]:
    """What the ranks need to find each other. What the user has set stays."""
    env = dict(base)
    env.setdefault("MASTER_ADDR", master)
    env.setdefault("MASTER_PORT", str(port))
    env["TRANSOM_RUN_DIR"] = str(run.path)
    env.setdefault("TRANSOM_CHECKPOINT_DIR", str(run.checkpoints))
    return env

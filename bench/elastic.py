"""The same training and fault under launchers that restart failed ranks inside the allocation.

torchrun         one `torchrun --max-restarts=3` per node, with a c10d rendezvous, and defaults otherwise
torchrun+store   the same with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: restarted ranks have their own store, and do not
                 find the addresses of dead ranks in the agents' store (pytorch/pytorch#135712)
ft_launcher      NVIDIA's nvidia-resiliency-ext instead of torchrun, with its defaults and the same trainer
ft_launcher+beat the same with the requirements of its hang detection: one heartbeat per step in the trainer
                 (bench/ft_train.py), and limits set by hand, which are 60 and 45 minutes by default

The job is examples/gpt/train.sbatch with another last line, in the sandbox of transom's own runs. A job without a new
step within the allowed time is given up.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import Bench, BenchError, Training, progress
from injury import beyond, random_step, read_start_up
from slurmjob import SlurmJob, example_script, over, state_words

from transom_cli.sandbox import faults
from transom_cli.slurm.port import SlurmUnknown

FAULTS = ("rank-kill", "hang", "node-kill")
FT_MODULE = "nvidia_resiliency_ext.fault_tolerance.launcher"
FT_PACKAGES = "nvidia-resiliency-ext defusedxml pyyaml"  # what it imports and we have not; torch and psutil are there
HEARTBEAT = 5.0  # s without one; transom's own floor (detect.floor)
_LOOK = 0.1  # s between two looks at the job's log
_ASK = 2.0  # ... between two questions to Slurm
_FINDING = re.compile(r"failed \(exitcode|FT timeout elapsed")  # by these words a launcher has seen the fault
# All nodes of a sandbox are this machine, whose own name may lead nowhere.
_AGENT = (
    '--nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=1 --max-restarts=3 --local-addr="$MASTER_ADDR" '
    '--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$SLURM_JOB_ID"'
)


@dataclass(frozen=True)
class Launcher:
    """`module`: as in `python -m`. `faults`: those it is measured with. `env`: of the job."""

    name: str
    module: str
    faults: tuple[str, ...] = FAULTS
    flags: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def script(self) -> str:
        """The example's own script, with one of these on each node instead of the trainer."""
        head, last = example_script()
        srun, python, trainer = last.partition('"${PYTHON:-python3}"')
        if not python:
            raise BenchError("examples/gpt/train.sbatch does not start ${PYTHON:-python3} any more")
        return f"{head}exec srun {srun}{python} -m {self.module} {_AGENT} {self.flags}{trainer}\n"


TORCHRUN = (
    Launcher("torchrun", "torch.distributed.run", ("rank-kill",)),
    Launcher("torchrun+store", "torch.distributed.run", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
)


def ft_launchers(folder: Path | None) -> tuple[list[Launcher], str]:
    """NVIDIA's launcher in its two ways, or none and why. `folder`: where `pip install --target` has put it."""
    env = {"PYTHONPATH": str(folder.absolute())} if folder else {}
    argv = [sys.executable, "-c", f"import {FT_MODULE}"]
    tried = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        how = f"pip install --no-deps --target DIR {FT_PACKAGES}, then --nvrx DIR"
        return [], f"ft_launcher was not measured: it does not start here ({said}); {how}"
    limits = f"--ft-rank-heartbeat-timeout={HEARTBEAT:g} --ft-workload-check-interval=1"
    trainer = {"TRAIN": str(Path(__file__).with_name("ft_train.py"))}
    return [
        Launcher("ft_launcher", FT_MODULE, flags="--ignore-missing-fault-tol-cfg", env=env),
        Launcher("ft_launcher+beat", FT_MODULE, ("hang",), limits, {**env, **trainer}),
    ], ""


def remarks(launchers: Sequence[Launcher]) -> list[str]:
    """What is to be known of those that were measured."""
    notes = {
        "torchrun+store": "with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, see pytorch/pytorch#135712",
        "ft_launcher": "the trainer as it is; a hang is seen only by heartbeats, which it does not send",
        "ft_launcher+beat": f"heartbeats added to the trainer; limit set to {HEARTBEAT:g} s by hand (default: 45 min)",
    }
    lines = [f"{launcher.name}: {notes[launcher.name]}" for launcher in launchers if launcher.name in notes]
    if launchers:
        lines.append("all of these: --nnodes=3, a world as large as before; nothing takes a lost node's place")
    return lines


@dataclass(frozen=True)
class ElasticOutcome:
    """Seconds from the fault: `seen` to the launcher's own finding, `seconds` to the first new step; None: it did not
    come, and `how` says what came instead, after `watched` seconds. `beyond` as in `injury.Recovery`."""

    launcher: str
    fault: str
    target: str = ""
    step: int = -1
    seen: float | None = None
    seconds: float | None = None
    beyond: float | None = None
    start_up: dict[str, float] = field(default_factory=dict)
    how: str = ""
    watched: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def words(self) -> str:
        seen = "nothing seen" if self.seen is None else f"seen after {self.seen:.1f} s"
        return f"{seen}, {self.how}" + (f" after {self.seconds:.1f} s" if self.seconds is not None else "")


def turn(
    bench: Bench,
    launchers: Sequence[Launcher],
    faults_: Sequence[str],
    before: Sequence[ElasticOutcome],
    number: int,
    training: Training,
    timeout_s: float,
    seed: int,
) -> list[ElasticOutcome]:
    """One job for each launcher and fault. A fault that one of its jobs never came back from is not tried again."""
    never = {(outcome.launcher, outcome.fault) for outcome in before if outcome.seconds is None}
    done = []
    for launcher in launchers:
        for fault in launcher.faults:
            if fault in faults_ and (launcher.name, fault) not in never:
                rng = random.Random(f"{seed}/{launcher.name}/{fault}/{number}")
                outcome = measure(bench, launcher, fault, number, training, timeout_s, rng)
                progress(f"{launcher.name}, {fault} {number + 1} of {outcome.target or 'nothing'}: {outcome.words()}")
                done.append(outcome)
    return done


def measure(
    bench: Bench, launcher: Launcher, fault: str, number: int, training: Training, timeout_s: float, rng: random.Random
) -> ElasticOutcome:
    """One job, watched until it makes a new step, is over for good, or time is up. The sandbox is healed after it."""
    job = SlurmJob(bench, f"{launcher.name}-{fault}-{number}", launcher.script(), training, launcher.env)
    outcome = ElasticOutcome(launcher.name, fault)
    try:
        outcome = replace(outcome, step=job.wait_step(random_step(rng, training)))
        began, offset = job.starts(), len(job.text())
        at = time.time()
        target = _injure(bench, job, fault, rng)
        how, times = _watch(job, began, offset, at, timeout_s)
        seen, seconds = times.get("seen"), times.get("seconds")
        watched = round(time.time() - at, 1)
        outcome = replace(outcome, target=target, how=how, watched=watched, seen=seen, seconds=seconds)
    except BenchError as error:
        return replace(outcome, how=f"did not train: {error.what}")
    finally:
        bench.heal()
    if outcome.seconds is None:
        return outcome
    parts = read_start_up([job.log])
    return replace(outcome, start_up=parts, beyond=beyond(outcome.seconds, parts))


def _injure(bench: Bench, job: SlurmJob, fault: str, rng: random.Random) -> str:
    """Its target. A node other than the batch script's: with that would die the job."""
    running = job.running()
    if fault == "node-kill":
        node = rng.choice([node for node in running.nodes if node != running.batch_host])
        faults.kill_node(bench.sandbox, node)
        return node
    rank = rng.randrange(len(running.nodes))
    injure = {"rank-kill": faults.kill_rank, "hang": faults.stop_rank}[fault]
    injure(bench.sandbox, job.job_id, rank)
    return f"rank {rank}"


def _watch(job: SlurmJob, began: int, offset: int, at: float, timeout_s: float) -> tuple[str, dict[str, float]]:
    """How it went on, and the seconds after which the fault was `seen` and the job back."""
    times: dict[str, float] = {}
    checked = 0.0
    while True:
        passed = round(time.time() - at, 2)
        if "seen" not in times and _FINDING.search(job.text(), offset):
            times["seen"] = passed
        if job.back(began):
            return "back", {**times, "seconds": passed}
        if passed > timeout_s:
            return f"never within {timeout_s:.0f} s", times
        if passed - checked > _ASK:
            checked = passed
            try:
                slurm = job.job()
            except SlurmUnknown:
                continue
            if over(slurm):
                return f"the job ended: {state_words(slurm)}", times
        time.sleep(_LOOK)

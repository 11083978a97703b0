"""Shared by the benches on a real Slurm: their own sandbox, runs in it, and readers of a run's files.

A bench owns everything that it starts: one sandbox in a short temporary folder, the operators of its runs (detached
processes, known by their leases), and the files. On success everything is removed; on failure the folder is kept and
named.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from transom_cli.core.operator.state import State
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.tools import find_tools
from transom_cli.sandbox.users import User
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import read_holder
from transom_cli.view.model import RunView
from transom_cli.view.read import read_view

GPT = Path(__file__).resolve().parents[1] / "examples" / "gpt"
NODES = 3  # of a run; the sandbox has one more, to take a lost one's place
SHORT = "/tmp"  # Unix sockets want short paths


class BenchError(TransomError):
    """A run did not do what the bench needs in order to measure it."""

    kind = "bench"


@dataclass(frozen=True)
class Training:
    """The example training. Seconds for `delay`, which is added to each step."""

    steps: int = 80
    every: int = 10  # steps between two checkpoints
    delay: float = 0.1
    shape: tuple[str, ...] = ()  # of the model, as arguments

    def words(self) -> list[str]:
        pace = ["--steps", str(self.steps), "--every", str(self.every), "--step-delay", str(self.delay)]
        return [*pace, *self.shape]


@dataclass(frozen=True)
class Result:
    """The final state of a training, as `--final-hash` wrote it."""

    sha256: str
    step: int
    tensors: int

    @classmethod
    def read(cls, path: Path) -> Result:
        try:
            data = json.loads(path.read_text())
            return cls(str(data["sha256"]), int(data["step"]), int(data["tensors"]))
        except (OSError, ValueError, KeyError) as error:
            raise BenchError(f"No result in {path}", str(error)) from error


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def wait_for(ready: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.1) -> None:
    """Raises BenchError when it takes longer."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise BenchError(f"Not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)


def shared_python(where: Path) -> str:
    """Return a Python with this one's packages that other users can run: this one, or a new environment in `where`."""
    if all(path.stat().st_mode & 0o001 for path in Path(sys.executable).resolve().parents):
        return sys.executable
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not Path(system).exists():
        raise BenchError(f"Other users cannot run {sys.executable}", f"and there is no {system}")
    subprocess.run([system, "-m", "venv", "--without-pip", str(where)], check=True)
    packages = [*site.getsitepackages(), str(Path(__file__).resolve().parents[1])]
    (folder,) = where.glob("lib/python*/site-packages")
    (folder / "packages.pth").write_text("".join(f"{path}\n" for path in packages))
    return str(where / "bin" / "python")


class Bench:
    """One sandbox and the runs in it. A context manager, which removes all leftovers at the end."""

    def __init__(
        self, nodes: int = NODES + 1, keep: bool = False, slurm_conf: Mapping[str, str] | None = None,
        profiles: Sequence[str] = (), as_root: bool = False, shared: bool = False,
    ) -> None:  # fmt: skip
        """slurm_conf: settings beside the sandbox's own. profiles: of sites, whose user alice owns the runs.

        as_root: the runs belong to the caller all the same.
        shared: use the Python of such users in any case, for a result to compare theirs with.
        """
        self.dir = Path(tempfile.mkdtemp(prefix="tbench-", dir=SHORT))
        self.runs = self.dir / "runs"
        self.results = self.dir / "results"
        self.keep = keep
        self._made: list[LiveRun] = []
        self.user: User | None = None
        self._as_root, self._shared = as_root, shared
        self.python = sys.executable
        # job ids of its own: scripts make rendezvous ports of them, and two benches may run on one machine
        settings = {"FirstJobId": str(random.SystemRandom().randrange(1_000, 1_000_000)), **(slurm_conf or {})}
        self._spec = SandboxSpec(self.dir / "sb", nodes=nodes, gpus_per_node=1, extra=settings, site=tuple(profiles))

    def __enter__(self) -> Bench:
        self.results.mkdir()
        if self._spec.site:
            self.dir.chmod(0o755)  # for the users of the site
        try:
            self.sandbox = Sandbox.up(self._spec)
        except BaseException:
            shutil.rmtree(self.dir, ignore_errors=True)
            raise
        self.user = None if self._as_root else self.sandbox.users().get("alice")
        if self.user is not None or self._shared:
            self.python = shared_python(self.dir / "python")
        if self.user is not None:
            self.runs.mkdir()
            for folder in (self.runs, self.results):
                os.chown(folder, self.user.uid, self.user.gid)
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None) -> None:
        try:
            for run in self._made:
                run.kill_operator(signal.SIGTERM)
        finally:
            self.sandbox.down()
        if kind is not None or self.keep:
            progress(f"kept for looking at: {self.dir} (runs/, sb/log/)")
        else:
            shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def env(self) -> dict[str, str]:
        """This cluster's Slurm, and no settings of the caller's own."""
        mine = ("SLURM_", "SBATCH_", "TRANSOM_")
        env = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
        env |= {**self.sandbox.env(), "XDG_CONFIG_HOME": str(self.dir / "no-settings")}
        return {**env, **self.user.env(), "TRANSOM_STATE_DIR": f"{self.user.home}/state"} if self.user else env

    @cached_property
    def slurm(self) -> CliSlurm:
        return CliSlurm(Runner(env=self.env))

    def transom(self, *words: str, timeout_s: float = 180.0) -> str:
        """Run a `transom` command to its end; its stdout."""
        argv = [self.python, "-m", "transom_cli", *words]
        try:
            done = subprocess.run(
                argv, env=self.env, cwd=self.dir, capture_output=True, text=True, timeout=timeout_s, check=False,
                **(self.user.identity() if self.user else {}),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"`transom {' '.join(words[:2])} ...` did not end within {timeout_s:.0f} s") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise BenchError(f"`transom {' '.join(words[:2])} ...` ended with exit code {done.returncode}", said)
        return done.stdout.strip()

    def submit(self, name: str, train: list[str], spares: int = 0, options: tuple[str, ...] = ()) -> LiveRun:
        """`transom run --detach` of one of our training programs, with its arguments. options: of `transom run`."""
        ask = ["--root", str(self.runs), "--name", name, "-N", str(NODES), "--gpus-per-node", "1", *options]
        ask += ["--spares", str(spares)] if spares else []
        run_id = self.transom("run", *ask, "--detach", "--", self.python, *train)
        run = LiveRun(self, RunDir(self.runs / run_id), self.result_of(name))
        self._made.append(run)
        return run

    def train(
        self, name: str, training: Training, spares: int = 0, options: tuple[str, ...] = (),
        trainer: Path = GPT / "train.py",
    ) -> LiveRun:  # fmt: skip
        hashed = ["--final-hash", str(self.result_of(name))]
        return self.submit(name, [str(trainer), *training.words(), *hashed], spares, options)

    def result_of(self, name: str) -> Path:
        return self.results / f"{name}.json"

    def heal(self) -> None:
        """Before the next run: no operator, no job, every node idle."""
        for run in self._made:
            run.kill_operator(signal.SIGTERM)
        faults.heal(self.sandbox)

    def controller_log(self) -> str:
        return (self.sandbox.dir / "log" / "slurmctld.log").read_text(errors="replace")


@dataclass(frozen=True)
class LiveRun:
    bench: Bench
    dir: RunDir
    result_path: Path

    @property
    def name(self) -> str:
        return self.dir.run_id

    @property
    def state(self) -> State:
        return fold(self.dir.journal).state

    @property
    def view(self) -> RunView:
        return read_view(self.dir)

    def wait_step(self, step: int, timeout_s: float = 120.0) -> int:
        """Wait until every rank has done `step`; the step that was seen, which may be a little later."""
        seen = -1

        def there() -> bool:
            nonlocal seen
            view = self.view
            seen = view.step
            if view.exit_code is not None:
                raise BenchError(f"Run {self.name} was over ({view.phase}) before step {step}", view.verdict)
            return seen >= step

        wait_for(there, timeout_s, f"step {step} of run {self.name}")
        return seen

    def wait_over(self, timeout_s: float = 300.0) -> RunView:
        wait_for(lambda: self.view.exit_code is not None, timeout_s, f"the end of run {self.name}", every_s=0.3)
        return self.view

    def wait_done(self, timeout_s: float = 300.0) -> Result:
        """Wait until the run is done. BenchError when it ended otherwise."""
        view = self.wait_over(timeout_s)
        if view.exit_code != 0:
            raise BenchError(f"Run {self.name} {view.phase}", view.verdict, f"less {self.dir.path}/operator.log")
        return Result.read(self.result_path)

    def wait_result(self, timeout_s: float = 300.0) -> Result:
        """Wait until the training has its result, whatever becomes of the job. BenchError when the run ends without.

        For a job that has lost a node and runs on: Slurm may keep it COMPLETING until SlurmdTimeout.
        """

        def there() -> bool:
            return self.result_path.exists() or self.view.exit_code is not None

        wait_for(there, timeout_s, f"the result of run {self.name}", every_s=0.3)
        return Result.read(self.result_path)

    def kill_operator(self, number: int = signal.SIGKILL) -> bool:
        """Signal the operator that holds the lease, and wait until it has gone; False when none is alive."""
        holder = read_holder(self.dir)
        if holder is None or not holder.here() or not holder.alive_here():
            return False
        os.kill(holder.pid, number)
        wait_for(lambda: not holder.alive_here(), 20.0, f"the end of the operator of run {self.name}", every_s=0.02)
        return True


def reference(
    bench: Bench, training: Training, options: tuple[str, ...] = (), trainer: Path = GPT / "train.py"
) -> Result:
    """The result of one uninterrupted run."""
    progress("one uninterrupted run, for its result")
    run = bench.train("reference", training, options=options, trainer=trainer)
    result = run.wait_done()
    if run.view.incidents:
        raise BenchError("The uninterrupted run had an incident", run.view.incidents[0].message)
    bench.heal()
    return result


def surroundings() -> dict[str, Any]:
    """The machine and the versions, for a bench's JSON."""
    import torch

    from transom_cli import __version__

    version = subprocess.run([find_tools()["slurmctld"], "-V"], capture_output=True, text=True, check=False)
    return {
        "cpus": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "slurm": version.stdout.strip(),
        "transom": __version__,
    }


def run_bench(main: Callable[[], int]) -> None:
    """Call a bench's main and exit with its code; errors in words. TERM ends it as Ctrl-C does: tidily."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.exit(main())
    except TransomError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt

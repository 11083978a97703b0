"""The demo: a training run loses a node, and still ends with the same final state, bit for bit.

    make demo        or        .venv/bin/python examples/demo/demo.py

It starts a small real Slurm on this machine, trains once as a plain Slurm job, trains again under `transom run`, kills
one of the nodes, and compares the two results. It takes about two minutes and needs no root. The cluster is always
stopped at the end. Logs and results remain in `.demo/`.

The exit code is 0 only if the node was lost, the run recovered, and both results are equal to the last bit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).resolve().parents[2]
if any(importlib.util.find_spec(name) is None for name in ("transom_cli", "torch")):
    sys.exit("error: transom and torch are not installed for this Python\n\nhint: make setup, then make demo")

from report import compare, incident_table  # noqa: E402

from transom_cli.errors import NoSuchRun, TransomError  # noqa: E402
from transom_cli.layout import RunDir  # noqa: E402
from transom_cli.sandbox import faults  # noqa: E402
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec  # noqa: E402
from transom_cli.sandbox.tools import find_tools  # noqa: E402
from transom_cli.start import own  # noqa: E402
from transom_cli.submit.rundir import find_run  # noqa: E402
from transom_cli.supervise.journal import fold  # noqa: E402
from transom_cli.supervise.lease import read_holder  # noqa: E402
from transom_cli.view.read import read_view  # noqa: E402

OUT = REPOSITORY / ".demo"
GPT = REPOSITORY / "examples" / "gpt"
NODES = 3  # of the cluster's four: one remains to replace the lost node
STEPS = 120
FAULT_STEP = 46  # between two checkpoints, so that steps are lost and must be repeated
TRAINING = ["--steps", str(STEPS), "--every", "10", "--step-delay", "0.1"]
PATIENCE = 600.0  # seconds for each of the two trainings, on a very slow machine


def say(text: str = "") -> None:
    print(text, flush=True)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        find_tools()
    except TransomError as error:
        error.hint = "make setup, then make demo"
        return fail(error)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    short = Path(tempfile.mkdtemp(prefix="transom-demo-", dir="/tmp"))  # Unix sockets need a short path
    sandbox: Sandbox | None = None
    try:
        say(f"1. Starting a cluster: a real Slurm with {NODES + 1} nodes on this machine, for this demo only.")
        sandbox = Sandbox.up(SandboxSpec(short / "sandbox", nodes=NODES + 1, gpus_per_node=1))
        say("   " + sandbox.slurm("sinfo", "-h", "-o", "%D nodes %t: %N").strip().replace("\n", "\n   "))
        reference = train_plainly(sandbox)
        supervised, victim, killed_at = train_and_kill(sandbox)
        return report(sandbox, reference, supervised, victim, killed_at)
    except TransomError as error:
        return fail(error)
    except KeyboardInterrupt:
        print("\ninterrupted; stopping the cluster and the run in it", file=sys.stderr)
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # always stop the cluster
        clean_up(sandbox, short)


def environment(sandbox: Sandbox) -> dict[str, str]:
    """Return an environment with this cluster's Slurm, without settings of the caller's own clusters."""
    mine = ("SLURM_", "SBATCH_", "TRANSOM_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
    return {**env, **sandbox.env(), "XDG_CONFIG_HOME": str(OUT / "no-settings")}


def train_plainly(sandbox: Sandbox) -> Path:
    """Return the result of an undisturbed training, run as a plain Slurm job without transom."""
    say(f"\n2. Training without transom and without a fault: {STEPS} steps of a small GPT on {NODES} ranks.")
    result, log = OUT / "undisturbed.json", OUT / "undisturbed.log"
    options = [f"--output={log}", f"--chdir={OUT}", f"--nodes={NODES}", "--no-requeue"]
    words = ["sbatch", "--parsable", *options, str(GPT / "train.sbatch"), *TRAINING, "--final-hash", str(result)]
    env = {**environment(sandbox), "PYTHON": sys.executable, "TRAIN": str(GPT / "train.py")}
    began = time.monotonic()
    done = subprocess.run(words, env=env, cwd=OUT, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise TransomError("sbatch refused the plain job", done.stderr.strip())
    while not result.exists():
        waits = sandbox.slurm("squeue", "-h", "-o", "%T", "-t", "PENDING,RUNNING").split()
        if time.monotonic() - began > PATIENCE or (not waits and not result.exists()):
            tail = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else ["it left no log"]
            raise TransomError("The undisturbed training failed", "\n".join(tail), f"less {log}")
        time.sleep(0.5)
    say(f"   done in {time.monotonic() - began:.0f} s")
    return result


def train_and_kill(sandbox: Sandbox) -> tuple[Path, str, float]:
    """Run `transom run` and kill a node. Return the result, the node, and the time of its death (Unix time)."""
    result = OUT / "supervised.json"
    train = [sys.executable, str(GPT / "train.py"), *TRAINING, "--final-hash", str(result)]
    ask = ["-N", str(NODES), "--gpus-per-node", "1", "--name", "demo"]
    say("\n3. The same training under transom, with a fault:")
    say(f"   transom run {' '.join(ask)} -- python examples/gpt/train.py {' '.join(TRAINING)}")
    say(f"   After step {FAULT_STEP}, one of its nodes dies with everything on it. transom gets no notice of it.\n")
    words = own("transom_cli", "run", "--root", str(OUT / "runs"), *ask, "--", *train)
    watching = subprocess.Popen(words, env=environment(sandbox), cwd=OUT)
    killer = Killer(sandbox)
    killer.start()
    try:
        code = watching.wait(PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise TransomError(f"The run took more than {PATIENCE:.0f} s", hint=f"less {OUT}/runs/*/*.log") from error
    finally:
        killer.over.set()
        if watching.poll() is None:
            watching.terminate()
        killer.join()
    if killer.error is not None:
        raise TransomError("No node could be killed", repr(killer.error)) from killer.error
    if code != 0:
        raise TransomError(f"`transom run` ended with exit code {code}", hint=f"less {OUT}/runs/*/*.log")
    if not killer.victim:
        raise TransomError("The run finished before a node was killed", "the demo showed nothing")
    return result, killer.victim, killer.at


class Killer(threading.Thread):
    """Kills a node of the newest run at FAULT_STEP, but not the one with the batch script."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(name="killer", daemon=True)
        self.over = threading.Event()
        self.victim, self.at = "", 0.0
        self.error: Exception | None = None
        self._sandbox = sandbox

    def run(self) -> None:
        try:
            while not self.over.wait(0.2):
                run = newest_run()
                if run is not None and read_view(run).step >= FAULT_STEP:
                    self._kill(run)
                    return
        except Exception as error:  # the main thread reports it
            self.error = error

    def _kill(self, run: RunDir) -> None:
        state = fold(run.journal).state
        self.victim = [node for node in state.job.nodes if node != state.job.batch_host][-1]
        self.at = time.time()
        count = faults.kill_node(self._sandbox, self.victim)
        if not sys.stdout.isatty():  # on a terminal, the live view owns the screen
            say(f"{time.strftime('%H:%M:%S', time.localtime(self.at))} demo: {self.victim} dies ({count} processes)")


def newest_run() -> RunDir | None:
    try:
        run = find_run(OUT / "runs")
    except NoSuchRun:
        return None
    return run if run.journal.exists() else None


def report(sandbox: Sandbox, reference: Path, supervised: Path, victim: str, killed_at: float) -> int:
    words = own("transom_cli", "explain", "--json", "--root", str(OUT / "runs"))
    done = subprocess.run(words, env=environment(sandbox), capture_output=True, text=True, timeout=60, check=False)
    (OUT / "incidents.json").write_text(done.stdout)
    if done.returncode:
        raise TransomError("`transom explain` failed", done.stderr.strip())
    incidents = json.loads(done.stdout)["incidents"]
    say("\n4. What happened, from the operator's journal (`transom explain`):\n")
    for incident in incidents:
        say("\n".join(incident_table(incident, victim, killed_at, shutil.get_terminal_size((110, 24)).columns)))
    state = sandbox.slurm("sinfo", "-h", "-N", "-n", victim, "-o", "%N is %t in Slurm: %E").strip()
    say(f"\n   {state[:200]}")
    if len(incidents) != 1 or incidents[0]["result"] != "recovered":
        results = ", ".join(f"{i['id']} {i['result']}" for i in incidents) or "none"
        raise TransomError("Expected one incident, recovered", f"the journal has: {results}")
    isolated = [words for _, what, words in incidents[0]["marks"] if what == "isolated"]
    if not any(words.startswith(f"{victim} ") for words in isolated):
        raise TransomError(f"{victim} died but was not isolated", "\n".join(isolated))
    say("\n5. Is the result the same as that of the undisturbed training?\n")
    equal, lines = compare(json.loads(reference.read_text()), json.loads(supervised.read_text()))
    say("\n".join(f"   {line}" for line in lines))
    say(f"\nFiles: {OUT} (run directory, logs, journal); the cluster's logs are in {OUT / 'slurm'}.")
    return 0 if equal else 1


def fail(error: TransomError) -> int:
    print(f"\nerror: {error}", file=sys.stderr)
    return error.exit_code


def clean_up(sandbox: Sandbox | None, short: Path) -> None:
    run = newest_run()
    holder = read_holder(run) if run is not None else None
    if holder is not None and holder.here() and holder.alive_here():
        os.kill(holder.pid, signal.SIGTERM)  # an operator survives its view, and is useless without its cluster
    if sandbox is not None:
        sandbox.down()
        shutil.copytree(sandbox.dir / "log", OUT / "slurm", dirs_exist_ok=True)
        shutil.copy(sandbox.dir / "slurm.conf", OUT / "slurm")
    shutil.rmtree(short, ignore_errors=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

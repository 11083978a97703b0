"""The launcher: owns one attempt, in the batch script. First form: start, watch, forward signals, record the outcome.

After a failure it does not leave at once: while a live operator's lease is renewed, the allocation is kept until the
operator requeues the job (a job that ends with a dead node in it hangs in COMPLETING until SlurmdTimeout). Relaunching
on the same nodes and swapping in spares will be decided between `_watch` and `_record`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.beats.places import ROLE
from transom_cli.core.codec import plain
from transom_cli.core.diagnose import first_bad
from transom_cli.core.events import RankExit
from transom_cli.core.srunwords import task_exits
from transom_cli.errors import BadNodes, UsageError
from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir
from transom_cli.supervise import launchplan
from transom_cli.supervise.exits import read_exits
from transom_cli.supervise.launchplan import Allocation, LaunchOptions
from transom_cli.supervise.lease import read_holder

TURN = 0.05
AGENTS_END = 3.0  # seconds for the agents to see the outcome and leave
SETTLE = 1.0  # after the first bad exit: how long to wait to hear of the other ranks
OPERATOR_GONE = 20.0  # seconds without a renewed lease, on our clock
LINGER = 180.0  # at most this long for a live operator to requeue
KILL_AFTER = 25.0  # seconds from TERM to KILL, within Slurm's own KillWait of 30
WRAPPER = Path(__file__).resolve().parents[1] / "agent" / "rank.py"


def allocation_from(environ: dict[str, str] | os._Environ[str]) -> Allocation:
    from ClusterShell.NodeSet import NodeSet

    try:
        job_id = int(environ["SLURM_JOB_ID"])
        nodes = tuple(NodeSet(environ["SLURM_JOB_NODELIST"]))
    except (KeyError, ValueError) as error:
        raise UsageError(
            "`transom launch` runs inside a Slurm job's batch script",
            f"missing or unreadable: {error}",
            "Submit with `transom run -- COMMAND`, which writes such a script.",
        ) from error
    restart = int(environ.get("SLURM_RESTART_COUNT") or 0)  # unset on a job's first start
    return Allocation(job_id, restart, nodes, environ.get("SLURM_CPUS_PER_TASK", ""))


def address_of(node: str) -> str:
    """A name that the other nodes can connect to: the node's own if it resolves, else Slurm's NodeAddr."""
    try:
        socket.getaddrinfo(node, None)
        return node
    except OSError:
        from transom_cli.wiring import slurm_client

        return next(iter(slurm_client().nodes([node]))).address or node


class Launcher:
    def __init__(self, allocation: Allocation, options: LaunchOptions) -> None:
        self._allocation = allocation
        self._options = options
        self._attempt: AttemptDir = options.run.attempt(allocation.job_id, allocation.restart)
        self._launch = 0
        self._signals: list[int] = []
        self._agents: subprocess.Popen[bytes] | None = None
        self._told_to_stop = False
        self._told: dict[int, RankExit] = {}

    def run(self) -> int:
        """The batch script's exit code: 0 done, else that of the rank that died first (128 + n for a signal)."""
        self._make_attempt_dir()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda n, _frame: self._signals.append(n))  # no work inside a handler
        self._journal("attempt", nodes=self._allocation.nodes, host=socket.gethostname(), pid=os.getpid())
        self._start_agents()
        try:
            code = self._watch(self._start_training())
        finally:
            self._stop_agents()
        return code

    def _make_attempt_dir(self) -> None:
        run = self._options.run
        if not run.settings.exists():
            raise BadNodes(
                f"The run directory `{run.path}` is not visible on node {socket.gethostname()}",
                "its run.toml is not there; the run directory must be on a file system that every node mounts",
                "Set `root` to a folder on a shared file system, and submit again.",
            )
        attempt = self._attempt
        try:
            for path in (attempt.path, attempt.nodes, attempt.logs(0), attempt.exits(0)):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadNodes(f"Cannot write in the run directory `{run.path}`", str(error)) from error

    def _journal(self, kind: str, **fields: Any) -> None:
        record = {"type": kind, "wall": time.time(), "launch": self._launch, **plain_fields(fields)}
        with self._attempt.launcher_journal.open("a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")

    def _start_agents(self) -> None:
        argv = launchplan.agent_argv(self._allocation, self._options, self._attempt)
        env = {**os.environ, ROLE: "agent"}
        self._agents = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env)

    def _stop_agents(self) -> None:
        """They end by themselves once the outcome stands; when Slurm ends the job there is no time to wait for that."""
        if self._agents is None:
            return
        try:
            self._agents.wait(0 if self._told_to_stop else AGENTS_END)
        except subprocess.TimeoutExpired:
            self._agents.kill()

    def _start_training(self) -> subprocess.Popen[bytes]:
        master = address_of(self._allocation.nodes[0])
        port = launchplan.port_for(self._allocation, self._launch)
        env = launchplan.training_env(os.environ, master, port, self._options.run)
        argv = launchplan.training_argv(
            self._allocation, self._options, self._attempt, self._launch, wrapper=WRAPPER, master=master, port=port
        )
        tasks = 1 if self._options.kind == "torchrun" else self._options.tasks_per_node
        self._tasks = tasks * len(self._allocation.nodes)
        world = self._options.tasks_per_node * len(self._allocation.nodes)
        step = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        threading.Thread(target=self._listen, args=(step,), name="srun-words", daemon=True).start()
        self._journal("launch", nodes=self._allocation.nodes, world_size=world, argv=argv)
        print(
            f"transom: launch {self._launch} of attempt {self._attempt.name}: {world} ranks on "
            f"{len(self._allocation.nodes)} nodes, logs in {self._attempt.logs(self._launch)}",
            flush=True,
        )
        return step

    def _listen(self, step: subprocess.Popen[bytes]) -> None:
        """srun's own words: passed on as they are, and read for tasks whose wrapper's word may never come."""
        assert step.stderr is not None
        for line in step.stderr:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            for told in task_exits(line.decode(errors="replace"), time.time()):
                where = told.node or self._allocation.nodes[told.rank * len(self._allocation.nodes) // self._tasks]
                self._told.setdefault(told.rank, replace(told, node=where))

    def _watch(self, step: subprocess.Popen[bytes]) -> int:
        failing_since: float | None = None
        stop_by: float | None = None
        while True:
            stop_by = self._forward(step, stop_by)
            exits = self._read_exits()
            over = step.poll() is not None
            if failing_since is None and any(x.bad for x in exits.values()):
                failing_since = time.monotonic()
            if over or len(exits) == self._tasks:
                break
            if failing_since is not None and time.monotonic() - failing_since > SETTLE:
                break
            if stop_by is not None and time.monotonic() > stop_by:
                step.kill()
            time.sleep(TURN)
        return self._record(step, exits)

    def _forward(self, step: subprocess.Popen[bytes], stop_by: float | None) -> float | None:
        while self._signals:
            number = self._signals.pop(0)
            self._journal("signal", name=signal.Signals(number).name)
            if step.poll() is None:
                step.send_signal(number)  # srun hands it on to every task
            if number in (signal.SIGTERM, signal.SIGINT):
                self._told_to_stop = True
                stop_by = stop_by or time.monotonic() + KILL_AFTER
        return stop_by

    def _read_exits(self) -> dict[int, RankExit]:
        """By rank (under torchrun: by node). A wrapper's own record counts before what srun says of its task."""
        return {**self._told, **read_exits(self._attempt.exits(self._launch))}

    def _record(self, step: subprocess.Popen[bytes], exits: dict[int, RankExit]) -> int:
        """outcome.json is written last: whoever reads it may believe the rest of the attempt directory."""
        ranks = tuple(exits[n] for n in sorted(exits))
        first = first_bad(ranks)
        heard = {x.node for x in ranks}
        missing = tuple(n for n in self._allocation.nodes if n not in heard)
        if first is None and len(ranks) == self._tasks:
            status, why, code = "done", "every rank ended with exit code 0", 0
        else:
            srun = step.poll()
            why = (
                first.words if first else f"the training step ended (srun exit code {srun}) without a word of its ranks"
            )
            status = "stopped" if self._told_to_stop else "failed"
            code = _exit_code(first) if first else (srun or 1)
        self._journal("outcome", status=status, why=why, exit_code=code)
        outcome = {"attempt": self._attempt.name, "status": status, "why": why, "exits": plain(ranks)}
        outcome |= {"missing": list(missing), "nodes": list(self._allocation.nodes)}
        publish_text(self._attempt.outcome, json.dumps(outcome) + "\n")
        print(f"transom: {status}: {why}", flush=True)
        if status == "failed":
            self._linger(step)
        return code

    def _linger(self, step: subprocess.Popen[bytes]) -> None:
        """Keep the allocation for a live operator; be gone when there is none, or when Slurm says so."""
        began = seen_at = time.monotonic()
        seen = read_holder(self._options.run)
        while time.monotonic() - began < LINGER and not self._told_to_stop:
            holder = read_holder(self._options.run)
            if holder is None or holder.released:
                return
            if seen is None or (holder.epoch, holder.renewals) != (seen.epoch, seen.renewals):
                seen, seen_at = holder, time.monotonic()
            if time.monotonic() - seen_at > OPERATOR_GONE:
                return
            self._forward(step, None)
            time.sleep(0.1)
        step.kill()  # the job is being requeued or cancelled: Slurm removes what is left of the step


def plain_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in fields.items()}


def _exit_code(first: RankExit) -> int:
    return 128 + first.signal if first.signal is not None else (first.code or 1)


def main(options: LaunchOptions) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return Launcher(allocation_from(os.environ), options).run()

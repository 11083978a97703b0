"""Transports to node workers: child processes of this one (here, over ssh, in network namespaces), or one Slurm step.

Threads write to the processes and read from them, so the health run never blocks on a node. Nothing listens on a port.
"""

import contextlib
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from transom_cli.health.protocol import Assembler, Message
from transom_cli.heartbeat.paths import ROLE
from transom_cli.slurm.gpus import all_of_them
from transom_cli.start import own

WORKER = "transom_cli.health.node_worker"
BYE = 1.0  # seconds for workers to end by themselves
KILL = 2.0  # seconds from TERM to KILL
_LINES = 40  # lines kept of what the processes print to stderr
_END: Message = {}
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)

# srun's message for a task that failed: "srun: error: node3: task 2: Killed".
_TASK_ENDED = re.compile(r"srun: error: (\S+): tasks? [\d,-]+: (killed|terminated|out of memory)?", re.IGNORECASE)
_FAILED_ON = re.compile(r"(?:failed on node|Node failure on|on node) (\S+?):", re.IGNORECASE)


class Pipes:
    """Worker processes behind pipes. `over`: all have ended. errors: last lines of their stderr."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[bytes]] = []
        self._outboxes: list[queue.SimpleQueue[bytes]] = []
        self._living = 0
        self._ended: set[int] = set()  # IDs of outboxes whose process has ended
        self._lock = threading.Lock()
        self.errors: deque[str] = deque(maxlen=_LINES)

    def add(self, argv: Sequence[str], env: dict[str, str] | None = None) -> queue.SimpleQueue[bytes]:
        """Start a process and return the queue of what is written to it."""
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
        )
        outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._children.append(child)
        self._outboxes.append(outbox)
        self._living += 1
        for work in (self._read, self._read_errors, self._write):
            threading.Thread(target=work, args=(child, outbox), name="transport", daemon=True).start()
        return outbox

    @property
    def over(self) -> bool:
        return self._living == 0

    def ended(self, outbox: queue.SimpleQueue[bytes]) -> bool:
        """Return whether the process behind this queue has ended and its last message is in the inbox."""
        return id(outbox) in self._ended

    def receive(self, timeout: float) -> Message | None:
        if self.over and self._inbox.empty():
            return None
        try:
            message = self._inbox.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        return message or None

    def close(self) -> None:
        """Ask the processes to end, then send TERM (which srun forwards to its step) and KILL."""
        for outbox in self._outboxes:
            outbox.put(line_of({"do": "bye"}))
            outbox.put(b"")
        until = time.monotonic() + BYE
        while not self.over and time.monotonic() < until:
            time.sleep(0.01)
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [child for child in self._children if child.poll() is None]
            for child in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
            until = time.monotonic() + KILL
            for child in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, until - time.monotonic()))

    def _read(self, child: subprocess.Popen[bytes], outbox: queue.SimpleQueue[bytes]) -> None:
        assembler = Assembler()
        assert child.stdout is not None
        for line in child.stdout:
            message = assembler.feed(line.decode("utf-8", "replace"))
            if message is not None:
                self._inbox.put(message)
        child.wait()
        outbox.put(b"")
        with self._lock:
            self._ended.add(id(outbox))
            self._living -= 1
            if self.over:
                self._inbox.put(_END)

    def _read_errors(self, child: subprocess.Popen[bytes], _outbox: queue.SimpleQueue[bytes]) -> None:
        assert child.stderr is not None
        for line in child.stderr:
            self.errors.append(line.decode("utf-8", "replace").rstrip()[:500])

    @staticmethod
    def _write(child: subprocess.Popen[bytes], outbox: queue.SimpleQueue[bytes]) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            while data := outbox.get():
                child.stdin.write(data)
                child.stdin.flush()


def line_of(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


Reach = Callable[[str, list[str]], list[str]]  # (node, worker's command line) -> command line that starts it there


def here(_node: str, argv: list[str]) -> list[str]:
    return argv


def by_ssh(node: str, argv: list[str]) -> list[str]:
    """Return an ssh command that never prompts. ssh passes the words to a shell, so they are quoted."""
    return ["ssh", "-oBatchMode=yes", "-oConnectTimeout=5", "--", node, shlex.join(["exec", *argv])]


class LocalTransport(Pipes):
    """One child process per node: this node's worker, or one that `reach` starts elsewhere.

    Args:
        env: by node, additional environment variables.
    """

    def __init__(
        self, nodes: Sequence[str], reach: Reach = here, env: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        super().__init__()
        self.nodes = tuple(nodes)
        self._outbox = {}
        for node in self.nodes:
            environment = {**os.environ, **(env or {}).get(node, {})}
            self._outbox[node] = self.add(reach(node, own(WORKER, "--node", node)), environment)

    def killed(self) -> tuple[str, ...]:
        return tuple(n for n, child in zip(self.nodes, self._children, strict=False) if child.poll() in _KILLED)

    def gone(self) -> tuple[str, ...]:
        """Return nodes whose worker has ended; all that they sent can be received by then."""
        return tuple(node for node, outbox in self._outbox.items() if self.ended(outbox))

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        for node in to or self.nodes:
            self._outbox[node].put(line_of(message))


class SrunTransport(Pipes):
    """One Slurm step inside our job, with a worker per node, over srun's stdin and stdout. MUNGE authenticates.

    The step overlaps with other steps and has the job's devices on each node. srun copies its stdin to every task, so a
    message for some nodes names them.
    """

    def __init__(self, job_id: int, nodes: Sequence[str], srun_options: Sequence[str] = ()) -> None:
        super().__init__()
        self.nodes = tuple(nodes)
        env = {name: value for name, value in os.environ.items() if not name.startswith("PMI")}
        self._outbox = self.add(step_argv(job_id, self.nodes, srun_options), {**env, ROLE: "check"})

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        addressed = {**message, "to": list(to)} if to and tuple(to) != self.nodes else message
        self._outbox.put(line_of(addressed))

    def gone(self) -> tuple[str, ...]:
        """Return nodes whose worker failed, by srun's messages. srun does not report one that ends by itself."""
        return tuple(n for n in self.nodes if n in self._ends())

    def killed(self) -> tuple[str, ...]:
        return tuple(n for n in self.nodes if self._ends().get(n))

    def _ends(self) -> dict[str, str]:
        return dict(match for line in tuple(self.errors) for match in _TASK_ENDED.findall(line))

    def not_started(self) -> tuple[str, ...]:
        """Return nodes on which srun could not start its task. It starts no task at all then."""
        named = {match for line in tuple(self.errors) for match in _FAILED_ON.findall(line)}
        return tuple(n for n in self.nodes if n in named)


def step_argv(job_id: int, nodes: tuple[str, ...], srun_options: Sequence[str] = ()) -> list[str]:
    """Return srun's command line: one task per node, not bound to CPUs, since the probe processes are its children."""
    return [
        "srun",
        f"--jobid={job_id}",
        "--export=ALL",  # where SLURM_EXPORT_ENV is NONE, nothing would be passed on
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--mem=0",
        "--cpu-bind=none",
        *all_of_them(os.environ),
        "--job-name=transom-check",
        *srun_options,
        *own(WORKER),
    ]

"""The node worker of a health run: reads requests on stdin, answers on stdout. One per node.

    python -m transom_cli.health.node_worker [--node N]

It ends when its stdin closes. `protocol` describes the messages. Standard library only: readers and probe processes,
which need more, are its children.
"""

import argparse
import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.health.check import About
from transom_cli.health.probe.messages import Gone, answer_to_json
from transom_cli.health.protocol import Message, frames
from transom_cli.heartbeat.paths import node_name
from transom_cli.start import own

END = 0.3  # seconds for the reader process to end by itself
STARTING = 5.0  # additional seconds for its interpreter to start, on a busy node with a cold file system
_STDERR_LINE = 2000  # characters kept of a line that a probe process prints to stderr
_STDERR_LINES = 20


@dataclass(frozen=True)
class CheckRequest:
    """A check to read: its name, its reader ("module:function"), and its deadline in seconds."""

    name: str
    reader: str
    seconds: float


def read_checks(about: About, wanted: Sequence[CheckRequest], starting: float = STARTING) -> Iterator[Message]:
    """Run readers in a process of their own; yield each reading as it arrives.

    A reader that crashes the process, or blocks the interpreter inside a library, costs only its own deadline.

    Yields:
        `{"check", "reading"}`, or "error" or "waited" in place of the reading; one per check.
    """
    checks = [{"name": w.name, "reader": w.reader} for w in wanted]
    request = json.dumps({"about": plain(about), "checks": checks})
    pending = {w.name: w.seconds for w in wanted}
    child = subprocess.Popen(
        own("transom_cli.health.reader_process"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    began = time.monotonic()
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(request.encode() + b"\n")
        child.stdin.flush()  # kept open: closing it would end the process
        for line in _lines(child.stdout.fileno(), began, starting, pending):
            try:
                answer = json.loads(line)
                name = answer["check"]
            except (ValueError, KeyError, TypeError):
                continue  # a library printed it
            if pending.pop(name, None) is not None:
                yield answer
    except BrokenPipeError:
        pass  # it died at once; pending checks are reported below
    finally:
        code = _end(child)
    waited = round(time.monotonic() - began, 1)
    for name in pending:
        yield (
            {"check": name, "waited": waited}
            if code is None
            else {"check": name, "error": f"the reader {_describe(code)}"}
        )


def _lines(fd: int, began: float, starting: float, pending: dict[str, float]) -> Iterator[bytes]:
    """Yield whole lines until nothing is pending or the longest pending deadline has passed."""
    os.set_blocking(fd, False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while pending:
            remaining = began + starting + max(pending.values()) - time.monotonic()
            if remaining <= 0:
                return
            if not selector.select(remaining):
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


def _end(child: subprocess.Popen[bytes]) -> int | None:
    """Return its exit code; None if it, or a program that a reader started, had to be killed.

    A process stuck in the kernel dies when it returns from there; this does not wait for it.
    """
    assert child.stdin is not None and child.stdout is not None
    child.stdout.close()
    code = _wait(child)
    with contextlib.suppress(OSError):
        child.stdin.close()
    if code is None:
        _wait(child)  # it kills the programs that its readers started
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if code is None:
        _wait(child)
    return code


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(END)
    except subprocess.TimeoutExpired:
        return None


def _describe(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


class ProbeProcesses:
    """The probe processes of this node (`probe.rank`), one per device.

    Args:
        send: gets {"re": "probe", "index": i, "answer": {...}} for each line that one of them prints.
    """

    def __init__(self, node: str, send: Callable[[Message], None]) -> None:
        self._node, self._send = node, send
        self._children: list[subprocess.Popen[bytes]] = []
        self._outboxes: list[queue.SimpleQueue[bytes]] = []

    def start(self, message: Message) -> None:
        """Start them once. message: {"do": "start", "python": [...], "devices": n}; with 0 devices, one on the CPU."""
        if self._children:
            return
        count = int(message.get("devices") or 0)
        python = [str(word) for word in message.get("python") or [sys.executable]]
        for index in range(max(1, count)):
            device = f"cuda:{index}" if count else "cpu"
            options = ("--node", self._node, "--index", str(index), "--device", device, "--of", str(max(1, count)))
            argv = own("transom_cli.health.probe.rank", *options, python=python)
            try:
                child = subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
                )
            except OSError as error:
                self._gone(index, f"cannot start {python[0]}: {error.strerror}")
                continue
            outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            self._children.append(child)
            self._outboxes.append(outbox)
            threading.Thread(target=self._read, args=(index, child), daemon=True).start()
            threading.Thread(target=self._write, args=(child, outbox), daemon=True).start()

    def send_all(self, request: Message) -> None:
        """Send a request to all of them; a stopped process blocks nobody."""
        data = json.dumps(request).encode() + b"\n"
        for outbox in self._outboxes:
            outbox.put(data)

    def kill(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    @staticmethod
    def _write(child: subprocess.Popen[bytes], outbox: queue.SimpleQueue[bytes]) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, and `_read` reports that
            while True:
                child.stdin.write(outbox.get())
                child.stdin.flush()

    def _read(self, index: int, child: subprocess.Popen[bytes]) -> None:
        errors: list[str] = []
        error_reader = threading.Thread(target=self._read_errors, args=(child, errors), daemon=True)
        error_reader.start()
        assert child.stdout is not None
        for line in child.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict):
                self._answer(index, answer)
        code = child.wait()
        error_reader.join(1.0)
        last = "".join(errors).strip().splitlines()[-1:] or [""]
        self._gone(index, f"the probe process {_describe(code)}. {last[0]}".strip(" ."))

    @staticmethod
    def _read_errors(child: subprocess.Popen[bytes], errors: list[str]) -> None:
        """Drain stderr, so that its pipe cannot fill up; the last lines say why the process died."""
        assert child.stderr is not None
        for line in child.stderr:
            errors.append(line.decode("utf-8", "replace")[:_STDERR_LINE])
            del errors[:-_STDERR_LINES]

    def _gone(self, index: int, how: str) -> None:
        self._answer(index, answer_to_json(Gone(how)))

    def _answer(self, index: int, answer: Message) -> None:
        self._send({"re": "probe", "index": index, "answer": answer})


class NodeWorker:
    def __init__(self, node: str, out: int = 1) -> None:
        self._node, self._out = node, out
        self._lock = threading.Lock()
        self._number = 0
        self._probes = ProbeProcesses(node, self.send)

    def send(self, message: Message) -> None:
        """Send a message; any thread may. If the health run is gone, closing our stdin ends this process."""
        with self._lock:
            self._number += 1
            data = "".join(f"{line}\n" for line in frames(self._node, self._number, message)).encode("ascii")
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:
                return

    def handle(self, message: Message) -> bool:
        """Handle a request without blocking; False for "bye". Requests for other nodes and unknown ones are ignored."""
        to = message.get("to")
        if isinstance(to, list) and self._node not in to:
            return True
        do = message.get("do")
        if do == "ping":
            self.send({"re": "ping", "n": message.get("n"), "wall": time.time()})
        elif do == "read":
            threading.Thread(target=self._read, args=(message,), daemon=True).start()
        elif do == "start":
            self._probes.start(message)
        elif do == "probe" and isinstance(message.get("request"), dict):
            self._probes.send_all(message["request"])
        return do != "bye"

    def _read(self, message: Message) -> None:
        try:
            about = build(About, message["about"])
            wanted = [CheckRequest(str(c["name"]), str(c["reader"]), float(c["seconds"])) for c in message["checks"]]
            for answer in read_checks(about, wanted):
                self.send({"re": "read", **answer})
        except (BadRecord, KeyError, TypeError, ValueError, OSError) as error:
            self.send({"re": "read", "check": "", "error": f"{type(error).__name__}: {error}"})

    def end(self) -> None:
        self._probes.kill()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="transom_cli.health.node_worker", description="Check this node.")
    parser.add_argument("--node", default=node_name())
    options = parser.parse_args(argv)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every step of a job
    os.environ["SLURMD_NODENAME"] = options.node  # for the children, also without Slurm
    worker = NodeWorker(options.node)
    worker.send({"re": "here", "pid": os.getpid(), "wall": time.time()})
    try:
        for line in sys.stdin:
            try:
                message: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and not worker.handle(message):
                break
    finally:
        worker.end()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # do not wait for threads of readings in progress

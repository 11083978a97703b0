"""Probe processes on this machine, behind pipes, as a transport. For tests and benches.

The nodes' names are invented, and all nodes share this machine's loopback. If a node has a command to start its
processes with (`ip netns exec ns1`), it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from transom_cli.health.probe.messages import Gone, answer_to_json
from transom_cli.health.protocol import Message
from transom_cli.start import own


class LocalRanks:
    """A `Transport` of CPU processes, `devices` a node, to be driven many times: torch is imported once.

    processes: by node and number.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        devices: int = 1,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        popen: type[subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:
        self.nodes = tuple(nodes)
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._came: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._locks = {(node, index): threading.Lock() for node in nodes for index in range(devices)}
        for node, index in self._locks:
            rank = own("transom_cli.health.probe.rank", "--node", node, "--index", str(index))
            self.processes[node, index] = popen(
                [*(prefixes or {}).get(node, ()), *rank, "--of", str(devices), "--device", "cpu"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(environment or {}).get(node, {})},
            )
            threading.Thread(target=self._read, args=(node, index), daemon=True).start()

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def some(self, nodes: Sequence[str]) -> SomeRanks:
        """A transport to these nodes only; this one still owns the processes."""
        return SomeRanks(self, tuple(nodes))

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        """Without waiting: what a stopped process does not read stays in its pipe, which holds 64 KiB."""
        line = json.dumps(message["request"]).encode() + b"\n"
        chosen = set(to or self.nodes)
        for device in self.processes:
            if device[0] in chosen:
                threading.Thread(target=self._write, args=(device, line), daemon=True).start()

    def receive(self, timeout: float) -> Message | None:
        try:
            return self._came.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def _write(self, device: tuple[str, int], line: bytes) -> None:
        pipe = self.processes[device].stdin
        assert pipe is not None
        with self._locks[device], contextlib.suppress(OSError, ValueError):
            pipe.write(line)
            pipe.flush()

    def _read(self, node: str, index: int) -> None:
        process = self.processes[node, index]
        assert process.stdout is not None
        for line in process.stdout:
            self._came.put({"re": "probe", "node": node, "index": index, "answer": json.loads(line)})
        code = process.wait()
        words = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        gone = answer_to_json(Gone(words))
        self._came.put({"re": "probe", "node": node, "index": index, "answer": gone})


class SomeRanks:
    """Some of the nodes of a `LocalRanks`."""

    def __init__(self, ranks: LocalRanks, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes
        self._ranks = ranks

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        self._ranks.send(message, to or self.nodes)

    def receive(self, timeout: float) -> Message | None:
        end = time.monotonic() + timeout
        while (message := self._ranks.receive(end - time.monotonic())) is not None:
            if message["node"] in self.nodes:
                break
        return message

    def close(self) -> None:
        """Nothing: the processes are ended by whom they belong to."""

"""Probe processes of this machine as a crew: started here, spoken with over pipes. For tests and benches.

The nodes' names are made up, and all of them share this machine's loopback. Where a node has a command to start its
process with (`ip netns exec ns1`), it is started with that.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO

from transom_cli.health.crew import Message
from transom_cli.health.probe.shapes import Gone, answer_to_json


class LocalRanks:
    """A `Crew` of one CPU process a node; `processes` by node. It may be driven many times: torch is imported once."""

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._came: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._locks = {node: threading.Lock() for node in nodes}
        for node in self.nodes:
            rank = [sys.executable, "-m", "transom_cli.health.probe.rank", "--node", node, "--index", "0"]
            self.processes[node] = subprocess.Popen(
                [*(prefixes or {}).get(node, ()), *rank, "--device", "cpu"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(environment or {}).get(node, {})},
            )
            threading.Thread(target=self._read, args=(node,), daemon=True).start()

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def some(self, nodes: Sequence[str]) -> SomeRanks:
        """A crew of these nodes only; the processes stay this one's."""
        return SomeRanks(self, tuple(nodes))

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        """Without waiting: what a stopped process does not read stays in its pipe, which holds 64 KiB."""
        line = json.dumps(message["ask"]).encode() + b"\n"
        for node in to or self.nodes:
            pipe = self.processes[node].stdin
            assert pipe is not None
            threading.Thread(target=self._write, args=(node, pipe, line), daemon=True).start()

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

    def _write(self, node: str, pipe: IO[bytes], line: bytes) -> None:
        with self._locks[node], contextlib.suppress(OSError, ValueError):
            pipe.write(line)
            pipe.flush()

    def _read(self, node: str) -> None:
        process = self.processes[node]
        assert process.stdout is not None
        for line in process.stdout:
            self._came.put({"re": "probe", "node": node, "index": 0, "answer": json.loads(line)})
        code = process.wait()
        words = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        gone = answer_to_json(Gone(words))
        self._came.put({"re": "probe", "node": node, "index": 0, "answer": gone})


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

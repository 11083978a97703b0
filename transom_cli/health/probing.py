"""The probe processes of a node (`probe.rank`), one a device: started, asked all alike, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from transom_cli.health.probe.shapes import Gone, answer_to_json

_STDERR = 2000  # characters of what one printed, for the words on its end


class Probes:
    """`say` gets {"re": "probe", "index": i, "answer": {...}} for each line that one of them prints."""

    def __init__(self, node: str, say: Callable[[dict[str, Any]], None]) -> None:
        self._node, self._say = node, say
        self._children: list[subprocess.Popen[bytes]] = []
        self._asks: list[queue.SimpleQueue[bytes]] = []  # of each

    def start(self, message: dict[str, Any]) -> None:
        """{"do": "start", "python": [...], "devices": n}: so many accelerators, or with 0 the CPU. Once."""
        if self._children:
            return
        count = int(message.get("devices") or 0)
        python = [str(word) for word in message.get("python") or [sys.executable]]
        for index in range(max(1, count)):
            device = f"cuda:{index}" if count else "cpu"
            argv = [*python, "-m", "transom_cli.health.probe.rank"]
            argv += ["--node", self._node, "--index", str(index), "--device", device, "--of", str(max(1, count))]
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                self._gone(index, f"{python[0]} cannot be started: {error.strerror}")
                continue
            asks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            self._children.append(child)
            self._asks.append(asks)
            threading.Thread(target=self._hear, args=(index, child), daemon=True).start()
            threading.Thread(target=self._tell_it, args=(child, asks), daemon=True).start()

    def ask(self, message: dict[str, Any]) -> None:
        """Of all of them; one that is stopped keeps nobody waiting."""
        data = json.dumps(message).encode() + b"\n"
        for asks in self._asks:
            asks.put(data)

    @staticmethod
    def _tell_it(child: subprocess.Popen[bytes], asks: queue.SimpleQueue[bytes]) -> None:
        assert child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # one that has died has said so
            while True:
                child.stdin.write(asks.get())
                child.stdin.flush()

    def end(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def _hear(self, index: int, child: subprocess.Popen[bytes]) -> None:
        said: list[str] = []
        listener = threading.Thread(target=self._drain, args=(child, said), daemon=True)
        listener.start()
        assert child.stdout is not None
        for line in child.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict):
                self._tell(index, answer)
        code = child.wait()
        listener.join(1.0)
        last = "".join(said).strip().splitlines()[-1:] or [""]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._gone(index, f"the probe process ended with {how}. {last[0]}".strip(" ."))

    @staticmethod
    def _drain(child: subprocess.Popen[bytes], said: list[str]) -> None:
        """Its pipe must not fill up; the end of it tells why it died."""
        assert child.stderr is not None
        for line in child.stderr:
            said.append(line.decode("utf-8", "replace")[:_STDERR])
            del said[:-20]

    def _gone(self, index: int, how: str) -> None:
        self._tell(index, answer_to_json(Gone(how)))

    def _tell(self, index: int, answer: dict[str, Any]) -> None:
        self._say({"re": "probe", "index": index, "answer": answer})

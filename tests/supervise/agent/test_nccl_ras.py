"""Asking NCCL's RAS, here a stub server that speaks its text protocol."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from transom_cli.supervise.agent import nccl_ras, procfs


class Server:
    """Answers its clients one by one, as NCCL 2.27 (text only) or as a later one."""

    def __init__(self, json: bool, closes: bool = True) -> None:
        self.heard: list[str] = []
        self.says = b""  # instead of an answer without communicators
        self._json, self._closes = json, closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link, link.makefile("r") as lines:
                for line in lines:
                    self.heard.append(line.strip())
                    link.sendall(self._answer(line.strip()))
                    if line.startswith("VERBOSE STATUS"):
                        break
                if not self._closes:
                    lines.read()  # the process hangs in its answer

    def _answer(self, line: str) -> bytes:
        if line.startswith("CLIENT PROTOCOL"):
            return b"SERVER PROTOCOL 2\n"
        if line.startswith("SET FORMAT") and not self._json:
            return f"ERROR: Unknown command {line}\n".encode()
        if line == "VERBOSE STATUS" and self.says:
            return self.says
        if line == "VERBOSE STATUS":
            return b'{"communicators_count": 0}\n' if self._json else b"NCCL version 2.27.5\n"
        return b"OK\n"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    found: list[Server] = []
    yield found
    for server in found:
        server.close()


def listen(servers: list[Server], monkeypatch: pytest.MonkeyPatch, *, rank: int = 0, **more: bool) -> bytes:
    """Ask about a rank of eight, which is this process."""
    server = Server(**more)
    servers.append(server)
    env = {"NCCL_RAS_ADDR": f"127.0.0.1:{server.port}", "WORLD_SIZE": "8"}
    monkeypatch.setattr(procfs, "environ", lambda pid: env)
    return nccl_ras.ask([(rank, os.getpid())], time.monotonic() + 2.0)


def test_answer_of_each_version(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    assert b'{"communicators_count": 0}' in listen(servers, monkeypatch, json=True)
    assert b"NCCL version 2.27.5" in listen(servers, monkeypatch, json=False, rank=7)
    assert servers[1].heard == ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_node_in_the_middle_of_the_job_does_not_ask(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    assert listen(servers, monkeypatch, json=True, rank=3) == b"" and servers[0].heard == []


def test_what_has_arrived_by_the_deadline_is_kept(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"communicators_count" in listen(servers, monkeypatch, json=True, closes=False)


def test_another_jobs_process_is_not_asked(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the rank is not the one that listens
    assert listen(servers, monkeypatch, json=True) == b"" and servers[0].heard == []


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "environ", lambda pid: {"NCCL_RAS_ADDR": "localhost:1", "WORLD_SIZE": "1"})
    assert nccl_ras.ask([(0, os.getpid())], time.monotonic() + 2.0) == b""
    assert nccl_ras.ask([], time.monotonic()) == b""

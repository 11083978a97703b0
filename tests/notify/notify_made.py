"""Servers, commands and news for the tests of notifications. Everything is on this machine."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from transom_cli.notify.events import Notification
from transom_cli.notify.messages import About

ABOUT = About("demo-20261122-054110-96a8", "demo", "/runs/demo")
NOW = time.time()


def news(key: str, kind: str = "incident", at: float | None = None, headline: str = "", **more: object) -> Notification:
    return Notification(key, kind, NOW if at is None else at, headline or f"about {key}", **more)  # type: ignore[arg-type]


@dataclass
class Answer:
    """status, headers and body of an answer; `before`: called first, as to hang."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"
    before: Callable[[], object] = lambda: None


@dataclass
class Heard:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A web server that gives the next of `answers`, and the last one forever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [Answer()]
        self.heard: list[Heard] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                receiver.heard.append(Heard(self.path, dict(self.headers), self.rfile.read(length)))
                answer = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                answer.before()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_POST

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/services/T0P/SECRET-PATH") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving(*answers: Answer) -> Iterator[Receiver]:
    receiver = Receiver(*answers)
    try:
        yield receiver
    finally:
        receiver.close()


@contextmanager
def speaking(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server below HTTP, on the port that is given: `talk` has each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_talk, args=(talk, connection), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def _talk(talk: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with connection:
        try:
            talk(connection)
        except OSError:
            return


def program(path: Path, text: str) -> Path:
    """A shell script that may be run."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def secrets(path: Path, **urls: str) -> Path:
    """The file of secrets: a URL for each target, and one token for all."""
    path.write_text("".join(f'[{name}]\nurl = "{url}"\ntoken = "T0KEN-SECRET"\n' for name, url in urls.items()))
    path.chmod(0o600)
    return path


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)

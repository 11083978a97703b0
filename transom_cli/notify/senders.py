"""Sends a message to a target: by HTTP, a command, or mail, within a time limit. Errors contain no secrets.

HTTP uses urllib with a timer that closes the connection: timeouts of sockets and of HTTP libraries restart with each
byte. Redirects are not followed, as they would take the message and its headers to an unknown place. The proxy of the
environment (https_proxy, no_proxy) is used, which many login nodes require.
"""

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, responses
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transom_cli import __version__
from transom_cli.errors import TransomError, printable
from transom_cli.notify.messages import (
    COMMAND,
    DeliveryError,
    Message,
    Target,
    body,
    environment,
    mail_command,
    mail_text,
)
from transom_cli.notify.secrets import Secret, read_secret

_ANSWER = 4096  # bytes of an answer that are read
_WORD = re.compile(r"[a-z]+(?:_[a-z]+)+")  # an error of Slack: invalid_payload, channel_is_archived


class _Deadline:
    """Closes a connection at a fixed time."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._ends

    def watch(self, sock: socket.socket) -> None:
        """Watch a new connection, by a duplicate handle, because TLS takes over the original."""
        with self._lock:
            self._close()
            self._socket = sock.dup()
        if self.over:
            self._end()

    def _end(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def cancel(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class _Opener(urllib.request.HTTPSHandler):
    """Opens http and https URLs over connections that a deadline watches."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def _connect(self, *args: Any, **kwargs: Any) -> socket.socket:
        sock = socket.create_connection(*args, **kwargs)
        self._deadline.watch(sock)
        return sock

    def _connection(self, *args: Any, context: ssl.SSLContext | None = None, **kwargs: Any) -> HTTPConnection:
        made = HTTPSConnection(*args, context=context, **kwargs) if context else HTTPConnection(*args, **kwargs)
        made._create_connection = self._connect  # type: ignore[attr-defined]  # before TLS, which may hang too
        return made

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._connection, req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._connection, req, context=ssl.create_default_context())

    http_request = urllib.request.HTTPSHandler.https_request


def post(secret: Secret, body: bytes, key: str, timeout: float) -> None:
    """Post a message.

    Args:
        key: Names the message, the same for each try.
        timeout: Seconds for everything, except for a name server that does not respond.

    Raises:
        DeliveryError: It was not accepted.
    """
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"transom/{__version__}",
        "Idempotency-Key": key,
        **dict(secret.headers),
    }
    parts = urlsplit(secret.url)
    if parts.scheme not in ("http", "https"):
        raise DeliveryError("its URL is not http or https", again=False)
    request = urllib.request.Request(secret.url, data=body, headers=headers, method="POST")
    deadline = _Deadline(timeout)
    opener = urllib.request.OpenerDirector()  # no redirects, no passwords, no files
    for handler in (urllib.request.ProxyHandler(), _Opener(deadline)):
        opener.add_handler(handler)
    host = parts.hostname or ""
    try:
        with opener.open(request, timeout=timeout) as answer:
            status, after = answer.status, answer.headers.get("Retry-After", "")
            said = b"" if _accepted(status) else answer.read(_ANSWER)
    except (OSError, HTTPException, ValueError) as error:
        raise DeliveryError(f"{host}: {_why(error, deadline, timeout)}") from None
    finally:
        deadline.cancel()
    _judge(host, status, after, said)


def _accepted(status: int) -> bool:
    return 200 <= status < 300


def _judge(host: str, status: int, after: str, said: bytes) -> None:
    if _accepted(status):
        return
    words = responses.get(status, "")
    reply = f"{host} answered {status}{f' {words}' if words else ''}"
    if 300 <= status < 400:
        raise DeliveryError(f"{reply}, a redirect, which is not followed: configure the final URL", again=False)
    first = said.split(b"\n", 1)[0].strip().decode("ascii", "replace")
    if len(first) <= 40 and _WORD.fullmatch(first):
        reply += f" ({first})"
    again = status >= 500 or status in (408, 425, 429)
    raise DeliveryError(reply, again=again, after=float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0)


def _why(error: Exception, deadline: _Deadline, timeout: float) -> str:
    """Describe an error without the request: libraries quote headers and addresses."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if deadline.over or isinstance(reason, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate was rejected: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):
        return "TLS handshake failed"
    if isinstance(reason, socket.gaierror):
        return "its host name cannot be resolved"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return f"invalid response ({type(reason).__name__})"


_KEPT = 2048  # bytes of stderr that are kept
_LOOK = 0.05  # seconds
_FOREVER = (FileNotFoundError, PermissionError, NotADirectoryError)


def run_command(
    argv: tuple[str, ...], text: bytes, env: Mapping[str, str], timeout: float, end: threading.Event
) -> None:
    """Run a command with `text` on stdin, without a shell.

    Its session is killed at the deadline, or once `end` is set. If it ends before, its children live on (the queue of a
    mail program).

    Raises:
        DeliveryError: It did not end with exit code 0 within `timeout` seconds.
    """
    name = os.path.basename(argv[0])  # noqa: PTH119
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryFile() as given:  # a pipe would block if the command does not read
        given.write(text)
        given.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **env},
                start_new_session=True,
            )
        except OSError as error:
            again = not isinstance(error, _FOREVER)
            raise DeliveryError(f"{name} cannot be started: {error.strerror or error}", again=again) from None
        except ValueError as error:
            raise DeliveryError(f"{name} cannot be started: {error}", again=False) from None
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    said = b""
    try:
        while process.poll() is None and time.monotonic() < deadline and not end.is_set():
            said = _heard(process, said)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
        said = _heard(process, said)
    finally:
        code = process.poll()
        if code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stderr.close()
    if code is None:
        raise DeliveryError(f"{name} did not end within {timeout:g} s" if not end.is_set() else f"{name} was aborted")
    if code != 0:
        words = printable(said.decode("utf-8", "replace").strip().partition("\n")[0])[:200]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise DeliveryError(f"{name} ended with {how}{f': {words}' if words else ''}")


def _heard(process: subprocess.Popen[bytes], said: bytes) -> bytes:
    assert process.stderr is not None
    for _ in range(64):  # 4 MiB at most, so that endless output does not delay the deadline
        try:
            piece = os.read(process.stderr.fileno(), 1 << 16)
        except BlockingIOError:
            break
        if not piece:
            break
        said = (said + piece)[:_KEPT]
    return said


Send = Callable[[Message, threading.Event], None]


def sender(target: Target, secrets: Path, timeout: float) -> Send:
    """Return a function that sends a message to the target, or raises DeliveryError. Setting its event aborts it.

    secrets: The file of secrets. timeout: Seconds.
    """

    def send(message: Message, end: threading.Event) -> None:
        if target.posts:
            try:
                secret = read_secret(secrets, target.name)
            except TransomError as error:  # the user may fix it meanwhile
                raise DeliveryError(f"{error.what}: {error.why}" if error.why else error.what) from None
            post(secret, body(message, target), message.id, timeout)
        elif target.kind == COMMAND:
            run_command(target.argv, body(message, target), environment(message), timeout, end)
        else:
            run_command(mail_command(message, target), mail_text(message, target), {}, timeout, end)

    return send

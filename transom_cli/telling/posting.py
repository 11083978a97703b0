"""One POST of JSON over HTTP or HTTPS, with a deadline for all of it. Nothing that is secret comes into its errors.

No redirect is followed: it would take the message, and what stands in its headers, to a place that nobody has named.
The proxy of the environment (https_proxy, no_proxy) is used, without which many login nodes reach nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from transom_cli import __version__
from transom_cli.telling.secretfile import Secret
from transom_cli.telling.target import Undelivered

_ANSWER = 4096  # bytes of an answer that are read
_WORD = re.compile(r"[a-z]+(?:_[a-z]+)+")  # as Slack says what is wrong: invalid_payload, channel_is_archived


class _Deadline:
    """Ends a connection at a moment, whatever it does then: a timeout of sockets counts anew with each byte."""

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
        """Of a connection that was just made: by a handle of our own, since TLS takes the other one away."""
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


def _connections(base: type[http.client.HTTPConnection], deadline: _Deadline) -> Callable[..., Any]:
    def connect(*args: Any, **kwargs: Any) -> socket.socket:
        sock = socket.create_connection(*args, **kwargs)
        deadline.watch(sock)
        return sock

    def make(*args: Any, **kwargs: Any) -> http.client.HTTPConnection:
        connection = base(*args, **kwargs)
        connection._create_connection = connect  # type: ignore[attr-defined]  # watched before TLS, which may hang too
        return connection

    return make


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._connection = _connections(http.client.HTTPConnection, deadline)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._connection = _connections(http.client.HTTPSConnection, deadline)
        self._tls = ssl.create_default_context()

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req, context=self._tls)


def post(secret: Secret, body: bytes, key: str, timeout: float) -> None:
    """Send it, or raise Undelivered. `key` names the message, the same with every try. timeout: seconds for it all,
    but for a name server that does not answer."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"transom/{__version__}",
        "Idempotency-Key": key,
        **dict(secret.headers),
    }
    parts = urlsplit(secret.url)
    if parts.scheme not in ("http", "https"):
        raise Undelivered("its URL is none of http or https", again=False)
    request = urllib.request.Request(secret.url, data=body, headers=headers, method="POST")
    deadline = _Deadline(timeout)
    opener = urllib.request.OpenerDirector()  # with nothing that follows, asks for passwords, or opens files
    for handler in (urllib.request.ProxyHandler(), _Http(deadline), _Https(deadline)):
        opener.add_handler(handler)
    host = parts.hostname or ""
    try:
        with opener.open(request, timeout=timeout) as answer:
            status, after = answer.status, answer.headers.get("Retry-After", "")
            said = b"" if _accepted(status) else answer.read(_ANSWER)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Undelivered(f"{host}: {_why(error, deadline, timeout)}") from None
    finally:
        deadline.cancel()
    _judge(host, status, after, said)


def _accepted(status: int) -> bool:
    return 200 <= status < 300


def _judge(host: str, status: int, after: str, said: bytes) -> None:
    if _accepted(status):
        return
    words = http.client.responses.get(status, "")
    told = f"{host} answered {status}{f' {words}' if words else ''}"
    if 300 <= status < 400:
        raise Undelivered(f"{told}, a redirect, which is not followed: give the final URL", again=False)
    first = said.split(b"\n", 1)[0].strip().decode("ascii", "replace")
    if len(first) <= 40 and _WORD.fullmatch(first):
        told += f" ({first})"
    again = status >= 500 or status in (408, 425, 429)
    raise Undelivered(told, again=again, after=float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0)


def _why(error: Exception, deadline: _Deadline, timeout: float) -> str:
    """In words that hold nothing of the request: libraries quote headers and addresses in theirs."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if deadline.over or isinstance(reason, TimeoutError):
        return f"no answer within {timeout:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):
        return "no TLS connection"
    if isinstance(reason, socket.gaierror):
        return "the name is not known to the name server"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return f"no proper answer ({type(reason).__name__})"

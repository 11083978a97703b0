"""Requests of users on call (`run.on_call`) to the operator of another user's run, over a Unix socket on its host.

The kernel tells both ends who the other is (SO_PEERCRED), so no secret is shared. The socket has a random name in the
abstract namespace, which needs no folder; the operator publishes the name in each run directory whose readers may use
it. A request is one packet of JSON, and so is the answer:

    {"run": ID, "ask": "stop" | "requeue" | "resume" | "lift", "nodes": [...]}
    {"ok": true, "name": ...}  or  {"ok": false, "why": ...}
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transom_cli.errors import NotPermitted, TransomError, Unknown
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.ownership import user_name
from transom_cli.rpc.local import peer_uid
from transom_cli.supervise.lease import read_holder
from transom_cli.supervise.requests import KINDS, event_of, on_call

if TYPE_CHECKING:
    from transom_cli.supervise.operator.loop import Operator

log = logging.getLogger("transom.requests")

LIMIT = 64 << 10  # bytes of a packet
READ = 2.0  # seconds that a peer may take to send its request
PATIENCE = 10.0  # seconds that a user waits for the answer
BACKLOG = 128  # connections that wait; one is served at a time
MOST = 20  # requests of one user in a minute
PAUSE = 0.005  # seconds after a refused connection: strangers cannot keep the operator busy


class RequestSocket:
    """One socket of a process, for all runs that it operates. It opens with the first run that has users on call."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[Operator, tuple[str, ...]]] = {}  # with the users on call, by run ID
        self._recent: dict[int, deque[float]] = {}  # times of requests, by user ID
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def add(self, operator: Operator) -> None:
        """Take requests for a run, and publish the socket's name in its directory."""
        run = operator.run_dir
        users = on_call(run)
        if not users:
            return
        with self._lock:
            try:
                if self._socket is None:
                    self._socket = _listen()
                    threading.Thread(target=self._serve, args=(self._socket,), name="requests", daemon=True).start()
                publish_text(run.request_address, f"{_name_of(self._socket)}\n")
            except OSError as error:
                log.error("users on call cannot reach the operator of %s: %s", run.run_id, error)
                return
            self._runs[run.run_id] = operator, users

    def remove(self, operator: Operator) -> None:
        with self._lock:
            if self._runs.get(operator.run_dir.run_id, (None,))[0] is operator:
                del self._runs[operator.run_dir.run_id]

    def close(self) -> None:
        with self._lock:
            listening, self._socket, self._runs = self._socket, None, {}
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # ends the thread's `accept`
            listening.close()

    def _serve(self, listening: socket.socket) -> None:
        while listening is self._socket:
            try:
                peer, _ = listening.accept()
                with peer:
                    peer.settimeout(READ)
                    answer = self._answer(peer)
                    peer.send(json.dumps(answer).encode())
                    if not answer["ok"]:
                        time.sleep(PAUSE)
                        peer.setblocking(False)  # MSG_DONTWAIT alone would wait: Python polls a socket with a timeout
                        peer.recv(LIMIT)  # unread data would reset the connection, and the answer
            except OSError:  # the peer is gone, or the socket is closed
                time.sleep(PAUSE)
            except Exception:  # requests of others must not end an operator
                log.exception("a request failed")
                time.sleep(PAUSE)

    def _answer(self, peer: socket.socket) -> dict[str, Any]:
        uid = peer_uid(peer)
        user = user_name(uid)
        with self._lock:
            runs = {run_id: one for run_id, one in self._runs.items() if user in one[1]}
        if not runs:  # refused unread
            return _refused(f"{user} (uid {uid}) is not on call for any run of {user_name(os.geteuid())}")
        try:
            data = peer.recv(LIMIT + 1)
        except TimeoutError:
            return _refused(f"no request came within {READ:g} s")
        try:
            request = json.loads(data) if len(data) <= LIMIT else None
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict) or request.get("ask") not in KINDS:
            return _refused(f"this is not a request: one of {', '.join(KINDS)}, in at most {LIMIT} bytes")
        operator, _ = runs.get(str(request.get("run")), (None, ()))
        if operator is None:
            return _refused(f"{user} (uid {uid}) is not listed in run.on_call of this run")
        return self._post(operator, request, uid, user)

    def _post(self, operator: Operator, request: Mapping[str, Any], uid: int, user: str) -> dict[str, Any]:
        recent = self._recent.setdefault(uid, deque(maxlen=MOST))
        if len(recent) == MOST and time.monotonic() - recent[0] < 60:
            return _refused(f"{user} has sent {MOST} requests within a minute")
        name = f"{request['ask']}-{time.time_ns()}-uid{uid}"
        event = event_of(request, operator.now(), f"{user} (uid {uid})", name)
        if event is None:
            return _refused("the request lacks its nodes, or names too many")
        recent.append(time.monotonic())
        log.info("request %s of %s (uid %d) for %s", request["ask"], user, uid, operator.run_dir.run_id)
        operator.post(event)
        return {"ok": True, "name": name}


def send_request(run: RunDir, kind: str, **more: Any) -> str:
    """Send a request to the operator of another user's run, and return the request's name.

    Raises:
        NotPermitted: the operator refuses it, or is not on this host, or the run has nobody on call.
        Unknown: the operator does not answer.
    """
    owner, holder = run.path.stat().st_uid, read_holder(run)
    name = _address(run, owner)
    if not name or holder is None or holder.released:
        raise _nobody(run, owner)
    if not holder.here():
        raise NotPermitted(
            f"The operator of the run `{run.run_id}` is on {holder.host}",
            "requests of other users reach it only on its own host",
            f"ssh {holder.host}, and repeat the command there",
        )
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with peer:
        peer.settimeout(PATIENCE)
        try:
            _connect(peer, f"\0{name}")
            if peer_uid(peer) != owner:
                what = f"The request socket of the run `{run.run_id}` is not its owner's"
                raise NotPermitted(what, "nothing was sent", f"ask {user_name(owner)}, who owns the run")
            with contextlib.suppress(BrokenPipeError):  # refused unread: the answer is there
                peer.send(json.dumps({"run": run.run_id, "ask": kind, **more}).encode())
            answer = json.loads(peer.recv(LIMIT))
        except ConnectionRefusedError as error:
            raise _nobody(run, owner) from error
        except (OSError, ValueError) as error:
            what, why = f"The operator of the run `{run.run_id}` does not answer", str(error) or type(error).__name__
            raise Unknown(what, why, "check the run with `transom status`, then repeat the command") from error
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        why = str(answer.get("why", "")) if isinstance(answer, dict) else ""
        what = f"The operator of the run `{run.run_id}` refuses the request"
        raise NotPermitted(what, why, f"ask {user_name(owner)}, who owns the run")
    return str(answer.get("name", ""))


def _connect(peer: socket.socket, name: str) -> None:
    """Connect, and try again while too many connections wait. Raises OSError."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return peer.connect(name)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE)


def _address(run: RunDir, owner: int) -> str:
    """Return the name of the operator's socket, or "" if its owner published none."""
    try:
        descriptor = os.open(run.request_address, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(128).decode("ascii").strip() if os.fstat(descriptor).st_uid == owner else ""
    except (OSError, ValueError):
        return ""


def _nobody(run: RunDir, owner: int) -> TransomError:
    name = user_name(owner)
    if on_call(run):
        return NotPermitted(
            f"The operator of the run `{run.run_id}` is not running",
            "it carries out the requests of users on call",
            f"ask {name} to start it: `transom attach {run.run_id}`",
        )
    return NotPermitted(
        f"The run `{run.run_id}` belongs to {name}, and its operator takes requests from nobody else",
        "its settings list nobody in run.on_call",
        f"ask {name} to act on it, or to set run.on_call for the next run",
    )


def _listen() -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listening.bind(f"\0transom-{secrets.token_hex(16)}")
    listening.listen(BACKLOG)
    return listening


def _name_of(listening: socket.socket) -> str:
    name: bytes = listening.getsockname()
    return name[1:].decode("ascii")


def _refused(why: str) -> dict[str, Any]:
    return {"ok": False, "why": why}

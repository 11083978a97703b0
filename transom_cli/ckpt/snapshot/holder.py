"""The process that keeps a node's snapshots: started by the node's agent, or by the first rank where there is none.

    python -m transom_cli.ckpt.snapshot.holder --socket PATH [--attempt-dir D [--node NAME]] [--linger S]

It outlives trainer and agent. A snapshot's memory is the rank's own (a memfd, made and touched by the rank, and counted
to it); the holder keeps a descriptor of it, so that it stays when the rank is gone, and goes with the holder: nothing
stays behind on a node. It ends when it is told to, when the attempt is over, and when nobody has been connected for
`--linger` seconds and nothing is being written. An agent stays connected as long as it lives.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.ckpt.snapshot import messages
from transom_cli.ckpt.snapshot.account import Account
from transom_cli.ckpt.snapshot.attempt import Attempt
from transom_cli.ckpt.snapshot.client import Client
from transom_cli.ckpt.snapshot.desk import Desk
from transom_cli.ckpt.snapshot.holding import Holding
from transom_cli.ckpt.snapshot.lines import Server
from transom_cli.ckpt.snapshot.neighbours import Answer, identity
from transom_cli.ckpt.snapshot.rescue import newest, rescue
from transom_cli.ckpt.snapshot.shown import Showing
from transom_cli.errors import TransomError
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir

LOOK = 0.5  # seconds between two looks at whether it is still needed
LINGER = 60.0  # seconds without anybody
PARTING = 5.0  # seconds, when all have left in good order
NICE = 10  # what it does can wait where the training wants the same core; with a core to spare it waits for nothing
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # Slurm signals every process of a step


@dataclass(frozen=True)
class _Serving:
    key: bytes
    node: str
    server: Server
    port: int


class Holder:
    def __init__(self, path: str) -> None:
        self._path = path
        self._id = secrets.token_hex(4)
        self._holdings: dict[str, Holding] = {}
        self._servers: dict[str, _Serving] = {}  # by directory: of its newest launch
        self._lock = threading.Lock()
        self._left: set[str] = set()  # directories whose ranks have all left in good order
        self._people = 0
        self._since = time.monotonic()
        self._told = threading.Event()

    def listen(self) -> socket.socket:
        """Raises OSError; BlockingIOError when another holder listens there."""
        self._lock_file = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, however that is
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 - left by one that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        former = os.umask(0o177)
        try:
            listener.bind(self._path)
        finally:
            os.umask(former)
        listener.listen(256)
        return listener

    def serve(self, listener: socket.socket) -> None:
        """For ever, in a thread of its own."""
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.attend, args=(sock,), daemon=True).start()

    def over(self, linger: float) -> bool:
        if self._told.wait(LOOK):
            return True
        with self._lock:
            idle = not self._people and not any(h.busy for h in self._holdings.values())
            if not idle:
                self._since = time.monotonic()
            patience = linger if set(self._holdings) - self._left else min(linger, PARTING)
            return idle and time.monotonic() - self._since >= patience

    def accounts(self) -> list[Account]:
        """Of each training that is held here."""
        with self._lock:
            holdings = [h for directory, h in sorted(self._holdings.items()) if directory not in self._left]
        return [holding.account() for holding in holdings]

    def close(self) -> None:
        with self._lock:
            for serving in self._servers.values():
                serving.server.stop()
            for holding in self._holdings.values():
                holding.close()

    def attend(self, sock: socket.socket) -> None:
        desk = Desk(self._holding, self._serve, self._forget)
        with self._lock:
            self._people += 1
        try:
            while messages.same_user(sock):
                body, fds = messages.receive(sock)
                try:
                    name = str(body.pop("ask", ""))
                    told = self._of_node(name, body)
                    answer, out = (told, []) if told is not None else desk.answer(name, body, fds)
                    messages.send(sock, {"ok": True, **answer}, out)
                except (TransomError, ValueError, KeyError, TypeError, IndexError, OSError) as error:
                    what = error.what if isinstance(error, TransomError) else f"{type(error).__name__}: {error}"
                    messages.send(sock, {"ok": False, "error": what[:4000], "kind": type(error).__name__})
                finally:
                    for fd in fds:
                        os.close(fd)
        except (OSError, EOFError, ValueError):
            pass  # it has gone, or does not speak as we do
        finally:
            desk.close()
            sock.close()
            with self._lock:
                self._people -= 1

    def _of_node(self, name: str, about: dict[str, Any]) -> dict[str, Any] | None:
        """Answers what is about no single training, or comes from the agent; None for all else."""
        if name == "end":
            self._told.set()
        if name in ("end", "hello"):
            return {"id": self._id}
        if name not in ("newest", "rescue"):
            return None
        with self._lock:
            holdings = dict(self._holdings)
        if name == "newest":
            return {"newest": [newest(holding) for _, holding in sorted(holdings.items())]}
        holding = holdings[str(about["directory"])]
        return rescue(holding, int(about["step"]), str(about["attempt"]), float(about["seconds"]))

    def _holding(self, directory: str, token: str, node: str) -> Holding:
        with self._lock:
            found = self._holdings.get(directory)
            if found is None or found.shelf.token != token:
                if not node:
                    raise ValueError("nothing of that training is held here")
                if found is not None:  # the directory is another one by now
                    found.close()
                found = self._holdings[directory] = Holding(directory, token, node, _say)
            if node:
                self._left.discard(directory)
            return found

    def _forget(self, holding: Holding) -> None:
        """Its ranks need its memory no more. A neighbour may still ask how a write ended."""
        holding.close()
        with self._lock:
            self._left.add(holding.shelf.directory)

    def _serve(self, directory: str, key: bytes, node: str, port: int) -> int:
        with self._lock:
            former = self._servers.get(directory)
            if former is not None and (former.key, former.node) == (key, node):
                return former.port
            server = Server(key, identity(node), None, self._answer)
            serving = self._servers[directory] = _Serving(key, node, server, server.start(port=port))
        if former is not None:  # of a launch before. It waits for questions that are being answered
            former.server.stop()
        return serving.port

    def _answer(self, name: str, about: dict[str, object]) -> tuple[Answer, list[memoryview]]:
        holding = self._holdings.get(str(about.pop("directory", "")))
        if holding is None:
            raise ValueError("nothing of that training is held here")
        answer, pieces = holding.answer(name, about)
        return answer, list(pieces)


def _step_back() -> None:
    """Behind the training: also where the kernel divides the processor by session first (autogroup), and not at all
    between processes of two sessions."""
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def _leave_nothing(path: str) -> None:
    """The folder of a holder that ranks started. Who starts one meanwhile finds no folder, and tries again."""
    with contextlib.suppress(OSError):
        for name in (f"{path}.log", f"{path}.lock"):
            os.unlink(name)  # noqa: PTH108
        os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120


_within: Holder | None = None


def within() -> Client:
    """A holder in this very process, for where there can be no other: its snapshots end with it."""
    global _within
    _within = _within or Holder("")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    threading.Thread(target=_within.attend, args=(theirs,), daemon=True).start()
    return Client(ours)


def _say(line: str) -> None:
    print(f"transom: {line}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="transom memory holder", description="Keep this node's snapshots.")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--attempt-dir", type=Path)
    parser.add_argument("--node", default=paths.node_name())
    parser.add_argument("--linger", type=float, default=LINGER)
    options = parser.parse_args(argv)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _step_back()
    holder = Holder(options.socket)
    if options.attempt_dir is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent says when
    else:
        signal.signal(signal.SIGTERM, lambda *_: holder._told.set())
    try:
        listener = holder.listen()
    except BlockingIOError:
        return 0  # another one was sooner
    attempt = showing = None
    if options.attempt_dir is not None:
        attempt = Attempt(options.attempt_dir, os.path.dirname(options.socket))  # noqa: PTH120
        showing = Showing(AttemptDir(options.attempt_dir).memory(options.node), holder.accounts)
        showing.start()
    threading.Thread(target=holder.serve, args=(listener,), daemon=True).start()
    try:
        while not holder.over(options.linger) and not (attempt is not None and attempt.over()):
            pass
    finally:
        with contextlib.suppress(OSError):
            os.unlink(options.socket)  # noqa: PTH108
        holder.close()
        if showing is not None:
            showing.stop()
        if attempt is not None:
            attempt.close()
        else:
            _leave_nothing(options.socket)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

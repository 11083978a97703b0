"""The process that keeps a node's snapshots. The node's agent starts it, or the first rank where there is no agent.

    python -m transom_cli.ckpt.snapshot.daemon --socket PATH [--attempt-dir D [--node NAME]] [--linger S]

It outlives trainer and agent. A snapshot's memory belongs to the rank: a memfd that the rank creates, touches and is
charged for. The daemon keeps a descriptor of it, so that it survives the rank and is freed with the daemon: nothing
remains on a node. The daemon ends on request, when the attempt is over, and when nobody has been connected for
`--linger` seconds and nothing is being written. An agent stays connected as long as it lives.
"""

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt.snapshot.account import Account
from transom_cli.ckpt.snapshot.peers import identity, make_hash
from transom_cli.ckpt.snapshot.session import Session
from transom_cli.ckpt.snapshot.status_file import StatusWriter
from transom_cli.ckpt.snapshot.training import Training
from transom_cli.heartbeat import paths
from transom_cli.heartbeat.attempt_end import AttemptEnd, End
from transom_cli.layout import AttemptDir
from transom_cli.rpc import local
from transom_cli.rpc.server import ALL, Server
from transom_cli.rpc.verbs import Call, Reply

LOOK = 0.5  # seconds between two checks whether it is still needed
OUTCOME_EVERY = 5.0  # seconds between two looks for the attempt's outcome; its agent ends it sooner
LINGER = 60.0  # seconds without a connection
PARTING = 5.0  # the same, after all ranks have left in order
NICE = 10  # yields to the training on a shared core, and costs nothing on an idle one
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # Slurm signals every process of a step


@dataclass(frozen=True)
class _PeerServer:
    key: bytes
    node: str
    server: Server
    port: int


class Daemon:
    """What all sessions share."""

    def __init__(self, path: str) -> None:
        self.id = secrets.token_hex(4)
        self._path = path
        self._trainings: dict[str, Training] = {}  # by directory
        self._servers: dict[str, _PeerServer] = {}  # by directory: of its newest launch
        self._lock = threading.Lock()
        self._forgotten: set[str] = set()  # directories whose ranks have all left in order
        self._sessions = 0
        self._active = time.monotonic()
        self._ending = threading.Event()

    def open(self) -> socket.socket:
        """Return the listening socket. Raises OSError; BlockingIOError if another daemon listens there."""
        self._lock_file = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, however that happens
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 - left by a daemon that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        former = os.umask(0o177)
        try:
            listener.bind(self._path)
        finally:
            os.umask(former)
        listener.listen(256)
        return listener

    def accept(self, listener: socket.socket) -> None:
        """Serve every connection, until the socket is closed."""
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.attend, args=(sock,), daemon=True).start()

    def attend(self, sock: socket.socket) -> None:
        """Serve one connection until it ends."""
        session = Session(self)
        with self._lock:
            self._sessions += 1
        try:
            local.serve(sock, session.answer)
        finally:
            session.close()
            sock.close()
            with self._lock:
                self._sessions -= 1

    def over(self, linger: float) -> bool:
        """Wait for a moment, and return whether the daemon is no longer needed."""
        if self._ending.wait(LOOK):
            return True
        with self._lock:
            idle = not self._sessions and not any(training.busy for training in self._trainings.values())
            if not idle:
                self._active = time.monotonic()
            patience = linger if set(self._trainings) - self._forgotten else min(linger, PARTING)
            return idle and time.monotonic() - self._active >= patience

    def accounts(self) -> list[Account]:
        """Return an account of each training that is held here."""
        with self._lock:
            held = [t for directory, t in sorted(self._trainings.items()) if directory not in self._forgotten]
        return [training.account() for training in held]

    def close(self) -> None:
        with self._lock:
            for one in self._servers.values():
                one.server.stop()
            for training in self._trainings.values():
                training.close()

    # For sessions

    def end(self) -> None:
        self._ending.set()

    def trainings(self) -> list[Training]:
        with self._lock:
            return [training for _, training in sorted(self._trainings.items())]

    def training(self, directory: str, token: str, node: str) -> Training:
        """Return the training of a directory whose folder has that token. Creates it if a node is named."""
        with self._lock:
            found = self._trainings.get(directory)
            if found is None or found.store.token != token:
                if not node:
                    raise ValueError("no snapshots of that training are held here")
                if found is not None:  # another directory has this name now
                    found.close()
                found = self._trainings[directory] = Training(directory, token, node, _say)
            if node:
                self._forgotten.discard(directory)
            return found

    def forget(self, training: Training) -> None:
        """Free its memory. It stays known, because a peer may still query the outcome of a write."""
        training.close()
        with self._lock:
            self._forgotten.add(training.store.directory)

    def listen(self, directory: str, key: bytes, node: str, address: str, port: int) -> int:
        """Listen for a directory's peers at the address, on that port if it is free. Return the port."""
        with self._lock:
            former = self._servers.get(directory)
            if former is not None and (former.key, former.node) == (key, node):
                return former.port
            server = Server(key, identity(node), None, self._answer_peer, make_hash=make_hash)
            new = self._servers[directory] = _PeerServer(key, node, server, server.start(address or ALL, port))
        if former is not None:  # an earlier launch's; this waits for calls that are being answered
            former.server.stop()
        return new.port

    def _answer_peer(self, call: Call) -> Reply:
        training = self._trainings.get(str(call.request.get("directory", "")))
        if training is None:
            raise ValueError("no snapshots of that training are held here")
        return training.answer(call)


class Attempt:
    """The attempt that an agent's daemon belongs to: its end is the daemon's, even if the agent has died.

    Holds the node's beats folder, which contains the socket: the agent of another attempt removes folders that
    nobody holds.
    """

    def __init__(self, path: Path, beats_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError if the beats folder is not ours."""
        self._beats_dir, self._clock = beats_dir, clock
        self._held = paths.enter(beats_dir)
        self._end = AttemptEnd(AttemptDir(path), clock())

    def over(self) -> bool:
        """Return whether its outcome is known, or its folder was deleted."""
        return self._end.look(self._clock(), OUTCOME_EVERY) is not End.NOT_YET

    def close(self) -> None:
        """Leave the folder. The last process to leave removes it."""
        with contextlib.suppress(OSError):
            os.close(self._held)
        paths.discard(self._beats_dir)


def _lower_priority() -> None:
    """Yield to the training, also where the kernel first divides the processor by session (autogroup)."""
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def _remove_folder(path: str) -> None:
    """Remove the folder of a daemon that ranks started. A rank that starts the next one meanwhile retries."""
    with contextlib.suppress(OSError):
        for name in (f"{path}.log", f"{path}.lock"):
            os.unlink(name)  # noqa: PTH108
        os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120


_in_process: Daemon | None = None


def in_process() -> local.Client:
    """Connect to a daemon in this very process, if no other can run. Its snapshots end with the process."""
    global _in_process
    _in_process = _in_process or Daemon("")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    threading.Thread(target=_in_process.attend, args=(theirs,), daemon=True).start()
    return local.Client(ours)


def _say(line: str) -> None:
    print(f"transom: {line}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="transom snapshot daemon", description="Keep this node's snapshots.")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--attempt-dir", type=Path)
    parser.add_argument("--node", default=paths.node_name())
    parser.add_argument("--linger", type=float, default=LINGER)
    options = parser.parse_args(argv)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _lower_priority()
    daemon = Daemon(options.socket)
    if options.attempt_dir is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent decides when it ends
    else:
        signal.signal(signal.SIGTERM, lambda *_: daemon.end())
        with contextlib.suppress(OSError):  # a rank has started it: it is not to share that rank's own cores only
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        listener = daemon.open()
    except BlockingIOError:
        return 0  # another one was faster
    attempt = status = None
    if options.attempt_dir is not None:
        attempt = Attempt(options.attempt_dir, os.path.dirname(options.socket))  # noqa: PTH120
        status = StatusWriter(AttemptDir(options.attempt_dir).memory(options.node), daemon.accounts)
        status.start()
    threading.Thread(target=daemon.accept, args=(listener,), daemon=True).start()
    try:
        while not daemon.over(options.linger) and not (attempt is not None and attempt.over()):
            pass
    finally:
        with contextlib.suppress(OSError):
            os.unlink(options.socket)  # noqa: PTH108
        daemon.close()
        if status is not None:
            status.stop()
        if attempt is not None:
            attempt.close()
        else:
            _remove_folder(options.socket)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

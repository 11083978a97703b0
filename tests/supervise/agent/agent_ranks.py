"""Ranks for tests: real processes under the real wrapper, of any attempt, launch and node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import as_slurmd_starts, wait_for

from transom_cli.supervise.agent import procfs

__all__ = ["DAEMON", "DEAF", "NODE", "ROOT", "SLEEP", "UP", "WRAPPER", "Ranks", "wait_for"]

ROOT = Path(__file__).parents[3]
WRAPPER = ROOT / "transom_cli" / "supervise" / "agent" / "rank_wrapper.py"
NODE = "nodeX"


class Ranks:
    """Starts wrapped ranks of `attempt`, each of which says when it is up, and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = self.attempt_dir("12.0")
        self.beats = folder / "beats"
        self._started: list[subprocess.Popen[bytes]] = []
        self._idents: list[procfs.Process] = []

    def attempt_dir(self, name: str) -> Path:
        path = self.folder / "a 'run'\n" / "attempts" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def start(
        self,
        code: str,
        *,
        rank: int = 3,
        launch: int = 2,
        attempt: Path | None = None,
        node: str = NODE,
        flags: str = "",
    ) -> int:
        """Pid of the wrapper, once the code has said by `up()` that it is there."""
        return self.command([sys.executable, "-c", UP + code], rank, launch, attempt or self.attempt, node, flags)

    def command(
        self,
        command: list[str],
        rank: int = 3,
        launch: int = 2,
        attempt: Path | None = None,
        node: str = NODE,
        flags: str = "",
    ) -> int:
        words = [sys.executable, "-I", "-S", str(WRAPPER), "--attempt-dir", str(attempt or self.attempt)]
        words += ["--launch", str(launch), "--node-beats-dir", str(self.beats), *flags.split(), "--", *command]
        return self.plain(words, SLURM_PROCID=str(rank), SLURMD_NODENAME=node)

    def plain(self, words: list[str], **more: str) -> int:
        """Any process that writes a line to its standard output when it is up; the pids in that line are noted."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM", "RANK", "PYTHONPATH"))}
        env |= {"PYTHONPATH": str(ROOT), **more}
        made = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, preexec_fn=as_slurmd_starts)
        self._started.append(made)
        assert made.stdout is not None
        for pid in made.stdout.readline().split():
            found = procfs.read(int(pid))
            if found is None:
                continue  # gone already: it was to
            self._idents.append(found)
        return made.pid

    @property
    def pids(self) -> list[int]:
        """Of all that said so, in the order of their saying."""
        return [p.pid for p in self._idents]

    def reap(self) -> None:
        """Of the wrappers, those that have ended: as slurmstepd would."""
        for made in self._started:
            made.poll()

    def clean(self) -> None:
        for one in self._idents:
            procfs.send(one, signal.SIGKILL)
        for made in self._started:
            made.kill()
            made.wait()
            assert made.stdout is not None
            made.stdout.close()


UP = """
import ctypes, os, signal, sys, threading, time
def up(*pids):
    print(*(pids or (os.getpid(),)), flush=True)
"""
SLEEP = "up(); time.sleep(600)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); up(); time.sleep(600)\n"
# a child of a child, in a session of its own, whose parents are gone; it outlives its rank
DAEMON = """
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        %s
        time.sleep(600)
    os._exit(0)
os.wait()
up(os.getpid(), int(os.read(read, 20)))
time.sleep(600)
"""

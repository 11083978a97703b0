"""A process that listens for orders and does what a test tells it, line by line. No torch: it starts in no time.

As a program: executes each line of its standard input and answers `ok`, or the value that it left in `_`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Listener:
    def __init__(self, beats: Path | None, *, rank: int = 0, launch: int = 2, wait: float = 600.0, keep: float = 600.0):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_", "RANK"))}
        env |= {"PYTHONPATH": str(ROOT), "TRANSOM_LAUNCH": str(launch), "RANK": str(rank)}
        if beats is not None:
            env["TRANSOM_BEAT_DIR"] = str(beats)
        pipe = subprocess.PIPE
        words = [sys.executable, __file__]
        self.process = subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True, preexec_fn=_defaults)
        self.pid = self.process.pid
        self.do(f"final_checkpoint.REQUEST_WAIT, final_checkpoint.LONGEST = {wait}, {keep}")

    def start(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line: str) -> str:
        """Also shows that the process lives."""
        self.start(line)
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def attend(self) -> Listener:
        assert self.do("ear = final_checkpoint.listen()") == "ok"
        return self

    def term(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def ended(self) -> int:
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _defaults() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def main() -> None:
    from transom_cli.ckpt.save import final_checkpoint

    names: dict[str, object] = {"final_checkpoint": final_checkpoint}
    exec("import asyncio, ctypes, os, signal, subprocess, sys, threading, time", names)
    for line in sys.stdin:
        names["_"] = "ok"
        exec(line, names)
        print(names["_"], flush=True)


if __name__ == "__main__":
    main()

"""Starts `transom` as a person would, in a sandbox, and waits for what should come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.layout import RunDir

TRAINER = Path(__file__).with_name("trainer.py")
COMMAND = (sys.executable, str(TRAINER))
STEPS = 120  # of `remembering`
PATIENCE = 90.0


def remembering(final: Path, *more: str) -> tuple[str, ...]:
    """A training in PyTorch whose final state is always the same, bit for bit: its hash comes into `final`."""
    trainer = Path(__file__).with_name("remembering.py")
    return (sys.executable, str(trainer), "--steps", str(STEPS), "--final", str(final), *more)


@dataclass
class Person:
    """Somebody at a shell: an environment, a folder for runs, a folder to stand in."""

    env: dict[str, str]
    root: Path
    cwd: Path

    def transom(self, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "transom_cli", *words],
            env={**os.environ, **self.env, "TRANSOM_ROOT": str(self.root)},
            cwd=self.cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def run(self, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """`transom run` and wait for its end."""
        return self.transom("run", *words, timeout=timeout)

    def start(self, *words: str) -> RunDir:
        """`transom run --detach`."""
        done = self.transom("run", "--detach", *words)
        assert done.returncode == 0, done.stderr
        return RunDir(self.root / done.stdout.strip())

    def newest(self) -> RunDir:
        return RunDir(max((p for p in self.root.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime))

    def status(self, run: RunDir) -> dict[str, Any]:
        done = self.transom("status", "--json", run.run_id)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def wait(self, run: RunDir, ready: Callable[[dict[str, Any]], bool], patience: float = PATIENCE) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while True:
            view = self.status(run)
            if ready(view):
                return view
            if time.monotonic() > deadline:
                log = run.operator_log.read_text() if run.operator_log.exists() else "no operator.log"
                raise AssertionError(f"it did not come; last seen: {view}\n{log[-4000:]}")
            time.sleep(0.3)


def over(view: dict[str, Any]) -> bool:
    return bool(view["over"])


def at_step(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda view: view["step"] >= step

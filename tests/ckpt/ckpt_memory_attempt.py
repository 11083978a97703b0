"""Nodes of this machine whose snapshot daemons belong to an attempt of a run, as an agent starts them."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from ckpt_memory_nodes import Nodes

from transom_cli.ckpt.snapshot.client import agents_path, reach, start
from transom_cli.config.load import load
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.rpc.local import Client
from transom_cli.submit.rundir import new_run

JOB = 7


def run_in(root: Path) -> tuple[RunDir, AttemptDir]:
    """A run with one attempt that is under way."""
    run = new_run(
        root, "r", datetime(2026, 3, 4, tzinfo=timezone.utc), load(site=None, user=root / "none"), "#!/bin/sh\n"
    )
    attempt = run.attempt(JOB, 0)
    for folder in (attempt.nodes, run.checkpoints):
        folder.mkdir(parents=True)
    return run, attempt


class AttemptNodes(Nodes):
    def __init__(self, run: RunDir, attempt: AttemptDir, protect: str, names: list[str]) -> None:
        super().__init__(run.checkpoints, protect, names)
        self.attempt = attempt
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.agents: dict[str, Client] = {}

    def __enter__(self) -> AttemptNodes:
        for name in self.names:
            path = agents_path(self.beats(name))
            self.daemons[name] = start(path, "--attempt-dir", str(self.attempt.path), "--node", name)
        for name in self.names:
            self.agents[name] = reach(agents_path(self.beats(name)), 60.0)  # a daemon stays while an agent is there
        return self

    def __exit__(self, *what: object) -> None:
        super().__exit__(*what)
        for name, daemon in self.daemons.items():
            daemon.kill()
            daemon.wait()
            self.agents[name].close()
            shutil.rmtree(self.beats(name))

    def beats(self, name: str) -> str:
        path = paths.beats_dir(str(self.attempt.path), name)
        Path(path).mkdir(mode=0o700, exist_ok=True)
        return path

    def damage(self, name: str) -> None:
        """Flip a bit in the middle of every rank's memory that the node's daemon has."""
        there = Path(f"/proc/{self.daemons[name].pid}/fd").iterdir()
        ours = [fd for fd in there if "memfd:transom" in str(fd.readlink()) and fd.stat().st_size > 1 << 18]
        for fd in {fd.stat().st_ino: fd for fd in ours}.values():  # a mapping has a descriptor of its own
            with fd.open("r+b") as memory:
                memory.seek(1 << 17)
                byte = memory.read(1)[0]
                memory.seek(1 << 17)
                memory.write(bytes((byte ^ 4,)))

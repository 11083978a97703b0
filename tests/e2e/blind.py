"""A node that does not see a folder: its slurmd starts again in a mount namespace where another lies over it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from transom_cli.sandbox.cluster import Sandbox


def blind(sandbox: Sandbox, node: str, folder: Path) -> None:
    """Needs root. `faults.heal` and a restart of the node's slurmd undo it."""
    pid = next(d.pid for d in sandbox.daemons() if d.name == node)
    assert pid is not None
    environ = psutil.Process(pid).environ()
    argv = psutil.Process(pid).cmdline()
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    lay = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
    subprocess.run(["unshare", "--mount", "sh", "-c", lay, "sh", str(folder), *argv], env=environ, check=True)
    sandbox.wait_nodes([node], only_idle=True)

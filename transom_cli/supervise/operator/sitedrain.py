"""The site's own ways to drain a node, for those whom Slurm does not let: a command, and a spool that administrators
read. `contrib/` has an example of both.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from transom_cli.errors import printable
from transom_cli.files import publish_text

PATIENCE = 30.0  # seconds for the command
VERSION = 1  # of a request
_SHOWN = 200  # characters of what the command said


def run_command(command: Sequence[str], node: str, reason: str, patience: float = PATIENCE) -> str:
    """Run the site's command with node and reason as its last two words; "" if it says that all is well, else why not.

    A command under sudo belongs to root and cannot be killed: it is left behind then, and never waited for.
    """
    try:
        process = subprocess.Popen(
            [*command, node, reason],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{command[0]}: {error}"
    try:
        _, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        return f"{command[0]} did not end within {patience:g} s"
    finally:
        if process.stderr is not None:
            process.stderr.close()
    if process.returncode == 0:
        return ""
    told = printable(" ".join(err.decode("utf-8", "replace").split()))[:_SHOWN]
    return f"{command[0]} ended with {process.returncode}" + (f": {told}" if told else "")


def request_path(spool: Path, node: str) -> Path:
    """One request for each user and node: a later one takes the place of an earlier one."""
    return spool / f"{node}.{os.getuid()}.json"


def ask(spool: Path, node: str, reason: str) -> Path:
    """Leave the request in the spool, for all to read: {"version", "node", "reason", "asked"}. OSError if that fails.

    Who asks is told by the file's owner, when by its own times: what stands in it, anybody can write.
    """
    request = {
        "version": VERSION,
        "node": node,
        "reason": reason,
        "asked": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path = request_path(spool, node)
    publish_text(path, json.dumps(request) + "\n", mode=0o644)
    with contextlib.suppress(FileNotFoundError):  # taken already
        path.chmod(0o644)  # whatever the umask
    return path


def withdraw(spool: Path, node: str) -> bool:
    """Take back a request of ours that nobody has read yet. OSError if it stands there and cannot be removed."""
    try:
        request_path(spool, node).unlink()
    except FileNotFoundError:
        return False
    return True

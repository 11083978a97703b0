"""The site's own ways to drain a node, for those whom Slurm does not let: a command, and a spool that administrators
read. `contrib/` has an example of both.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import stat
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
    """One request for each user and node: a later one replaces an earlier one."""
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
    text = json.dumps(request) + "\n"
    try:
        publish_text(path, text, mode=0o644)
    except OSError:  # another user may have put a file or a folder there: any other name will do
        path = path.with_name(f"{node}.{os.getuid()}.{secrets.token_hex(4)}.json")
        publish_text(path, text, mode=0o644)
    _let_all_read(path)
    return path


def _let_all_read(path: Path) -> None:
    """Whatever the umask. What another user has put there since the request was taken is left as it is."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                os.fchmod(descriptor, 0o644)
        finally:
            os.close(descriptor)


def withdraw(spool: Path, node: str) -> bool:
    """Take back requests of ours that nobody has read yet. OSError if one is there and cannot be removed."""
    stem = f"{node}.{os.getuid()}."
    ours = [path for path in spool.glob("*.json") if path.name.startswith(stem) and _is_ours(path)]
    for path in ours:
        path.unlink(missing_ok=True)
    return bool(ours)


def _is_ours(path: Path) -> bool:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid()

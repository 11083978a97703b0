"""Drains a node if that is permitted and nobody else has drained it already.

If Slurm does not let this user drain nodes, the site can: by a command, or by a spool of requests that administrators
read. `contrib/` has an example of both.
"""

import contextlib
import json
import os
import secrets
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transom_cli.errors import printable
from transom_cli.files import publish_text
from transom_cli.slurm.port import Node, Slurm, SlurmDenied, SlurmRefused

OURS = "transom:"  # how every reason of ours begins
LENGTH = 200  # of a reason, as `sinfo -R` and people can use it
_SLURMS_OWN = "Not responding"  # of a node that slurmctld took down itself: what ours says is more


def reason(why: str, run_id: str) -> str:
    """Return `transom: <check>: <evidence> (<run id>)` on one line; a long evidence is shortened."""
    end = f" ({run_id})"
    body = printable(" ".join(why.split())).replace(" Comment=", " comment=")  # Slurm's next key, when it prints it
    room = LENGTH - len(OURS) - 1 - len(end)
    return f"{OURS} {body if len(body) <= room else body[: max(room - 3, 0)] + '...'}{end}"


def is_ours(node: Node, run_id: str = "") -> bool:
    """Return whether the node's drain reason is this run's."""
    return node.reason.startswith(OURS) and node.reason.endswith(f"({run_id})" if run_id else ")")


def drain(
    slurm: Slurm,
    command: tuple[str, ...],
    node: str,
    reason: str,
    spool: Path | None = None,
    capped: Callable[[Sequence[float | None]], str] | None = None,
) -> tuple[str, str]:
    """Drain a node by scontrol, the site's command, or a request in the administrators' spool; otherwise exclude it.

    A way that refuses, is late or gives an invalid answer is reported, and the next one is tried. A node that somebody
    else has drained, with their own reason, is not changed.

    Args:
        capped: given the ages of the cluster's other drains by transom, in seconds (None: unknown), it returns why
            there must not be one more, or "".

    Returns:
        "drained" or "excluded", and the details.
    """
    with _in_turn(node) as ahead:
        nodes = slurm.nodes([node] if capped is None else [])
        known = next((x for x in nodes if x.name == node), None)
        owner = owner_of(known) if known is not None else ""
        if owner:
            return "drained", owner
        if capped is not None and known is not None and not known.drain:
            ages = {x.name: _age(x.reason_at, time.time()) for x in nodes if x.drain and x.reason.startswith(OURS)}
            why = capped(list({**dict.fromkeys(ahead, 0.0), **ages}.values()))
            if why:
                return "excluded", why
        return _drain(slurm, command, node, reason, spool)


_turns: list[str] = []  # the nodes that threads of this process are draining, in their order
_lock = threading.Lock()


@contextlib.contextmanager
def _in_turn(node: str) -> Iterator[list[str]]:
    """Give the nodes that other threads began to drain before."""
    with _lock:
        ahead = list(_turns)
        _turns.append(node)
    try:
        yield ahead
    finally:
        with _lock:
            _turns.remove(node)


def _drain(slurm: Slurm, command: tuple[str, ...], node: str, reason: str, spool: Path | None) -> tuple[str, str]:
    try:
        slurm.drain(node, reason)
        return "drained", ""
    except (SlurmDenied, SlurmRefused) as error:
        refused = [f"Slurm refuses the drain: {error.why or error.what}"]
    if command:
        why = run_command(command, node, reason)
        if not why and _drained(slurm, node):
            return "drained", f"by the site's command: {' '.join(command)}"
        refused.append(why or f"{command[0]} ended with 0, but the node is not drained")
    if spool is not None:
        try:
            asked = ask(spool, node, reason)
            return "excluded", "; ".join([f"asked the administrators to drain it: {asked}", *refused])
        except OSError as error:
            refused.append(f"the spool cannot be written: {error}")
    return "excluded", "; ".join(refused)


def _age(printed: str, now: float) -> float | None:
    """Return the seconds since a time that Slurm printed, or None if it cannot be read."""
    try:
        return now - time.mktime(time.strptime(printed, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _drained(slurm: Slurm, node: str) -> bool:
    return any(x.drain for x in slurm.nodes([node]) if x.name == node)


def owner_of(node: Node) -> str:
    """Return who else drained the node, and why; empty if it is up, or if the drain is ours."""
    kept = node.drain or node.state in ("down", "fail")
    if not kept or not node.reason or node.reason.startswith((OURS, _SLURMS_OWN)):
        return ""
    return f"by {node.reason_user or 'somebody'}: {node.reason}"


PATIENCE = 30.0  # seconds for the command
VERSION = 1  # of a request
_SHOWN = 200  # characters of what the command said


def run_command(command: Sequence[str], node: str, reason: str, patience: float = PATIENCE) -> str:
    """Run the site's command with node and reason as its last two words. Return "" for success, else why it failed.

    A command under sudo belongs to root and cannot be killed: after the time limit it is abandoned.
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
    """Return the path of a request. There is one for each user and node: a later request replaces an earlier one."""
    return spool / f"{node}.{os.getuid()}.json"


def ask(spool: Path, node: str, reason: str) -> Path:
    """Write the request into the spool, readable by all: {"version", "node", "reason", "asked"}. Raises OSError.

    The file's owner is the requester, and its times show when: the content could be written by anybody.
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
    """Set the mode, whatever the umask. A file that another user has put there in the meantime is not changed."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                os.fchmod(descriptor, 0o644)
        finally:
            os.close(descriptor)


def withdraw(spool: Path, node: str) -> bool:
    """Withdraw our requests that nobody has read yet. Raises OSError if one exists and cannot be removed."""
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

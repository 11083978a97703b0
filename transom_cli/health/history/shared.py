"""The nodes that the users of a cluster exclude, as they tell each other in a folder of root's.

`isolate.shared_history` names the folder.

Each user has one file there, which only they can write: `<user ID>-<random>.json`. What others wrote is data from
strangers. It may only lengthen an exclusion that the user's own run has decided on (`core.operator.isolation.expiry`);
whatever is not a small regular file with plausible times is ignored.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transom_cli.core.events import OtherExclusion
from transom_cli.files import publish_text
from transom_cli.health.history.nodes import CARRIED, NodeHistory
from transom_cli.ownership import user_name
from transom_cli.start import ours_alone

log = logging.getLogger("transom.operator")

FILES = 4096  # names of the folder that are looked at
BYTES = 64 << 10  # of a file
RECORDS = 256  # of a file
SKEW = 300.0  # seconds by which another host's clock may be ahead


def refused(folder: Path) -> str:
    """Return why the folder is not used, or ""."""
    try:
        found = folder.lstat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != 0:
        return f"{folder} belongs to {user_name(found.st_uid)}; it must belong to root"
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return f"{folder} has mode {mode:04o}: anybody can remove others' files; it should be 1777"
    if not ours_alone(str(folder.parent)):
        return f"{folder}: other users can change a folder above it"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} has mode {mode:04o}: you cannot write there; it should be 1777"
    return ""


def publish(folder: Path, history: NodeHistory) -> None:
    """Replace this user's file by the isolations that are active now. Raises OSError on failure."""
    why = refused(folder)
    if why:
        log.warning("the shared history of nodes is not used: %s", why)
        return
    me = os.geteuid()
    own = sorted(entry.name for entry, status in _files(folder) if status.st_uid == me)
    active: dict[tuple[str, str], dict[str, Any]] = {}
    for status in history.active:
        one = status.isolation
        record = {"node": one.node, "cluster": one.cluster, "since": one.wall, "until": status.until}
        active.setdefault((one.cluster, one.node), record)
    records = list(active.values())[:RECORDS]
    if not records and not own:
        return
    path = folder / (own[0] if own else f"{me}-{secrets.token_hex(8)}.json")
    publish_text(path, json.dumps({"schema": 1, "excluded": records}), mode=0o644)
    path.chmod(0o644)  # whatever the umask
    for name in own[1:]:
        (folder / name).unlink(missing_ok=True)


def read_others(folder: Path, cluster: str, node: str) -> tuple[OtherExclusion, ...]:
    """Return which other users exclude a node, one entry per user, and for how long."""
    why = refused(folder)
    if why:
        log.warning("the shared history of nodes is not used: %s", why)
        return ()
    now, me = time.time(), os.geteuid()
    newest: dict[int, tuple[int, str]] = {}
    with contextlib.suppress(OSError):
        for entry, status in _files(folder):
            if status.st_uid != me:
                newest[status.st_uid] = max(newest.get(status.st_uid, (0, "")), (status.st_mtime_ns, entry.name))
    found = []
    for uid, (_, name) in sorted(newest.items()):
        ends = [end for at, end in _excluded(folder / name, uid, now) if at == (cluster, node)]
        if ends:
            found.append(OtherExclusion(user_name(uid), None if None in ends else max(filter(None, ends))))
    return tuple(found)


def _files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, FILES):
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield entry, status


def _excluded(path: Path, uid: int, now: float) -> Iterator[tuple[tuple[str, str], float | None]]:
    """Yield cluster and node of each plausible record, and the seconds until its end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or status.st_size > BYTES:
                return
            records = json.loads(file.read(BYTES))["excluded"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    for record in records[:RECORDS] if isinstance(records, list) else ():
        if not isinstance(record, dict):
            continue
        since, until = _number(record.get("since")), _number(record.get("until"))
        ends = record.get("until", 0) is None or (until is not None and until > now)
        if since is not None and now - CARRIED < since < now + SKEW and ends:
            yield (str(record.get("cluster")), str(record.get("node"))), None if until is None else until - now


def _number(value: Any) -> float | None:
    """Return a finite number, or None. JSON may contain NaN and integers that are no float."""
    with contextlib.suppress(OverflowError):
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    return None

"""Can compute nodes see a folder? Told by the type of its file system, as far as that goes."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

_NODE_LOCAL = {
    "tmpfs": "in this machine's memory",
    "ramfs": "in this machine's memory",
    "overlay": "a container's own layer",
}


def shared_enough(root: Path, mountinfo: str | None = None) -> str | None:
    """A warning when ``root`` (or the nearest folder above it that exists) is node-local by type; else None.

    No warning proves nothing: a local disk and an exported one have the same type. The launcher has the last word, on
    the nodes. ``mountinfo`` is the text of /proc/self/mountinfo, which is read when it is not given.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return None  # no such thing here: nothing is known
    folder = root.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = mount_of(folder.resolve(), mountinfo)
    if found is None or found[1] not in _NODE_LOCAL:
        return None
    mount, kind = found
    return (
        f"{root} lies on {mount}, a {kind} ({_NODE_LOCAL[kind]}): other nodes cannot see it. "
        "Set `root` (--root) to a folder on the shared file system"
    )


def mount_of(path: PurePath, mountinfo: str) -> tuple[str, str] | None:
    """The mount point and file system type that hold ``path``; the last mount on a point hides those before. Pure."""
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, after = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), columns[4])
        if path.is_relative_to(point) and (best is None or len(point) >= len(best[0])):
            best = (point, after.split(" ")[0])
    return best

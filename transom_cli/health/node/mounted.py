"""Which file system a path lies on, by this process's table of mounts: proc_pid_mountinfo(5). It asks no file system,
so that it answers also for one that hangs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from transom_cli.health.node.sysfiles import read_text

_NETWORK = re.compile(
    r"nfs4?|cifs|smb3?|lustre|gpfs|beegfs|ceph|glusterfs|9p|afs|wekafs|panfs|pvfs2|orangefs|fuse(\..*)?"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """at: the mount point. kind: "nfs4". source: "filer:/export"."""

    at: str
    kind: str
    source: str

    @property
    def network(self) -> bool:
        """Whether other nodes may have the same file system. FUSE is counted as such: most of what it serves is."""
        return _NETWORK.fullmatch(self.kind) is not None

    def __str__(self) -> str:
        return f"{self.kind} {self.source} on {self.at}"


def read_mounted() -> tuple[Mounted, ...]:
    """In the order in which they were mounted: the last one at a place covers those before it."""
    return parse(read_text("/proc/self/mountinfo"))


def parse(mountinfo: str) -> tuple[Mounted, ...]:
    found = []
    for line in mountinfo.splitlines():
        place, _, rest = line.partition(" - ")
        fields, what = place.split(" "), rest.split(" ")
        if len(fields) > 4 and len(what) > 1:
            found.append(Mounted(_plain(fields[4]), what[0], _plain(what[1])))
    return tuple(found)


def mount_of(path: str, mounts: tuple[Mounted, ...]) -> Mounted | None:
    """The one that an absolute path without symlinks lies on."""
    above = {str(PurePosixPath(path)), *map(str, PurePosixPath(path).parents)}
    over = [mount for mount in mounts if mount.at in above]
    longest = max((len(mount.at) for mount in over), default=0)
    return next((mount for mount in reversed(over) if len(mount.at) == longest), None)


def _plain(field: str) -> str:
    """Spaces and the like are written as octal numbers."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)

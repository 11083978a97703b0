"""Share a new run with a group (`run.share`, `run.on_call`): check that it can work, and set the modes."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import UsageError
from transom_cli.modes import SHARED
from transom_cli.redact import secret_names

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_SETTING = "run.share"


def check_sharing(settings: Settings) -> None:
    """Raise UsageError for an unknown group, or if it could read secrets. Warn if it cannot reach the run."""
    name = settings.run.group
    if not name:
        return
    gid = group_id(name)
    if os.geteuid() != 0 and gid not in (*os.getgroups(), os.getegid()):
        raise UsageError(f"You are not a member of the group `{name}` ({_SETTING})", hint="your groups: id -Gn")
    above = (path for path in (settings.root, *settings.root.parents) if path.exists())
    closed = next((path for path in above if not _may_enter(path, gid)), None)
    if closed is not None:  # an access control list may allow it all the same
        print(
            f"warning: the group `{name}` ({_SETTING}) may not enter {closed} "
            f"(mode {stat.S_IMODE(closed.stat().st_mode):04o}), so it cannot reach the run; choose another --root, or "
            f"`chgrp {name} {closed} && chmod g+x {closed}`",
            file=sys.stderr,
        )
    secrets = secret_names(settings.model_dump(mode="json"))
    if secrets:
        raise UsageError(
            f"The settings contain secrets that the group `{name}` could read ({_SETTING})",
            f"they look like secrets: {', '.join(secrets)}",
            "export them in the shell that calls `transom run`, or let the trainer read them from a file of mode 0600",
        )
    for user in settings.run.on_call:
        if not _is_member(user, gid):
            print(f"warning: {user} (run.on_call) is not known as a member of the group `{name}`", file=sys.stderr)


def group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        hint = "your groups: id -Gn"
        raise UsageError(f"There is no group `{name}` on this host ({_SETTING})", hint=hint) from None


def share_root(root: Path, group: int) -> None:
    """Let the group list a new folder of runs. Raises OSError."""
    os.chown(root, -1, group)
    root.chmod(0o750)


def share_folder(folder: Path, group: int) -> None:
    """What is created in the folder from now on belongs to the group, which can read it. Raises OSError."""
    os.chown(folder, -1, group)
    folder.chmod(SHARED)


def _may_enter(path: Path, gid: int) -> bool:
    found = path.stat()
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH))


def _is_member(user: str, gid: int) -> bool:
    try:
        return gid in os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return False

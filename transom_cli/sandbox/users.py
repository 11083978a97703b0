"""Four users of a sandbox with site profiles: entries in this machine's user database, removed with the cluster.

Needs root. The entries are written directly, under the lock of the database: `useradd` refuses names as they come from
Active Directory, and `groupadd` a name with a space.
"""

import contextlib
import ctypes
import grp
import os
import pwd
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.errors import TransomError

_FIRST_ID = 52_000
# name -> AdminLevel in accounting: two ordinary users, one who may operate the cluster, one who may do anything
_RIGHTS = {"alice": "", "bob": "", "carol": "Operator", "dave": "Administrator"}
_ODD = {"alice": "corp\\alice{}", "bob": "bob{}@corp.example", "carol": "carol{} o.neil", "dave": "corp\\dave{}"}
_ODD_GROUP = "domain users"


@dataclass(frozen=True)
class User:
    """A user of the cluster. `name` is unique on this machine; the key in `Sandbox.users` is not."""

    name: str
    uid: int
    gid: int
    home: str
    admin_level: str = ""

    def identity(self) -> dict[str, Any]:
        """Return the arguments with which `subprocess` starts a process of this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def env(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


def create(where: Path, mark: str, *, odd_names: bool) -> dict[str, User]:
    """Create the four users, with homes in the sandbox's folder. mark: makes their names unique."""
    used = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    free = (number for number in range(_FIRST_ID, 60_000) if number not in used)
    group = _ODD_GROUP if odd_names else f"users{mark}"
    same = [entry.gr_gid for entry in grp.getgrall() if entry.gr_name == group]  # of another sandbox
    gid = same[0] if same else next(free)
    users = {}
    for key, level in _RIGHTS.items():
        name = _ODD[key].format(mark) if odd_names else f"{key}{mark}"
        users[key] = User(name, next(free), gid, str(where / "home" / key), level)

    def added(lines: list[str], new: Sequence[str]) -> list[str]:
        return [*lines, *(line for line in new if line.split(":")[0] not in {old.split(":")[0] for old in lines})]

    entries = [f"{u.name}:x:{u.uid}:{u.gid}:transom sandbox:{u.home}:/bin/sh" for u in users.values()]
    _change({"group": lambda lines: added(lines, [f"{group}:x:{gid}:"]), "passwd": lambda lines: added(lines, entries)})
    (where / "home").mkdir()
    (where / "home").chmod(0o755)
    for user in users.values():
        Path(user.home).mkdir(mode=0o700)
        os.chown(user.home, user.uid, user.gid)
    return users


def remove(users: Mapping[str, User]) -> None:
    """Remove the users, and their group unless users of another sandbox are in it."""
    gone = [f"{user.name}:x:{user.uid}:" for user in users.values()]
    groups = {f":x:{user.gid}:" for user in users.values()}

    def others(lines: list[str]) -> list[str]:
        kept = [line for line in lines if not line.startswith(tuple(gone))]
        groups.difference_update({f":x:{line.split(':')[3]}:" for line in kept if line.count(":") > 3})
        return kept

    def used(lines: list[str]) -> list[str]:
        return [line for line in lines if not any(group in line for group in groups)]

    if users:
        _change({"passwd": others, "group": used})


def _change(changes: Mapping[str, Callable[[list[str]], list[str]]]) -> None:
    with _locked_database():
        for name, change in changes.items():
            path = Path("/etc") / name
            new = path.with_name(f"{name}.transom")
            new.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))
            shutil.copystat(path, new)
            new.rename(path)


@contextlib.contextmanager
def _locked_database() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    if libc.lckpwdf() != 0:
        hint = "end the program that changes users (useradd, vipw), and repeat this command"
        raise TransomError("The user database of this machine is locked", "lckpwdf gave up after 15 s", hint)
    try:
        yield
    finally:
        libc.ulckpwdf()

"""`sandbox.json`: what is known about a sandbox at run time.

Mode 0600, replaced atomically, changed only under the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.sandbox.conf import Ports
from transom_cli.sandbox.procs import Ident, boot_id
from transom_cli.sandbox.spec import LOCK_FILE, STATE_FILE, SandboxSpec

SCHEMA = 1


@dataclass
class State:
    """``cluster`` is unique among all sandboxes: it is how our processes are told from another's.

    ``generation`` counts the starts in this folder: job ids of one start are never those of an earlier one.
    ``disks`` are the small file systems that a fault mounted, ``mounts`` the folders that a server of ours serves,
    ``late`` those that every node sees late, and how (`stale_view`).
    """

    cluster: str
    generation: int
    spec: SandboxSpec
    ports: Ports
    uid: int
    user: str
    boot: str
    daemons: dict[str, Ident] = field(default_factory=dict)
    disks: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    late: dict[str, str] = field(default_factory=dict)

    @property
    def of_this_boot(self) -> bool:
        """False after a reboot of the machine: every recorded pid means nothing then."""
        return self.boot == boot_id()


def load(where: Path) -> State | None:
    """The state, or None where there is none. Raises NotPermitted or TransomError when it cannot be read."""
    path = where / STATE_FILE
    try:
        raw = json.loads(path.read_text())
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']}, this version reads {SCHEMA}")
        return State(
            cluster=raw["cluster"],
            generation=raw["generation"],
            spec=SandboxSpec(dir=where, **raw["spec"]),
            ports=Ports(**raw["ports"]),
            uid=raw["uid"],
            user=raw["user"],
            boot=raw["boot"],
            daemons={name: Ident(**ident) for name, ident in raw["daemons"].items()},
            disks=raw["disks"],
            mounts=raw.get("mounts", []),  # an earlier version wrote none
            late=raw.get("late", {}),
        )
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise NotPermitted(
            f"The sandbox in {where} belongs to another user",
            str(error),
            f"To use it as a client: export SLURM_CONF={where}/slurm.conf",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise TransomError(
            f"The sandbox's state file cannot be read: {path}",
            f"{type(error).__name__}: {error}",
            f"When nothing of it runs any more: rm {path}",
        ) from error


def save(where: Path, state: State) -> None:
    document = {
        "schema": SCHEMA,
        "cluster": state.cluster,
        "generation": state.generation,
        "spec": state.spec.shape(),
        "ports": asdict(state.ports),
        "uid": state.uid,
        "user": state.user,
        "boot": state.boot,
        "daemons": {name: asdict(ident) for name, ident in state.daemons.items()},
        "disks": state.disks,
        "mounts": state.mounts,
        "late": state.late,
    }
    write_private(where / STATE_FILE, json.dumps(document, indent=1) + "\n")


def write_private(path: Path, text: str | bytes) -> None:
    """Publish a 0600 file by write-to-temporary, fsync, rename."""
    data = text.encode() if isinstance(text, str) else text
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


@contextlib.contextmanager
def locked(where: Path) -> Iterator[None]:
    """One at a time in this folder. The kernel drops the lock when its holder dies, however it dies."""
    try:
        fd = os.open(where / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError as error:
        raise UsageError(f"There is no sandbox in {where}", hint=f"transom sandbox up --dir {where}") from error
    except PermissionError as error:
        raise NotPermitted(f"The sandbox in {where} belongs to another user", str(error)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

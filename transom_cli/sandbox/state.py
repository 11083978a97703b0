"""What a sandbox should be (`SandboxSpec`), and what is known about it at run time (`sandbox.json`).

The state file has mode 0600, is replaced atomically, and is changed only under the lock.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.files import make_private, publish_text
from transom_cli.plural import several
from transom_cli.sandbox.processes import Ident, boot_id
from transom_cli.sandbox.users import User

STATE_FILE = "sandbox.json"
LOCK_FILE = "lock"
MAX_NODES = 256
_SOCKET_PATH_MAX = 107  # sun_path holds 108 bytes with its NUL, unix(7)
_PLAIN = re.compile(r"[A-Za-z0-9_./+@~-]+")  # slurm.conf has no quoting, and expands %, # and [ ]
_FREE_MB = {False: 100, True: 600}  # with accounting: InnoDB's own files


@dataclass(frozen=True)
class SandboxSpec:
    """A cluster to start in the folder `dir`.

    Attributes:
        extra: adds or replaces slurm.conf settings, for tests.
        home: where a release of Slurm was built (`release.known.ReleaseHome`); empty: this machine's own Slurm.
        switches: leaf switches of a tree, to which the nodes are assigned in order; 0: no topology.
        site: names of site profiles (`sites`).
    """

    dir: Path
    nodes: int = 4
    gpus_per_node: int = 2
    accounting: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    home: str = ""
    switches: int = 0
    site: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", tuple(self.site))

    def shape(self) -> dict[str, object]:
        """Return everything except the folder: specs with equal shape describe the same sandbox."""
        return {name: value for name, value in vars(self).items() if name != "dir"}

    def __str__(self) -> str:
        words = f"{several(self.nodes, 'node')} with {several(self.gpus_per_node, 'GPU')} each"
        words += f" on {several(self.switches, 'switch', 'switches')}" if self.switches else ""
        words += ", with accounting" if self.accounting else ""
        words += f", Slurm of {Path(self.home).name}" if self.home else ""
        words += f", like a site with {', '.join(self.site)}" if self.site else ""
        return words + "".join(f", {key}={value}" for key, value in sorted(self.extra.items()))


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1. Node i listens on ``nodes + i`` (i from 0)."""

    controller: int
    database: int
    dbd: int
    nodes: int


def default_dir() -> Path:
    """Return `$TRANSOM_SANDBOX_DIR`, else `~/.transom/sandbox`."""
    folder = os.environ.get("TRANSOM_SANDBOX_DIR")
    return Path(folder).expanduser() if folder else Path.home() / ".transom" / "sandbox"


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"node{i}" for i in range(1, count + 1))


def check_spec(spec: SandboxSpec) -> None:
    """Refuse what cannot work, before anything is changed."""
    if not 1 <= spec.nodes <= MAX_NODES:
        raise UsageError(f"A sandbox has 1 to {MAX_NODES} nodes, not {spec.nodes}")
    if not 0 <= spec.gpus_per_node <= 16:
        raise UsageError(f"A sandbox node has 0 to 16 GPUs, not {spec.gpus_per_node}")
    if not 0 <= spec.switches <= spec.nodes:
        nodes = several(spec.nodes, "node")
        raise UsageError(f"A sandbox of {nodes} has 0 to {spec.nodes} switches, not {spec.switches}")
    text = str(spec.dir)
    if not _PLAIN.fullmatch(text):
        odd = "".join(sorted({char for char in text if not _PLAIN.fullmatch(char)}))
        raise UsageError(
            f"The sandbox folder's path cannot be used: {text!r}",
            f"slurm.conf has no quoting, so the path cannot contain these characters: {odd!r}",
            "transom sandbox up --dir /tmp/sandbox",
        )
    longest = f"{text}/spool/node{spec.nodes}/node{spec.nodes}_99999999.4294967291"  # slurmstepd's own socket
    if len(longest) > _SOCKET_PATH_MAX:
        room = _SOCKET_PATH_MAX - (len(longest) - len(text))
        raise UsageError(
            f"The sandbox folder's path is too long: {text} ({len(text)} characters, at most {room})",
            f"Slurm creates Unix sockets in it, whose paths can have at most {_SOCKET_PATH_MAX} characters",
            "transom sandbox up --dir /tmp/sandbox",
        )


def check_place(spec: SandboxSpec) -> None:
    """Create the folder if needed; refuse one that is not ours, not writable, used for something else, or full."""
    where = spec.dir
    try:
        make_private(where)
        owner = where.stat().st_uid
    except OSError as error:
        raise NotPermitted(
            f"Cannot create the sandbox folder {where}", str(error), "transom sandbox up --dir /tmp/sandbox"
        ) from error
    if owner != os.geteuid() or not os.access(where, os.W_OK | os.X_OK):
        raise NotPermitted(
            f"Cannot write in the sandbox folder {where}",
            f"it belongs to user ID {owner}, and this is user ID {os.geteuid()}",
            "transom sandbox up --dir /tmp/sandbox-$USER",
        )
    strangers = sorted(entry.name for entry in where.iterdir())
    if strangers and not (where / STATE_FILE).exists() and strangers != [LOCK_FILE]:
        raise UsageError(
            f"The folder {where} is not empty and not a sandbox",
            f"it contains {', '.join(strangers[:5])}",
            "choose an empty or a new folder: transom sandbox up --dir D",
        )
    free_mb = shutil.disk_usage(where).free // 2**20
    if free_mb < _FREE_MB[spec.accounting]:
        raise TransomError(
            f"Too little space for a sandbox in {where}",
            f"{free_mb} MiB are free, {_FREE_MB[spec.accounting]} MiB are needed",
            "transom sandbox up --dir D   (a folder on another file system)",
        )


SCHEMA = 1


@dataclass
class State:
    """What is known about a sandbox.

    Attributes:
        cluster: unique among all sandboxes; identifies our processes.
        generation: number of starts in this folder; job IDs of one start never repeat those of an earlier one.
        disks: small file systems that a fault mounted.
        mounts: folders that `disk_server` serves.
        late: folders that every node sees late, and how (`stale_view`).
        users: users that were created for the site profiles.
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
    users: dict[str, User] = field(default_factory=dict)

    @property
    def of_this_boot(self) -> bool:
        """False after a reboot of the machine: recorded PIDs are then meaningless."""
        return self.boot == boot_id()


def load(where: Path) -> State | None:
    """Return the state, or None if there is none. Raises NotPermitted or TransomError if it cannot be read."""
    path = where / STATE_FILE
    try:
        raw = json.loads(path.read_text())
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema {raw['schema']}, this version reads {SCHEMA}")
        made = {
            "spec": SandboxSpec(dir=where, **raw["spec"]),
            "ports": Ports(**raw["ports"]),
            "daemons": {name: Ident(**ident) for name, ident in raw["daemons"].items()},
            "users": {name: User(**user) for name, user in raw["users"].items()},
        }
        return State(**{name: value for name, value in raw.items() if name != "schema"} | made)
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise NotPermitted(
            f"The sandbox in {where} belongs to another user",
            str(error),
            f"to use it as a client: export SLURM_CONF={where}/slurm.conf"  # root's
            if os.access(where / "slurm.conf", os.R_OK)
            else "start your own: transom sandbox up --dir /tmp/sandbox-$USER",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise TransomError(
            f"The sandbox's state file cannot be read: {path}",
            f"{type(error).__name__}: {error}",
            f"if none of its processes is running: rm {path}",
        ) from error


def save(where: Path, state: State) -> None:
    document = {"schema": SCHEMA, **asdict(state), "spec": state.spec.shape()}
    publish_text(where / STATE_FILE, json.dumps(document, indent=1) + "\n", private=True)


@contextlib.contextmanager
def locked(where: Path) -> Iterator[None]:
    """Hold this folder's lock. The kernel releases it when its holder dies, however it dies."""
    try:
        fd = os.open(where / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError as error:
        raise UsageError(f"There is no sandbox in {where}", hint=f"transom sandbox up --dir {where}") from error
    except PermissionError as error:
        hint = "choose another folder with `--dir`"
        raise NotPermitted(f"The sandbox in {where} belongs to another user", str(error), hint) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)

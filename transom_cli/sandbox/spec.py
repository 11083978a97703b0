"""What a sandbox is asked to be, and whether Slurm can live in the folder asked for."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.plural import several

STATE_FILE = "sandbox.json"
LOCK_FILE = "lock"
MAX_NODES = 256
_SOCKET_PATH_MAX = 107  # sun_path holds 108 bytes with its NUL, unix(7)
_PLAIN = re.compile(r"[A-Za-z0-9_./+@~-]+")  # slurm.conf has no quoting, and expands %, # and [ ]
_FREE_MB = {False: 100, True: 600}  # with accounting: InnoDB's own files


@dataclass(frozen=True)
class SandboxSpec:
    """A cluster to bring up in the folder ``dir``. ``extra`` adds or replaces slurm.conf settings, for tests.

    ``home``: where a release of Slurm was built (`release.known.ReleaseHome`); empty: this machine's own Slurm.
    ``switches``: leaves of a tree among which the nodes are divided in order; 0: Slurm knows of no network.
    """

    dir: Path
    nodes: int = 4
    gpus_per_node: int = 2
    accounting: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    home: str = ""
    switches: int = 0

    def shape(self) -> dict[str, object]:
        """All but the folder: two specs with one shape are one sandbox."""
        return {
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "accounting": self.accounting,
            "extra": dict(self.extra),
            "home": self.home,
            "switches": self.switches,
        }

    def __str__(self) -> str:
        words = f"{several(self.nodes, 'node')} with {several(self.gpus_per_node, 'GPU')} each"
        words += f" on {several(self.switches, 'switch', 'switches')}" if self.switches else ""
        words += ", with accounting" if self.accounting else ""
        words += f", Slurm of {Path(self.home).name}" if self.home else ""
        return words + "".join(f", {key}={value}" for key, value in sorted(self.extra.items()))


def default_dir() -> Path:
    """`$TRANSOM_SANDBOX_DIR`, else `~/.transom/sandbox`."""
    asked = os.environ.get("TRANSOM_SANDBOX_DIR")
    return Path(asked).expanduser() if asked else Path.home() / ".transom" / "sandbox"


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"node{i}" for i in range(1, count + 1))


def check_spec(spec: SandboxSpec) -> None:
    """Refuse what cannot work, before anything is touched. Pure."""
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
            f"slurm.conf has no quoting, so these characters are not possible in it: {odd!r}",
            "transom sandbox up --dir /tmp/sandbox",
        )
    longest = f"{text}/spool/node{spec.nodes}/node{spec.nodes}_99999999.4294967291"  # slurmstepd's own socket
    if len(longest) > _SOCKET_PATH_MAX:
        room = _SOCKET_PATH_MAX - (len(longest) - len(text))
        raise UsageError(
            f"The sandbox folder's path is too long: {text} ({len(text)} characters, at most {room})",
            f"Slurm makes Unix sockets in it, and their paths hold {_SOCKET_PATH_MAX} characters",
            "transom sandbox up --dir /tmp/sandbox",
        )


def check_place(spec: SandboxSpec) -> None:
    """Make the folder if need be; refuse one that is not ours, not writable, in use for other things, or full."""
    where = spec.dir
    try:
        where.mkdir(parents=True, exist_ok=True)
        owner = where.stat().st_uid
    except OSError as error:
        raise NotPermitted(
            f"Cannot make the sandbox folder {where}", str(error), "transom sandbox up --dir /tmp/sandbox"
        ) from error
    if owner != os.geteuid() or not os.access(where, os.W_OK | os.X_OK):
        raise NotPermitted(
            f"Cannot write in the sandbox folder {where}",
            f"it belongs to user id {owner}, and this is user id {os.geteuid()}",
            "transom sandbox up --dir /tmp/sandbox-$USER",
        )
    strangers = sorted(entry.name for entry in where.iterdir())
    if strangers and not (where / STATE_FILE).exists() and strangers != [LOCK_FILE]:
        raise UsageError(
            f"The folder {where} is not empty and is no sandbox",
            f"it holds {', '.join(strangers[:5])}",
            "Choose an empty or a new folder: transom sandbox up --dir D",
        )
    free_mb = shutil.disk_usage(where).free // 2**20
    if free_mb < _FREE_MB[spec.accounting]:
        raise TransomError(
            f"Too little space for a sandbox in {where}",
            f"{free_mb} MiB are free, {_FREE_MB[spec.accounting]} MiB are needed",
            "transom sandbox up --dir D   (a folder on another file system)",
        )

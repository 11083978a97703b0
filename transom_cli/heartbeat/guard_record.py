"""What a rank's guard against silent corruption has found: a small JSON file beside the rank's record.

The rank replaces it when something happens; the agent passes it on with the step breakdown. The launcher's answer is
one file for all ranks. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from transom_cli.heartbeat import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 16 << 10  # bytes that are read
KEPT = 4  # events


def path(beats_dir: str, launch: int, rank: int) -> str:
    return f"{beats_dir}/guard-{launch}-{rank}"


def write(beats_dir: str, launch: int, rank: int, record: Mapping[str, Any]) -> None:
    """Raises OSError on failure."""
    name = path(beats_dir, launch, rank)
    with open(f"{name}.new", "w", encoding="utf-8", opener=_private) as file:
        file.write(json.dumps(record))
    os.replace(f"{name}.new", name)  # noqa: PTH105


def _private(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def read(beats_dir: str, launch: int, rank: int) -> dict[str, Any]:
    """Return {} if there is none, or none that can be read."""
    return _read(path(beats_dir, launch, rank))


def _read(name: str) -> dict[str, Any]:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            data = json.loads(os.read(fd, LIMIT))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def update(**fields: Any) -> None:
    """Change fields of this process's record, if a launcher watches it. Raises OSError on failure."""
    folder = os.environ.get(paths.BEAT_DIR, "")
    if folder:
        launch, rank = paths.own_launch(), paths.own_rank()
        write(folder, launch, rank, {**read(folder, launch, rank), **fields})


def doubt() -> dict[str, Any]:
    """What the launcher made of the guards' records, from its `AttemptDir.doubt`; {} if there is nothing."""
    return _read(f"{os.environ.get(paths.ATTEMPT_DIR, '')}/doubt.json")

"""What a rank's guard against silent corruption has found: a small JSON file beside the rank's record.

The rank replaces it when something happens; the agent passes it on with the step breakdown. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 16 << 10  # bytes that are read
KEPT = 4  # events
REPEATED = ("replica", "product")  # kinds of events whose step is to be repeated, the strongest first


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
    try:
        fd = os.open(path(beats_dir, launch, rank), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            data = json.loads(os.read(fd, LIMIT))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def newest_before(beats_dir: str, launch: int) -> tuple[int, dict[str, Any]]:
    """Return the newest earlier launch whose guards on this node have found something, and what is to be repeated."""
    found: list[tuple[int, dict[str, Any]]] = []
    try:
        names = os.listdir(beats_dir)  # noqa: PTH208
    except OSError:
        names = []
    for name in names:
        kind, _, rest = name.partition("-")
        earlier, _, rank = rest.partition("-")
        if kind == "guard" and earlier.isdecimal() and rank.isdecimal() and int(earlier) < launch:
            events = [e for e in read(beats_dir, int(earlier), int(rank)).get("events", ()) if e["kind"] in REPEATED]
            found += [(int(earlier), event) for event in events]
    return max(found, key=lambda one: (one[0], -REPEATED.index(one[1]["kind"]), -one[1]["step"]), default=(-1, {}))

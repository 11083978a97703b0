"""What is in object storage, as the snapshot daemon saw it after its last upload: `.mirrors` in the main directory.

Commands show it without a call to the storage, which could take long or need credentials that they do not have. The
daemon that publishes checkpoints is the only writer. Standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transom_cli.files import publish_text

MIRRORS = ".mirrors"
SCHEMA = 1
_LIMIT = 16 << 20  # bytes that are read


@dataclass(frozen=True)
class MirrorState:
    """there: the complete checkpoints (`objects.Marker`), newest first. wall: when, seconds since the epoch; 0: never.
    trouble: why the last upload failed, or ""."""

    there: tuple[dict[str, Any], ...] = ()
    wall: float = 0.0
    trouble: str = ""


def write(directory: Path, states: Mapping[str, MirrorState]) -> None:
    """Write the states by URL; what is known of others stays. Raises OSError."""
    known = {url: asdict(state) for url, state in {**read(directory), **states}.items()}
    publish_text(directory / MIRRORS, json.dumps({"schema": SCHEMA, "mirrors": known}) + "\n")


def read(directory: Path) -> dict[str, MirrorState]:
    """Return the states by URL; none if there is no record, or it cannot be read."""
    try:
        with (directory / MIRRORS).open("rb") as file:
            data = json.loads(file.read(_LIMIT))
        if data["schema"] != SCHEMA:
            return {}
        return {
            str(url): MirrorState(tuple(dict(m) for m in s["there"]), float(s["wall"]), str(s["trouble"]))
            for url, s in data["mirrors"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}

"""What a checkpoint says of itself that no training has written: `transom ckpt import` did. Standard library only.

It stands in a file of its own, which the manifest names, so that its bytes are as sure as the weights'.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.manifest import Manifest
from transom_cli.ckpt.names import IMPORTED

SCHEMA = 1


@dataclass(frozen=True)
class Origin:
    source: str  # the imported file's name, for people
    per_rank: bool  # whether it has per-rank entries (random numbers, data positions); without, they start afresh
    afresh: tuple[str, ...]  # entries of the trainer that it lacks on purpose, and that keep their first state

    def told(self) -> str:
        """Where it is from, and what of the trainer's state it leaves as it is."""
        rest = [*self.afresh, *([] if self.per_rank else ["random numbers and per-rank objects"])]
        return f"imported from {self.source}" + (f"; afresh start: {', '.join(rest)}" if rest else "")


def encode(origin: Origin) -> bytes:
    return (json.dumps({"schema": SCHEMA, **asdict(origin)}, indent=1, sort_keys=True) + "\n").encode("ascii")


def read(checkpoint: Path, manifest: Manifest) -> Origin | None:
    """None for a checkpoint that a training wrote. Raises StateMismatch for what this version cannot follow."""
    if all(entry.name != IMPORTED for entry in manifest.files):
        return None
    try:
        told = json.loads((checkpoint / IMPORTED).read_text("ascii"))
        if told["schema"] != SCHEMA:
            raise StateMismatch(f"{IMPORTED} has schema {told['schema']}, and this transom knows {SCHEMA}")
        return Origin(str(told["source"]), told["per_rank"] is True, tuple(map(str, told["afresh"])))
    except OSError as error:
        raise StateMismatch(f"{IMPORTED} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError):
        raise StateMismatch(f"{IMPORTED} does not say what it should") from None

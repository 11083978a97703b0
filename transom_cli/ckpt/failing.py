"""What a training tells of its saves in the attempt's folder (`saves.json`): whether they fail, and why. Pure.

Rank 0 writes it, at the first good save of a launch and whenever that changes. It stays when the job ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.errors import printable

SCHEMA = 1
LONGEST = 400  # characters of an error


@dataclass(frozen=True)
class Saves:
    """failed: saves that failed in a row, 0: the last was good. step: of the last that failed. good: the step of the
    newest good one, -1: none. since: when the first of them failed (seconds of the wall clock). launch: of the attempt.
    """

    failed: int = 0
    step: int = -1
    why: str = ""
    good: int = -1
    since: float = 0.0
    launch: int = 0


def written(trainings: Mapping[str, Saves]) -> str:
    """The file, from the saves by directory: a process may have several Checkpointers."""
    told = {directory: plain(saves) for directory, saves in trainings.items()}
    return json.dumps({"schema": SCHEMA, "trainings": told}) + "\n"


def worst(text: str) -> Saves | None:
    """Of the trainings in the file the one whose saves fail most; None where it tells of none."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            return None
        found = [_shown(build(Saves, saves)) for saves in data["trainings"].values()]
    except (BadRecord, ValueError, KeyError, TypeError, AttributeError):
        return None
    return max(found, key=lambda saves: saves.failed, default=None)


def _shown(saves: Saves) -> Saves:
    """As a terminal may get it."""
    why = printable(" ".join(saves.why.split()))
    return replace(saves, why=why if len(why) <= LONGEST else why[: LONGEST - 3] + "...")

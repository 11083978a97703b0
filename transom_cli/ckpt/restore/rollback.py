"""Rollbacks: checkpoints after a step are not to be resumed from, because the state had gone bad.

`.setbacks` in the checkpoints directory lists every rollback, oldest first. A restore passes over checkpoints beyond
one that an earlier launch wrote: on disk, in copies and in memory. Such a checkpoint is kept as
`step-<n>.undone-<k>`, out of the way of the one that training now makes of that step.

A rollback may also name steps whose batches are skipped, a known remedy for loss spikes (PaLM, Chowdhery et al. 2022,
section 5.1: the same batches did no harm to another state). `Batches` is the trainer's view of all rollbacks.

The launcher writes the file before its launch, under the fence. Standard library only.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadManifest, BadRollbacks
from transom_cli.ckpt.inventory import candidates, read_manifest
from transom_cli.ckpt.names import ROLLBACKS, age
from transom_cli.files import publish_text

SCHEMA = 1
_LIMIT = 1 << 20  # bytes of the file that are read


@dataclass(frozen=True)
class Rollback:
    """launch: `<job id>.<restart>.<launch>`, the first that resumes from `to`, a number of finished steps.

    skip: first and last step, as counted then, whose batches are skipped; None: none. why: for people. wall: when,
    seconds since the epoch.
    """

    launch: str
    to: int
    skip: tuple[int, int] | None = None
    why: str = ""
    wall: float = 0.0

    def undoes(self, step: int, attempt: str) -> bool:
        """Whether the checkpoint of `step` by `attempt` is undone. One that was made outside transom never is."""
        theirs, ours = age(attempt), age(self.launch)
        return step > self.to and theirs is not None and ours is not None and theirs < ours


def read(directory: Path) -> tuple[Rollback, ...]:
    """Read all rollbacks, oldest first. Raises BadRollbacks, also if the file cannot be read."""
    try:
        with (directory / ROLLBACKS).open("rb") as file:
            data = json.loads(file.read(_LIMIT))
        if data["schema"] != SCHEMA:
            raise ValueError(f"it is of version {data['schema']!r}, and {SCHEMA} is known here")
        return tuple(_decoded(one) for one in data["setbacks"])
    except FileNotFoundError:
        return ()
    except (KeyError, TypeError, ValueError, OSError) as error:
        path = directory / ROLLBACKS
        what = f"{path} cannot be read as the record of rollbacks"
        raise BadRollbacks(
            what, repr(error), f"if you know of no rollback, move it away: mv {path} {path}.bad"
        ) from None


def undone(rollbacks: Iterable[Rollback], step: int, attempt: str) -> bool:
    return any(one.undoes(step, attempt) for one in rollbacks)


def roll_back(directory: Path, rollback: Rollback) -> tuple[str, ...]:
    """Record the rollback, and set aside what it undoes. Idempotent. Raises OSError and BadRollbacks.

    The record comes first: if this is interrupted, a restore still ignores the rest.

    Returns:
        The names that were set aside, newest first.
    """
    known = read(directory)
    if all(one.launch != rollback.launch for one in known):
        body = {"schema": SCHEMA, "setbacks": [asdict(one) for one in (*known, rollback)]}
        publish_text(directory / ROLLBACKS, json.dumps(body, indent=1) + "\n")
    return set_aside(directory, (rollback,))


def set_aside(directory: Path, rollbacks: tuple[Rollback, ...]) -> tuple[str, ...]:
    """Move undone checkpoints out of the way. One without a readable manifest never restores anyway."""
    moved = []
    least = min((one.to for one in rollbacks), default=0)
    for candidate in candidates(directory) if rollbacks else ():
        if candidate.step <= least:
            break
        try:
            attempt = read_manifest(candidate).attempt
        except BadManifest:
            continue
        if undone(rollbacks, candidate.step, attempt):
            files.set_aside(candidate.path, "undone")
            moved.append(candidate.name)
    return tuple(moved)


class Batches:
    """Which batch a step trains on, given the batches that rollbacks skip.

    Steps are counted from 1, as `Checkpointer.save(step)` does; batches from 0, in the order of the data.
    """

    def __init__(self, rollbacks: Iterable[Rollback] = ()) -> None:
        self.skipped: tuple[tuple[int, int], ...] = ()
        """First and last batch of each skipped range, in order; ranges do not touch."""
        for one in rollbacks:
            if one.skip is not None:
                first, last = one.skip
                self.skipped = _with(self.skipped, (self.of(first), self.of(last)))

    def of(self, step: int) -> int:
        batch = step - 1
        for first, last in self.skipped:
            if batch < first:
                break
            batch += last - first + 1
        return batch


def _with(stretches: tuple[tuple[int, int], ...], new: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted((*stretches, new)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _decoded(data: dict[str, Any]) -> Rollback:
    """Raises KeyError, TypeError and ValueError."""
    one = Rollback(str(data["launch"]), data["to"], wall=float(data.get("wall", 0.0)), why=str(data.get("why", "")))
    if type(one.to) is not int or age(one.launch) is None:
        raise ValueError(f"no launch, or no step: {data!r}")
    if data.get("skip") is None:
        return one
    first, last = data["skip"]
    if type(first) is not int or type(last) is not int or not 1 <= first <= last:
        raise ValueError(f"no first and last step: {data['skip']!r}")
    return replace(one, skip=(first, last))

"""A training that was set back: what it did after a step is not to be gone on from, since its state had gone bad.

`.setbacks` in the checkpoints directory lists every setback, the oldest first. A restore passes over what is beyond one
and was written by a launch before it, on disk, in copies and in memory. Such a checkpoint is kept, as
`step-<n>.undone-<k>`, out of the way of the one that the training now makes of that step.

A setback may also name steps whose batches are to be skipped, as is done against loss spikes (PaLM, Chowdhery et al.
2022, section 5.1: the same batches did no harm to another state). `Batches` is the trainer's view of all of them.

The file's writer is the launcher, before its launch, under the fence. Standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadManifest, BadSetbacks
from transom_cli.ckpt.inventory import candidates, read_manifest
from transom_cli.ckpt.names import SETBACKS, age
from transom_cli.files import publish_text

SCHEMA = 1
_LIMIT = 1 << 20  # bytes of the file that are read


@dataclass(frozen=True)
class Setback:
    """launch: `<job id>.<restart>.<launch>`, the first that goes on from `to`, a number of finished steps.

    skip: the first and the last step, as they were counted then, whose batches are to be skipped; None: none are.
    why: for a person. wall: when, in seconds since the epoch.
    """

    launch: str
    to: int
    skip: tuple[int, int] | None = None
    why: str = ""
    wall: float = 0.0

    def undoes(self, step: int, attempt: str) -> bool:
        """Whether what `attempt` wrote of `step` is undone. What was written by hand has no age, and never is."""
        theirs, ours = age(attempt), age(self.launch)
        return step > self.to and theirs is not None and ours is not None and theirs < ours


def read(directory: Path) -> tuple[Setback, ...]:
    """All of them, the oldest first. Raises BadSetbacks, also where the file cannot be read."""
    try:
        with (directory / SETBACKS).open("rb") as file:
            data = json.loads(file.read(_LIMIT))
        if data["schema"] != SCHEMA:
            raise ValueError(f"it is of version {data['schema']!r}, and {SCHEMA} is known here")
        return tuple(_setback(one) for one in data["setbacks"])
    except FileNotFoundError:
        return ()
    except (KeyError, TypeError, ValueError, OSError) as error:
        path = directory / SETBACKS
        what = f"{path} cannot be read as the record of setbacks"
        raise BadSetbacks(what, repr(error), f"if you know of no setback, move it away: mv {path} {path}.bad") from None


def undone(setbacks: Iterable[Setback], step: int, attempt: str) -> bool:
    return any(one.undoes(step, attempt) for one in setbacks)


def set_back(directory: Path, setback: Setback) -> tuple[str, ...]:
    """Record it, and set aside what it undoes. Returns the names that were set aside, the newest first.

    The record comes first: what stays where it is, since this was cut off, is passed over all the same. Doing it twice
    is doing it once. Raises OSError and BadSetbacks.
    """
    known = read(directory)
    if all(one.launch != setback.launch for one in known):
        told = {"schema": SCHEMA, "setbacks": [asdict(one) for one in (*known, setback)]}
        publish_text(directory / SETBACKS, json.dumps(told, indent=1) + "\n")
    return set_aside(directory, (setback,))


def set_aside(directory: Path, setbacks: tuple[Setback, ...]) -> tuple[str, ...]:
    """Move what is undone out of the way. What has no manifest that can be read is nobody's to go on from."""
    moved = []
    least = min((one.to for one in setbacks), default=0)
    for candidate in candidates(directory) if setbacks else ():
        if candidate.step <= least:
            break
        try:
            attempt = read_manifest(candidate).attempt
        except BadManifest:
            continue
        if undone(setbacks, candidate.step, attempt):
            files.set_aside(candidate.path, "undone")
            moved.append(candidate.name)
    return tuple(moved)


class Batches:
    """Which batch a step trains on, when those that setbacks skip are left out.

    Steps are counted from 1, as `Checkpointer.save(step)` does; batches from 0, in the order of the data.
    """

    def __init__(self, setbacks: Iterable[Setback] = ()) -> None:
        self.skipped: tuple[tuple[int, int], ...] = ()
        """First and last batch of each stretch that is skipped, in order, none touching another."""
        for one in setbacks:
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


def _setback(data: dict[str, Any]) -> Setback:
    """Raises KeyError, TypeError and ValueError."""
    one = Setback(str(data["launch"]), data["to"], wall=float(data.get("wall", 0.0)), why=str(data.get("why", "")))
    if type(one.to) is not int or age(one.launch) is None:
        raise ValueError(f"no launch, or no step: {data!r}")
    if data.get("skip") is None:
        return one
    first, last = data["skip"]
    if type(first) is not int or type(last) is not int or not 1 <= first <= last:
        raise ValueError(f"no first and last step: {data['skip']!r}")
    return replace(one, skip=(first, last))

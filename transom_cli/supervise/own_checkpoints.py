"""The trainer's own checkpoints, by their names and places. They are not read, and nothing heavy is imported."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from transom_cli.ckpt.names import SEAL, SEALS, step_of
from transom_cli.core.progress import OwnCheckpoint
from transom_cli.errors import printable
from transom_cli.layout import RunDir

_WORDS = re.compile(r"[\s='\"]+")
_FILE = re.compile(r"(?:ckpt|checkpoint|model|iter|step)[-_]?(\d{1,12})\.(?:pt|pth|bin|tar)")  # of torch.save
_ENTRIES, _FOLDERS = 2000, 50  # of a folder; that are looked into
_LIGHTNING = "lightning_logs"  # <version>/checkpoints


def folders(run: RunDir) -> tuple[Path, list[Path]]:
    """Return the job's directory, and the folders that the batch script names. Raises OSError, ValueError, KeyError."""
    base = Path(str(json.loads(run.submission.read_text())["chdir"]))
    words = {word for word in _WORDS.split(run.script.read_text()) if word not in (".", "..", "/")}
    return base, [path for word in sorted(words) if (path := base / word).is_dir()]


def newest_own(run: RunDir, ours: Path | None = None) -> OwnCheckpoint | None:
    """Return the checkpoint with the highest step that was written since the run was created; else of older ones.

    It is looked for in the folders that the batch script names, else in the job's directory and its folders.

    Args:
        ours: Where the Checkpointer publishes step-N: that is a checkpoint of the run's once the operator has seen it.
    """
    try:
        base, named = folders(run)
        since = run.settings.stat().st_mtime
        found = [one for folder in named for one in _in(folder, base, ours)]
        if not found:
            found = [one for folder in _below(base) for one in _in(folder, base) if one.changed >= since]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return max(found, key=lambda one: (one.changed >= since, one.step), default=None)


def _below(base: Path) -> Iterator[Path]:
    yield base
    for inner in _folders(base):
        yield inner
        if inner.name == _LIGHTNING:
            yield from (version / "checkpoints" for version in _folders(inner))


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        found = (one for one in islice(entries, _ENTRIES) if not one.name.startswith(".") and one.is_dir())
        return [Path(one.path) for one in islice(found, _FOLDERS)]
    return []


def _in(folder: Path, base: Path, ours: Path | None = None) -> Iterator[OwnCheckpoint]:
    with suppress(OSError), os.scandir(folder) as entries:
        for one in islice(entries, _ENTRIES):
            if folder == ours and one.name.startswith("step-"):
                continue
            own = _FILE.fullmatch(one.name)
            if (step := int(own[1]) if own else step_of(one.name)) is not None:
                seal = f"{one.path}/{SEAL}" if one.is_dir() else f"{folder}/{SEALS}/{one.name}.json"
                path = Path(one.path)
                shown = path.relative_to(base) if path.is_relative_to(base) else path
                yield OwnCheckpoint(printable(str(shown)), step, os.path.exists(seal), one.stat().st_mtime)  # noqa: PTH110

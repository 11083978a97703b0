"""Further directories that get copies of a training's durable checkpoints: which may be asked for, and whose they are.

Each belongs to one training, that is to its main directory: retention deletes there, and a restore looks there. So a
directory names the main one whose copies it has (`.copies-of`), and one that has another's, or checkpoints that nobody
calls copies, is refused. A main directory that was lost and is made again under its name finds its copies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from transom_cli.ckpt.inventory import candidates
from transom_cli.ckpt.names import COPIES_OF
from transom_cli.errors import UsageError
from transom_cli.files import publish_text

Also = Mapping[str | os.PathLike[str], int]


def check(also: Also | None, main: Path) -> dict[Path, int]:
    """Absolute paths, and of how many durable checkpoints one is copied there. Raises UsageError."""
    found: dict[Path, int] = {}
    seen = {main.resolve()}
    for where, every in (also or {}).items():
        path = Path(where).absolute()
        if type(every) is not int or every < 1:
            raise UsageError(
                f"also={{{str(where)!r}: {every!r}}} must be a number, at least 1",
                "of so many durable checkpoints one is copied into that directory",
                'also={"/archive/my-run": 10} copies every tenth',
            )
        if path.resolve() in seen:
            raise UsageError(
                f"also={{{str(where)!r}: {every}}} must be another directory",
                f"checkpoints are kept there already: {main} is the main directory",
            )
        seen.add(path.resolve())
        found[path] = every
    return found


def claim(directory: Path, main: Path) -> None:
    """`directory` is there; let it have the copies of `main`. Raises UsageError and OSError."""
    mark = directory / COPIES_OF
    try:
        owner = mark.read_text("utf-8", "surrogateescape").removesuffix("\n")
    except FileNotFoundError:
        owner = ""
    ours = str(main)
    if owner == ours:
        return
    if owner or candidates(directory):
        whose = f"it has the copies of {owner}" if owner else f"checkpoints are there, and no {COPIES_OF} says whose"
        raise UsageError(
            f"{directory} is not for copies of {main}",
            f"{whose}; two trainings in one directory would delete and restore each other's",
            "give each training a directory of its own; if these are this one's:\n"
            f"printf %s {quote(ours)} > {quote(str(mark))}",
        )
    publish_text(mark, ours + "\n")

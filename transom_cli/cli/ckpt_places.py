"""Which checkpoints the words of a `transom ckpt` command mean.

They are named by their run, or by a path: a checkpoints directory or a run directory.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.common import find_run, run_to_act_on, run_to_read
from transom_cli.cli.options import run_ids
from transom_cli.errors import NoCheckpoint, TransomError, UsageError
from transom_cli.layout import RunDir

if TYPE_CHECKING:
    from transom_cli.ckpt.inventory import Candidate

Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN|PATH", help="A run, or a directory of checkpoints.", autocompletion=run_ids),
]


def checkpoints_of_words(run: str | None, root: Path | None, *, make: bool = False, listed: bool = False) -> Path:
    """A folder; else a run's id or name; nothing typed: the newest run. A run may keep its checkpoints elsewhere.

    `make`: it is to be written into; a run that has none yet gets its directory. Raises NotPermitted for another
    user's run. `listed`: a directory that does not exist yet is an empty one.
    """
    folder = _folder(run, root)
    if folder is not None and (folder / "run.toml").is_file():
        run, folder = str(folder.absolute()), None
    found = folder or _of_run(run, root, act=make)
    if make and folder is None:
        from transom_cli.files import make_private

        make_private(found)
    inside = found / "checkpoints"
    directory = inside if inside.is_dir() else found
    if not directory.is_dir() and folder is None and listed:
        return directory
    if not directory.is_dir() and folder is None:
        raise UsageError("The run has no checkpoints yet", f"{directory} does not exist", "transom status")
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory", hint="give a checkpoints directory or a run directory")
    return directory


def run_of_words(run: str | None, root: Path | None) -> RunDir | None:
    """The run that such words name, None where they name a folder that is no run's."""
    folder = _folder(run, root)
    if folder is None:
        return find_run(root, run)
    around = RunDir(folder.absolute()), RunDir(folder.absolute().parent)
    if around[0].settings.is_file():
        return around[0]
    return around[1] if around[1].settings.is_file() and around[1].checkpoints == folder.absolute() else None


def _folder(word: str | None, root: Path | None) -> Path | None:
    """The folder that a word names; None if it names a run, also where a folder of that name happens to be."""
    from transom_cli.submit.rundir import run_name

    if word is None or not Path(word).is_dir():
        return None
    with contextlib.suppress(TransomError):
        if Path(word).name == word:
            run = find_run(root, word)
            if word in (run.run_id, run_name(run)):
                return None
    return Path(word)


def _of_run(wanted: str | None, root: Path | None, *, act: bool) -> Path:
    from transom_cli.config.run_settings import checkpoints_of, read_settings

    run = (run_to_act_on if act else run_to_read)(root, wanted)
    return checkpoints_of(run, read_settings(run))


def candidates_in(directory: Path) -> list[Candidate]:
    from transom_cli.ckpt.inventory import candidates

    return candidates(directory)


def chosen(directory: Path, step: int | None) -> list[Candidate]:
    found = candidates_in(directory)
    wanted = [candidate for candidate in found if step is None or candidate.step == step]
    if not wanted:
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        there = ", ".join(str(candidate.step) for candidate in found)
        raise NoCheckpoint(
            f"There is {which} in {directory}",
            f"steps that are there: {there}" if there else "",
            f"transom ckpt ls {directory}",
        )
    return wanted

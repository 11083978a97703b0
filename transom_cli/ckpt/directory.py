"""Prepare checkpoints directories: fence off older launches, clean up after dead writers, claim directories of copies.

Each directory of copies belongs to one training, that is, to its main directory: retention deletes there, and a restore
looks there. So it names its main directory in `.copies-of`. A directory that has another one's name, or checkpoints and
no name, is refused. A main directory that was lost and is made again under its name finds its copies.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.inventory import candidates
from transom_cli.ckpt.names import COPIES_OF, Here, abandoned, age
from transom_cli.ckpt.ranks import Ranks
from transom_cli.errors import UsageError
from transom_cli.files import make_private, publish_text


def prepare_directory(directory: Path, ranks: Ranks, here: Here, say: Callable[[str], None]) -> str:
    """Take over the main directory, and remove what dead writers left in it. A collective.

    Returns:
        The name of the newest checkpoint in it, or "".

    Raises:
        TakenOver: on all ranks, if a newer launch has the directory.
        UsageError: on all ranks, if the directory cannot be used.
    """

    def take() -> str:
        try:
            make_private(directory)
            _take(directory, here, say)
            return next((found.name for found in candidates(directory)), "")
        except OSError as error:
            where = f"ls -la {directory.parent}"
            raise UsageError(f"Checkpoints cannot be kept in {directory}", describe(error), where) from None

    return ranks.by_first(take)


def prepare_copies(
    directories: Mapping[Path, int], main: Path, ranks: Ranks, here: Here, say: Callable[[str], None]
) -> dict[Path, int]:
    """Take over the directories of copies. A collective.

    Returns:
        The directories that rank 0 can use. Others (on a file system that is not mounted) are reported and left out,
        since training can do without them.

    Raises:
        TakenOver: on all ranks, if a newer launch has a directory.
        UsageError: on all ranks, if a directory belongs to another training.
    """

    def take() -> dict[Path, int]:
        usable: dict[Path, int] = {}
        for directory, every in directories.items():
            try:
                make_private(directory)
                claim(directory, main)
                _take(directory, here, say)
                usable[directory] = every
            except OSError as error:
                say(f"no checkpoints are copied to {directory}, and none is looked for there: {describe(error)}")
        return usable

    return ranks.by_first(take)


def _take(directory: Path, here: Here, say: Callable[[str], None]) -> None:
    _fence(directory, here.attempt, say)
    for child in directory.iterdir():
        if abandoned(child.name, here):
            files.delete_tree(child)


def _fence(directory: Path, attempt: str, say: Callable[[str], None]) -> None:
    """Fence the directory: it need not be the one that the launcher has fenced.

    Training continues if the fence cannot be written. A trainer without a launcher has no launch to name.
    """
    if age(attempt) is None:
        return
    try:
        fence.take(directory, attempt)
    except OSError as error:
        say(f"ranks of older launches are not fenced off from {directory}: {describe(error)}")


def claim(directory: Path, main: Path) -> None:
    """Claim the existing `directory` for copies of `main`. Raises UsageError and OSError."""
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

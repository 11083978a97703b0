"""Whether the command of a run is there, as far as the machine can tell that it is submitted from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_PYTHON = re.compile(r"python[0-9.]*")
_NO_SCRIPT = ("-m", "-c", "-")  # what python runs instead of a file
_WITH_VALUE = ("-X", "-W")


def missing(words: tuple[str, ...], settings: Settings, where: Path) -> str:
    """The program or the script that is not found from `where`, the job's directory; empty: nothing is missed.

    With lines of setup or a container nothing can be told from here.
    """
    if settings.job.setup or settings.launch.container.image:
        return ""
    if settings.launch.kind == "torchrun":
        return "" if words[0].startswith("-") or (where / words[0]).exists() else words[0]
    program = words[0]
    if not ((where / program).exists() if "/" in program else shutil.which(program)):
        return program
    script = _script(words[1:]) if _PYTHON.fullmatch(Path(program).name) else ""
    return script if script and not (where / script).exists() else ""


def _script(words: tuple[str, ...]) -> str:
    """The file that python is to run."""
    left = iter(words)
    for word in left:
        if word in _NO_SCRIPT:
            return ""
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(left, "")
    return ""

"""`transom status` and `transom list` as they are called all the time, without what starts every other command.

Typer, and pydantic by which it reads a command's words, take longer to load than such a look takes. So words that leave
no doubt are read here; all else, help and mistakes too, is left to typer. `SHAPES` says of the two commands what their
annotations in `cli.status` say to typer; a test compares them.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.cli.ending import end, told
from transom_cli.cli.looking import show_list, show_status
from transom_cli.errors import TransomError

INTERRUPTED = 130


@dataclass(frozen=True)
class Shape:
    """A command's words: flags and paths by what is typed, and the parameter that a word beside them is for."""

    does: Callable[..., int]
    flags: dict[str, str]
    paths: dict[str, str]
    bare: str = ""


SHAPES = {
    "status": Shape(
        show_status,
        {"--json": "json_", "--all": "everything", "--phases": "phases", "--exit-code": "exit_code"}
        | {"--no-color": "no_color", "--watch": "watch", "-w": "watch"},
        {"--root": "root"},
        "run",
    ),
    "list": Shape(show_list, {"--json": "json_", "--no-color": "no_color"}, {"--root": "root"}),
}


def quick(words: Sequence[str]) -> int | None:
    """Do what the words ask for; the exit code, or None where nothing was done, since that is typer's to do."""
    shape = SHAPES.get(words[0]) if words else None
    asked = arguments(shape, words[1:]) if shape is not None else None
    if shape is None or asked is None:
        return None
    gc.disable()  # it ends before there is anything to collect
    try:
        code = shape.does(**asked)
        sys.stdout.flush()
    except TransomError as error:
        end(error)
    except BrokenPipeError:  # a reader that has left (`| head -1`) is no error, nor one of the interpreter's at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        end(told(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def arguments(shape: Shape, words: Sequence[str]) -> dict[str, Any] | None:
    """By parameter; None where the words leave a doubt."""
    asked: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, given, value = word.partition("=")
        if word in shape.flags:
            asked[shape.flags[word]] = True
        elif option in shape.paths and (given or rest):
            asked[shape.paths[option]] = Path(value if given else rest.pop(0))
        elif word.startswith("-") or not word or not shape.bare or shape.bare in asked:
            return None
        else:
            asked[shape.bare] = word
    return asked

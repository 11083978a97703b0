"""A fast path for `transom status`, `transom list` and `transom diagnose`, without typer.

Typer and pydantic take longer to import than reading a run. So unambiguous command lines of these commands are parsed
here; everything else, including help and errors, is left to typer. `SHAPES` repeats the annotations in `cli.status` and
`cli.diagnose`; a test compares them.
"""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transom_cli.cli.common import end, os_error, without_colours
from transom_cli.cli.show import show_diagnosis, show_list, show_status
from transom_cli.errors import TransomError

INTERRUPTED = 130


@dataclass(frozen=True)
class Shape:
    """A command's arguments: flags, path and text options by name, and the parameter of a positional argument."""

    does: Callable[..., int]
    flags: dict[str, str]
    paths: dict[str, str]
    bare: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    many: str = ""  # the parameter of any number of paths instead, at least one


SHAPES = {
    "status": Shape(
        show_status,
        {"--json": "json_", "--all": "everything", "--phases": "phases", "--exit-code": "exit_code"}
        | {"--watch": "watch", "--plain": "as_lines"},
        {"--root": "root"},
        "run",
    ),
    "list": Shape(
        show_list,
        {"--json": "json_", "--all": "everything"},
        {"--root": "root"},
        texts={"--state": "state", "--since": "since"},
    ),
    "diagnose": Shape(show_diagnosis, {"--json": "json_", "--exit-code": "exit_code"}, {}, many="paths"),
}


def quick(words: Sequence[str]) -> int | None:
    """Run the command and return its exit code; None if it is left to typer."""
    shape = SHAPES.get(words[0]) if words else None
    given_args = arguments(shape, without_colours(words[1:])) if shape is not None else None
    if shape is None or given_args is None:
        return None
    gc.disable()  # the process ends before anything needs collecting
    try:
        code = shape.does(**given_args)
        sys.stdout.flush()
    except TransomError as error:
        end(error)
    except BrokenPipeError:  # the reader has closed the pipe (`| head -1`): no error, also not at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        end(os_error(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def arguments(shape: Shape, words: Sequence[str]) -> dict[str, Any] | None:
    """Return arguments by parameter; None if the command line is ambiguous."""
    given_args: dict[str, Any] = {}
    rest = list(words)
    if any(not word or word.endswith("=") for word in rest):  # an empty value
        return None
    while rest:
        word = rest.pop(0)
        option, given, value = word.partition("=")
        if word in shape.flags:
            given_args[shape.flags[word]] = True
        elif option in shape.paths and (given or rest):
            given_args[shape.paths[option]] = Path(value if given else rest.pop(0))
        elif option in shape.texts and (given or rest):
            given_args[shape.texts[option]] = value if given else rest.pop(0)
        elif shape.many and not word.startswith("-"):
            given_args.setdefault(shape.many, []).append(Path(word))
        elif word.startswith("-") or not shape.bare or shape.bare in given_args:
            return None
        else:
            given_args[shape.bare] = word
    return None if shape.many and shape.many not in given_args else given_args

"""How an error of a command becomes words and an exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from transom_cli.errors import TransomError, UsageError


def document_asked(words: list[str]) -> bool:
    ours = words[: words.index("--")] if "--" in words else words  # what follows is the training's
    return "--json" in ours


def end(error: TransomError) -> NoReturn:
    if document_asked(sys.argv):
        print(json.dumps(error.as_json()))
    else:
        print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def told(error: OSError) -> TransomError:
    """A path that cannot be used, wherever it was met."""
    from transom_cli.submit.rundir import explain

    if isinstance(error.filename, str):
        return explain(error, Path(error.filename), doing="use", instead="give another path")
    try:
        Path.cwd()
    except OSError as gone:
        return UsageError("The current directory is gone", gone.strerror or "", "cd to a directory that is there")
    return TransomError("The system refused", error.strerror or str(error))

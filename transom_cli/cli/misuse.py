"""Words that no command understands, told as all other errors are."""

from __future__ import annotations

import sys
from typing import Any

import typer

from transom_cli.errors import TransomError, UsageError

ClickException: Any = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")
"""Click's own, or that of the copy which newer releases of typer carry."""


def misused(error: Any) -> TransomError:
    """error: a `ClickException`. A command that needs another word after it prints its help, and ends."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context else "transom --help"
    return UsageError(str(error.format_message()).rstrip("."), hint=hint)

"""Generate docs/commands.md: the `--help` text of every command, as typer prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from transom_cli.cli.app import app

_INTRO = """# Commands

The `--help` of each command. RUN is a run's ID or a unique prefix of it, its name (for the newest run of that name), or
its path. Without RUN, a command uses the newest run. Data goes to stdout, everything else to stderr. `--json` prints
one document, also for errors, with a `schema` number. [Exit codes](troubleshooting.md#exit-codes) are the same for all
commands.

`transom --install-completion` installs completion for your shell (bash, zsh, fish): commands, options, and the IDs of
your runs. `--show-completion` prints the script, so that you can install it elsewhere.
"""


def commands_markdown() -> str:
    parts = [_INTRO]
    command = typer.main.get_command(app)
    for context in _commands(
        command.context_class(command, info_name="transom", terminal_width=80, **command.context_settings)
    ):
        path = context.command_path
        parts.append(f"\n{'#' * (path.count(' ') + 1)} `{path}`\n\n```text\n{_help(context)}\n```\n")
    return "".join(parts)


def _commands(above: Any) -> Iterator[Any]:
    """Yield the context of each visible command; the commands of a group follow it."""
    for name, command in above.command.commands.items():
        if not command.hidden:
            yield (context := command.context_class(command, parent=above, info_name=name))
            if hasattr(command, "commands"):
                yield from _commands(context)


def _help(context: Any) -> str:
    lines = [line.rstrip() for line in context.get_help().strip().splitlines()]
    text = "\n".join(line for line in lines if not line.lstrip().startswith("-h, --help"))
    return re.sub(r"\n\nOptions:(?=\n\n|$)", "", text)  # it has no others

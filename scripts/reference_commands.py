"""Generate docs/commands.md: the `--help` text of every command, as typer prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

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
    for words in _commands(typer.main.get_command(app), ()):
        heading = f"{'#' * (len(words) + 1)} `transom {' '.join(words)}`"
        parts.append(f"\n{heading}\n\n```text\n{_help(words)}\n```\n")
    return "".join(parts)


def _commands(group: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words of each visible command; the commands of a group follow it."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield (*above, name)
            if hasattr(command, "commands"):
                yield from _commands(command, (*above, name))


def _help(words: tuple[str, ...]) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="transom", env={"COLUMNS": "80"})
    lines = [line.rstrip() for line in done.stdout.strip().splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith("-h, --help"))

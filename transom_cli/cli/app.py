"""The `transom` command: its sub-commands, and how an error becomes words and an exit code.

Modules here import only typer and transom's pure parts at the top; whatever is
heavy is imported inside the command that needs it, so that `--help` stays fast.
"""

from __future__ import annotations

import sys

import typer

from transom_cli.errors import TransomError

app = typer.Typer(
    name="transom",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Keep a training run alive on a Slurm cluster.",
)


def run_app() -> None:
    try:
        app()
    except TransomError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

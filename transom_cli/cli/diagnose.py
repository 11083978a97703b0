"""`transom diagnose`: what went wrong in anybody's logs. `transom rules`: by which rules that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.errors import UsageError

rules_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The rules by which logs are understood; a site's own ones."
)
Rules = Annotated[
    list[Path] | None, typer.Option("--rules", metavar="PATH", help="Further rules: a TOML file, or a folder of them.")
]


def diagnose(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Log files, or folders of them, of one job.")],
    rules: Rules = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when there is an incident.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what ended a job, from its logs alone: the line that tells, whose it is, and what to do.

    Neither Slurm nor a run directory is needed; compressed logs (.gz) are read as well. Exit code 0: the logs were
    read, whatever they tell.
    """
    from transom_cli.cli.diagnosing import run_diagnose

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise UsageError(f"There is no {', '.join(missing)}", hint="Name log files, or a folder of them.")
    failed = run_diagnose(tuple(paths), tuple(rules or ()), as_json=json_)
    raise typer.Exit(1 if failed and exit_code else 0)


@rules_app.command(name="list")
def list_(rules: Rules = None, json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Name all rules: what each tells, and what follows."""
    from transom_cli.cli.diagnosing import run_list

    run_list(tuple(rules or ()), as_json=json_)


@rules_app.command()
def check(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="[PATH]...", help="Rule files, or folders.")] = None,
) -> None:
    """Try rules, beside ours, on their own examples: each must be known best by its rule. Exit code 1: one is not."""
    from transom_cli.cli.diagnosing import run_check

    raise typer.Exit(run_check(tuple(paths or ())))

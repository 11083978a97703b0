"""`transom policy`: what is done about which failure, and which file says so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.complete import run_ids
from transom_cli.errors import UsageError


def policy(
    run: Annotated[
        str | None,
        typer.Argument(help="Of this run, as it was started [default: of a run started now].", autocompletion=run_ids),
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Settings of a run to be started (TOML).")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Where run directories live.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """The rules that decide what is done about a failure: the first that fits counts (docs/policy.md)."""
    import json
    import os

    from transom_cli.config.load import load
    from transom_cli.submit.rundir import find_run
    from transom_cli.ui.policy import policy_json, policy_lines
    from transom_cli.wiring.settings import read_settings, rules_of, runs_root

    if run is not None and file is not None:
        raise UsageError("a run has its own settings: name the run, or give a file with -f")
    settings = load(file, {}, os.environ) if run is None else read_settings(find_run(runs_root(root), run))
    rules = rules_of(settings)
    print(json.dumps(policy_json(rules)) if json_ else "\n".join(policy_lines(rules)))

"""`transom policy`: what is done about each kind of failure, and which file says so."""

import json
import os
from typing import Annotated

import typer

from transom_cli.cli.common import run_to_read
from transom_cli.cli.options import Json, Root, SettingsFile, run_ids
from transom_cli.errors import UsageError


def policy(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run, with the policy it was started with [default: the policy of a new run].",
            autocompletion=run_ids,
        ),
    ] = None,
    file: SettingsFile = None,
    root: Root = None,
    json_: Json = False,
) -> None:
    """Print what is done about each kind of failure."""

    from transom_cli.config.load import load
    from transom_cli.config.run_settings import read_settings, rules_of
    from transom_cli.view.tables import policy_json, policy_lines
    from transom_cli.view.terminal import width

    if run is not None and file is not None:
        raise UsageError("a run has its own settings: give either a run or a file (-f)")
    settings = load(file, {}, os.environ) if run is None else read_settings(run_to_read(root, run))
    rules = rules_of(settings)
    print(json.dumps(policy_json(rules)) if json_ else "\n".join(policy_lines(rules, width())))

"""`transom notify`: try out whom a run would tell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transom_cli.errors import UsageError

notify_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Notifications: try out whom a run would tell."
)


@notify_app.callback()
def notify() -> None:
    """What stands before the command."""


@notify_app.command()
def test(
    target: Annotated[str | None, typer.Argument(help="Name of the target [default: all of them].")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Settings of a run to be started (TOML).")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Of this run, as it was started: id, name or path.")] = None,
    event: Annotated[str, typer.Option("--event", help="What the message is about: an invented one.")] = "incident",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the messages, and send nothing.")] = False,
    root: Annotated[Path | None, typer.Option("--root", help="Where run directories live.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Send a test message, once, and say what came of it.

    Exit code 1 when a target could not be told. For example: `transom notify test`,
    `transom notify test team --event held`, `transom notify test -f run.toml --dry-run`.
    """
    import json
    import os

    from transom_cli.config.load import load
    from transom_cli.submit.rundir import find_run
    from transom_cli.telling.trial import chosen, sample, shown, tried
    from transom_cli.wiring.settings import read_settings, runs_root
    from transom_cli.wiring.telling import senders_of

    if run is not None and file is not None:
        raise UsageError("a run has its own settings: name the run, or give a file with -f")
    settings = load(file, {}, os.environ) if run is None else read_settings(find_run(runs_root(root), run))
    targets = chosen([table.target() for table in settings.notify.targets], target)
    messages = [(t, sample(t, settings.name, event)) for t in targets]
    if dry_run:
        texts = [shown(t, m) for t, m in messages]
        print(json.dumps({"schema": 1, "messages": texts}) if json_ else "\n\n".join(str(t["shown"]) for t in texts))
        return
    results = tried(messages, senders_of(settings), settings.notify.timeout)
    if json_:
        print(json.dumps({"schema": 1, "targets": [r.as_json() for r in results]}))
    else:
        print("\n".join(r.line for r in results))
    if not all(r.told for r in results):
        raise typer.Exit(1)

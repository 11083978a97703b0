"""`transom notify`: test notification targets."""

import json
import os
from typing import Annotated

import typer

from transom_cli.cli.common import run_to_act_on
from transom_cli.cli.options import Json, Root, SettingsFile
from transom_cli.errors import UsageError

notify_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Test notifications.")


@notify_app.callback()
def notify() -> None:
    """Handle options that come before the command."""


@notify_app.command()
def test(
    target: Annotated[str | None, typer.Argument(help="Name of the target [default: all targets].")] = None,
    file: SettingsFile = None,
    run: Annotated[str | None, typer.Option("--run", help="Use the targets of this run (ID, name or path).")] = None,
    event: Annotated[str, typer.Option("--event", help="Event that the test message is about.")] = "incident",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the messages and send nothing.")] = False,
    root: Root = None,
    json_: Json = False,
) -> None:
    """Send a test message to each target.

    Exit code 1: a target could not be reached. Examples: `transom notify test`,
    `transom notify test team --event held`, `transom notify test -f run.toml --dry-run`.
    """

    from transom_cli.bootstrap.notifications import senders_of
    from transom_cli.config.load import load
    from transom_cli.config.run_settings import read_settings
    from transom_cli.notify.checks import preview, sample_message, select_targets, send_all

    if run is not None and file is not None:
        raise UsageError("`--run` and `-f` cannot be combined: a run has its own settings")
    settings = load(file, {}, os.environ) if run is None else read_settings(run_to_act_on(root, run))
    targets = select_targets([table.target() for table in settings.notify.targets], target)
    messages = [(t, sample_message(t, settings.name, event)) for t in targets]
    if dry_run:
        texts = [preview(t, m) for t, m in messages]
        print(json.dumps({"schema": 1, "messages": texts}) if json_ else "\n\n".join(str(t["shown"]) for t in texts))
        return
    results = send_all(messages, senders_of(settings), settings.notify.timeout)
    if json_:
        print(json.dumps({"schema": 1, "targets": [r.as_json() for r in results]}))
    else:
        print("\n".join(r.line for r in results))
    if not all(r.delivered for r in results):
        raise typer.Exit(1)

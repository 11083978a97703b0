"""The `transom` command: its sub-commands, and how an error becomes words and an exit code.

Modules here import only typer and transom's pure parts at the top; whatever is heavy is imported inside the command
that needs it, so that `--help` stays fast.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from transom_cli import __version__
from transom_cli.cli.check import check
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.cli.diagnose import diagnose, rules_app
from transom_cli.cli.doctor import doctor
from transom_cli.cli.examples import examples
from transom_cli.cli.launch import agent, launch, operate
from transom_cli.cli.nodes import nodes
from transom_cli.cli.policy import policy
from transom_cli.cli.run import attach, run
from transom_cli.cli.sandbox import sandbox_app
from transom_cli.cli.status import explain, list_, status, stop
from transom_cli.errors import EXIT_CODES, TransomError, UsageError

_BEHIND_A_RUN = ("launch", "agent", "operate")
_CODES = "Exit codes: " + " · ".join(f"{code} {words}" for code, words in EXIT_CODES.items())


app = typer.Typer(
    name="transom",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Keep a training run alive on a Slurm cluster.",
    epilog=_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"transom {__version__}")
        raise typer.Exit


@app.callback()
def transom(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What stands before the command."""


app.command(epilog=examples("run"))(run)
app.command(epilog=examples("attach"))(attach)
app.command()(status)
app.command()(explain)
app.command(name="list")(list_)
app.command(epilog=examples("stop"))(stop)
app.command(epilog=examples("nodes"))(nodes)
app.command(epilog=examples("check"))(check)
app.command(epilog=examples("doctor"))(doctor)
app.command(epilog=examples("diagnose"))(diagnose)
app.add_typer(rules_app, name="rules")
app.command(epilog=examples("policy"))(policy)
app.add_typer(ckpt_app, name="ckpt")
app.add_typer(sandbox_app, name="sandbox")
app.command(hidden=True)(launch)
app.command(hidden=True)(agent)
app.command(hidden=True)(operate)


def run_app() -> None:
    try:
        app(prog_name="transom")  # also as `python -m transom_cli`
    except TransomError as error:
        _end(error)
    except OSError as error:
        if sys.argv[1:2] and sys.argv[1] in _BEHIND_A_RUN:
            raise  # into its log, with all that is known of it
        _end(_told(error))


def _end(error: TransomError) -> NoReturn:
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv  # what follows is the training's
    if "--json" in ours:
        print(json.dumps(error.as_json()))
    else:
        print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def _told(error: OSError) -> TransomError:
    """A path that cannot be used, wherever it was met."""
    from transom_cli.submit.rundir import explain

    if isinstance(error.filename, str):
        return explain(error, Path(error.filename), doing="use", instead="give another path")
    try:
        Path.cwd()
    except OSError as gone:
        return UsageError("The current directory is gone", gone.strerror or "", "cd to a directory that is there")
    return TransomError("The system refused", error.strerror or str(error))

"""The `transom` command: its sub-commands.

Modules here import only typer and transom's pure parts at the top; whatever is heavy is imported inside the command
that needs it, so that `--help` stays fast.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from transom_cli import __version__
from transom_cli.cli.attempts import attempts
from transom_cli.cli.check import check
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.cli.diagnose import diagnose, rules_app
from transom_cli.cli.doctor import doctor
from transom_cli.cli.ending import end, told
from transom_cli.cli.examples import examples
from transom_cli.cli.explain import explain
from transom_cli.cli.goodput import goodput
from transom_cli.cli.launch import agent, launch, operate
from transom_cli.cli.misuse import ClickException, misused
from transom_cli.cli.nodes import nodes
from transom_cli.cli.notify import notify_app
from transom_cli.cli.policy import policy
from transom_cli.cli.report import report
from transom_cli.cli.run import attach, run
from transom_cli.cli.sandbox import sandbox_app
from transom_cli.cli.status import list_, status, stop
from transom_cli.errors import EXIT_CODES, TransomError

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
app.command()(goodput)
app.command()(attempts)
app.command(epilog=examples("report"))(report)
app.command(name="list")(list_)
app.command(epilog=examples("stop"))(stop)
app.command(epilog=examples("nodes"))(nodes)
app.command(epilog=examples("check"))(check)
app.command(epilog=examples("doctor"))(doctor)
app.command(epilog=examples("diagnose"))(diagnose)
app.add_typer(rules_app, name="rules")
app.command(epilog=examples("policy"))(policy)
app.add_typer(notify_app, name="notify")
app.add_typer(ckpt_app, name="ckpt")
app.add_typer(sandbox_app, name="sandbox")
app.command(hidden=True)(launch)
app.command(hidden=True)(agent)
app.command(hidden=True)(operate)


def run_app() -> None:
    try:
        code = app(prog_name="transom", standalone_mode=False)  # also as `python -m transom_cli`
    except TransomError as error:
        end(error)
    except typer.Abort:
        sys.exit("error: left without an answer")
    except ClickException as error:
        end(misused(error))
    except OSError as error:
        if sys.argv[1:2] and sys.argv[1] in _BEHIND_A_RUN:
            raise  # into its log, with all that is known of it
        end(told(error))
    sys.exit(code)

"""The `transom` command and its sub-commands.

Modules of this package import only typer and transom's pure modules at the top. Everything heavy is imported inside
the command that needs it, so that `--help` stays fast.
"""

import re
import sys
from typing import Annotated, Any

import typer
import typer.core

from transom_cli import __version__
from transom_cli.cli.advise import advise
from transom_cli.cli.attempts import attempts
from transom_cli.cli.bundle import bundle
from transom_cli.cli.check import check
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.cli.common import end, os_error, without_colours
from transom_cli.cli.diagnose import diagnose, rules_app
from transom_cli.cli.doctor import doctor
from transom_cli.cli.explain import explain
from transom_cli.cli.goodput import goodput
from transom_cli.cli.init import init
from transom_cli.cli.launch import SrunLike, adopt, launch
from transom_cli.cli.logs import logs
from transom_cli.cli.nodes import nodes
from transom_cli.cli.notify import notify_app
from transom_cli.cli.observe import observe
from transom_cli.cli.options import EXAMPLES, examples
from transom_cli.cli.policy import policy
from transom_cli.cli.processes import attempt_launcher, operate
from transom_cli.cli.prune import prune
from transom_cli.cli.report import report
from transom_cli.cli.requests import requeue, stop
from transom_cli.cli.resume import resume
from transom_cli.cli.run import attach, run
from transom_cli.cli.sandbox import sandbox_app
from transom_cli.cli.sandbox_fault import fault_app
from transom_cli.cli.service import service_app
from transom_cli.cli.simulate import simulate
from transom_cli.cli.status import list_, status, top
from transom_cli.errors import EXIT_CODES, TransomError, UsageError

_INTERNAL_COMMANDS = ("attempt-launcher", "operate")
_PARTS = {
    "Start": ("run", "init", "launch", "adopt", "observe"),
    "Look": ("status", "top", "attach", "logs", "list", "attempts"),
    "Understand": ("explain", "goodput", "report", "diagnose", "rules", "bundle"),
    "Act": ("stop", "cancel", "requeue", "resume", "prune"),
    "Nodes and cluster": ("nodes", "check", "doctor", "policy", "simulate", "advise"),
    "Checkpoints": ("ckpt",),
    "Set up": ("operate", "service", "notify", "sandbox", "help"),
}
_OTHER_NAMES = {
    "version": "transom --version", "ps": "transom list", "ls": "transom list", "kill": "transom stop",
    "watch": "transom top", "submit": "transom run", "start": "transom run", "restart": "transom requeue",
}  # fmt: skip
_OTHER_OPTIONS = {
    "--gres": "--gpus-per-node", "-G": "--gpus-per-node", "--gpus": "--gpus-per-node",
    "-n": "--tasks-per-node", "--ntasks": "--tasks-per-node",
    "--ntasks-per-node": "--tasks-per-node", "-J": "--name", "--job-name": "--name",
}  # fmt: skip
_DESTRUCTIVE = ("stop", "cancel", "requeue", "prune")  # never suggested for a mistyped command
_CODES = "Exit codes: " + " · ".join(f"{code} {words}" for code, words in EXIT_CODES.items())


_OWN_WORDS = ("launch", "attempt-launcher")  # words of the training may follow without `--`
_VALUES = {
    "int": "N", "float": "N", "Path": "PATH", "exclude": "NODES", "nodelist": "NODES", "since": "TIME",
    "older_than": "TIME", "max_size": "SIZE", "mem": "SIZE", "clusters": "CLUSTER", "spares": "N,...",
    "min_nodes": "N,...", "save_every": "N,...", "persist": "N,...", "in_process": "N,...",
}  # fmt: skip


def _shown(param: Any) -> None:
    """Show in the help what one types for a value, such as PATH or N, in place of Python's type."""
    if not hasattr(param, "bare_type"):  # older releases of typer do that
        return
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: ""
    elif not (param.metavar or param.is_flag or param.type_descriptor.is_choice):
        kind, name = re.findall(r"\w+", param.bare_type())[-1], max(param.opts, key=len).strip("-").replace("-", "_")
        param.metavar = _VALUES.get(kind if kind != "str" else name) or name.rpartition("_")[2].upper()


def _refuse_empty(param: Any) -> None:
    """Refuse an argument or an option with an empty value, such as `--root "$UNSET"`, in place of taking a default."""
    parse, option = param.handle_parse_result, param.param_type_name == "option"

    def parsed(ctx: Any, opts: Any, args: list[str]) -> Any:
        value, name = opts.get(param.name), max(param.opts, key=len) if option else param.name.upper()
        several = option and isinstance(value, list)  # among the words of a training, one may be empty
        if not ctx.resilient_parsing and "" in (value if several else [value]):
            raise UsageError(f"`{name}` is empty", "a variable may be unset", f"give a value, or omit `{name}`")
        return parse(ctx, opts, args)

    param.handle_parse_result = parsed


class Grouped(typer.core.TyperGroup):
    """Lists the commands by what they are for, and takes `--no-color` anywhere."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        groups: list[Any] = [self]
        for group in groups:
            for one in group.commands.values():
                groups += [one] if hasattr(one, "commands") else []
                for param in one.params:
                    _shown(param)
                    _refuse_empty(param)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        start = next((n for n, word in enumerate(args) if not word.startswith("-")), len(args))
        ours, rest = args[:start], args[start:]
        own = (rest[:1] and rest[0] in _OWN_WORDS) or rest[:2] == ["sandbox", "exec"]
        return super().parse_args(ctx, [*without_colours(ours), *rest] if own else without_colours(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rest = set(self.commands)
        for title, names in (*_PARTS.items(), ("Other", tuple(self.commands))):
            shown = [name for name in names if name in rest and not self.commands[name].hidden]
            rest -= set(names)
            if shown:
                with formatter.section(title):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(50)) for name in shown])


app = typer.Typer(
    name="transom",
    cls=Grouped,
    invoke_without_command=True,
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
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Do not use colours, in any command; NO_COLOR=1 does the same.")
    ] = False,
) -> None:
    """Handle options that come before the command; without a command, show what runs and what to do next."""
    if ctx.invoked_subcommand is None:
        from transom_cli.cli.show import show_overview

        raise typer.Exit(show_overview())


def help_(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="A command, such as `run` or `ckpt ls`.")] = None,
) -> None:
    """Show the help of transom or of a command."""
    app(args=[*(command or ()), "--help"], prog_name=ctx.find_root().info_name, standalone_mode=False)


def _add(*commands: Any, **how: Any) -> None:
    for one in commands:
        name = how.get("name", one.__name__)
        app.command(epilog=examples(name) if name in EXAMPLES else None, **how)(one)


_add(run, init)
_add(launch, cls=SrunLike)
_add(adopt, attach, observe, status, top, logs, explain, goodput, attempts, report)
_add(list_, name="list")
_add(bundle, stop)
app.command(name="cancel", help="Same as `transom stop`.")(stop)
_add(requeue, resume, operate, prune, nodes, check, doctor, diagnose)
app.add_typer(rules_app, name="rules")
_add(policy, simulate, advise)
app.add_typer(service_app, name="service")
app.add_typer(notify_app, name="notify")
app.add_typer(ckpt_app, name="ckpt")
app.add_typer(sandbox_app, name="sandbox")
sandbox_app.add_typer(fault_app, name="fault")
app.command(name="help")(help_)
app.command(hidden=True)(attempt_launcher)


ClickException: Any = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")
"""Click's own class, or that of the copy in newer releases of typer."""

_GROUPS = ("ckpt", "fault", "notify", "rules", "sandbox", "service")


def usage_error(error: Any) -> TransomError:
    """Return the UsageError for a ClickException. A group that lacks its sub-command prints its help and exits."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path if context else _command(sys.argv[1:])} --help"
    if number := _needs_number(error):
        return UsageError(number, hint=hint)
    message = str(error.format_message()).rstrip(".")
    if "COMMAND..." in message:
        return UsageError(
            "`run` needs a command, or an sbatch script", hint="transom run -N 2 -- python train.py\n" + hint
        )
    if missing := re.search(r"Invalid value for .*: \w+ '(.+)' does not exist", message):
        return UsageError(f"No such file or directory: {missing[1]}", hint=hint)
    what, _, suggestion = message.partition(". Did you mean ")
    wanted = getattr(error, "option_name", "")
    if wanted and context is not None and context.command.name == "run" and (instead := _of_sbatch(wanted)):
        return UsageError(f"No such option: {wanted}", instead, hint)
    if wanted and context is not None and not suggestion:
        options = [name for one in context.command.params for name in one.opts if name.startswith(f"{wanted}-")]
        return UsageError(message, f"did you mean `{options[0]}`?" if options else "", hint)
    extra = re.fullmatch(r"Got unexpected extra argument\(?s?\)? \((.+)\)", message)
    if extra and context is not None and context.command.name == "check":
        nodes = ",".join(extra[1].split())
        return UsageError(message, f"nodes are named with `--nodelist {nodes}`", hint)
    nearest = next(iter(re.findall("'([^']+)'", suggestion)), "")
    if what.startswith("No such command '") and (other := _OTHER_NAMES.get(what.split("'")[1])):
        return UsageError(what, f"that is `{other}`", hint)
    return UsageError(what, f"did you mean `{nearest}`?" if nearest and nearest not in _DESTRUCTIVE else "", hint)


def _of_sbatch(option: str) -> str:
    """Return how `transom run` takes this option of sbatch; "" if sbatch has no such option."""
    value = _value([option])
    if option == "--gres" and not re.fullmatch(r"gpu(:\d+)?", value):
        return f"use `--set job.sbatch=--gres={value}`; `--gpus-per-node` is for GPUs of any type"
    if other := _OTHER_OPTIONS.get(option):
        return f"did you mean `{other}`?"
    from transom_cli.submit.render import instead_of

    return instead_of(option, value)


def _value(names: list[str]) -> str:
    """Return the value that the command line has for an option."""
    words = sys.argv[1:]
    pairs = [(*word.partition("=")[::2], after) for word, after in zip(words, [*words[1:], ""], strict=True)]
    return next((value or after for name, value, after in pairs if name in names), "")


def _needs_number(error: Any) -> str:
    """Return a plain sentence for a value that is no number; "" for any other error."""
    param, message = getattr(error, "param", None), error.format_message()
    kind = next((one for one in ("integer", "float", "number") if f"valid {one}" in message), "")
    if param is None or not kind:
        return ""
    value = _value(param.opts)
    return f"`{param.opts[0]}` needs a {'whole ' * (kind == 'integer')}number" + (f", not `{value}`" if value else "")


def _command(words: list[str]) -> str:
    """Return the command that was meant, if the error does not name it."""
    found = ["transom"]
    for word in words:
        if word.startswith("-"):
            break
        found.append(word)
        if word not in _GROUPS:
            break
    return " ".join(found)


def run_app() -> None:
    try:
        code = app(prog_name="transom", standalone_mode=False)  # also as `python -m transom_cli`
    except TransomError as error:
        if isinstance(error, UsageError):
            error.hint = error.hint or f"{_command(sys.argv[1:])} --help"
        end(error)
    except typer.Abort as error:  # a question; after Ctrl-C or Ctrl-D the cursor is still in its line
        unanswered = isinstance(error.__context__, (KeyboardInterrupt, EOFError))
        print("\n" * unanswered + "nothing was changed", file=sys.stderr)
        sys.exit(130 if unanswered else 1)
    except ClickException as error:
        end(usage_error(error))
    except OSError as error:
        if sys.argv[1:2] and sys.argv[1] in _INTERNAL_COMMANDS:
            raise  # the traceback goes into its log
        end(os_error(error))
    sys.exit(code)

"""`transom diagnose`: find what ended any job from its logs. `transom rules`: the rules that it uses."""

import json
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.cli.options import Json
from transom_cli.cli.show import known_lines, require_files, show_diagnosis
from transom_cli.errors import UsageError, printable
from transom_cli.plural import several

rules_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List and test the rules of `transom diagnose`."
)
Rules = Annotated[
    list[Path] | None,
    typer.Option("--rules", metavar="PATH", help="Additional rules: a TOML file, or a folder of them."),
]


def diagnose(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Log files of one job, or folders; - for a pipe.")
    ],
    rules: Rules = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Only print draft rules for new lines near the ends of the logs.")
    ] = False,
    healthy: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Logs of a healthy run: lines that occur there are not new."),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if there is an incident.")] = False,
    json_: Json = False,
) -> None:
    """Find the cause of a failure in a job's logs.

    Prints the line with the root cause, the rank or node to blame, and what to do. Needs neither Slurm nor a run
    directory. Also reads compressed logs (.gz) and dumps of a hang: stacks of py-spy and faulthandler, PyTorch's flight
    recorder. If no rule knows the cause, it shows the lines that are new near the end. Exit code 0: the logs were read,
    whatever they contain.
    """

    if learn and json_:
        raise UsageError("`--learn` prints TOML", hint="omit `--json`")
    if learn:
        run_learn(tuple(paths), tuple(healthy or ()))
        return
    raise typer.Exit(show_diagnosis(paths, rules, healthy, exit_code, json_))


@rules_app.command(name="list")
def list_(rules: Rules = None, json_: Json = False) -> None:
    """List all rules, what they recognise and do."""
    from transom_cli.core.codec import plain
    from transom_cli.diagnose.logs import rule_files

    found = rule_files.load(rules or ())
    if json_:
        print(json.dumps({"schema": 1, "rules": [plain(rule) for rule in found]}, indent=1))
        return
    for rule in found:
        category = rule.category.value if rule.category else "benign"
        print(f"{rule.name:24} {category:20} {rule.level.name.lower():10} {rule.action.value:26} {rule.source}")


@rules_app.command()
def check(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Rule files, or folders of them.")] = None,
) -> None:
    """Test rule files on their own examples.

    Tests them together with the built-in rules. Exit code 1: an example fails.
    """
    from transom_cli.diagnose.logs import rule_files

    rules = rule_files.load(paths or ())
    wrong = rule_files.check(rules)  # neither ours nor theirs may match the other's examples
    for line in wrong:
        print(printable(line))
    lines_tried = sum(len(rule.examples) + len(rule.look_alikes) for rule in rules)
    print(f"{several(len(rules), 'rule')}, {several(lines_tried, 'line')} tried: {len(wrong) or 'none'} wrong")
    raise typer.Exit(1 if wrong else 0)


MAX_DRAFTS = 10


def run_learn(paths: tuple[Path, ...], healthy: tuple[Path, ...]) -> None:
    """Print draft rules, for the site's own rule file."""
    require_files((*paths, *healthy))
    from transom_cli.diagnose.logs.diagnosis import logs_in
    from transom_cli.diagnose.unknown.draft import draft
    from transom_cli.diagnose.unknown.store import new_lines

    found = [new for new in new_lines(logs_in(paths), known_lines(paths, healthy)) if not new.frame]
    if not found:
        raise UsageError(
            "No line near the end of these logs is new", hint="a rule needs a line that healthy logs do not contain"
        )
    print("\n".join(draft(new) for new in found[:MAX_DRAFTS]))

"""The examples below a command's help: whole lines, and each in its own help."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from cli_support import transom

from transom_cli.cli.app import app
from transom_cli.cli.options import EXAMPLES


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_help_of_a_command_ends_with_its_examples(command: str) -> None:
    lines = transom(command, "--help", COLUMNS="60").stdout.splitlines()
    shown = [line.strip() for line in lines[lines.index("  Examples:") + 1 :]]
    assert tuple(shown) == EXAMPLES[command], "each on a line of its own, wide as it may be"
    assert all(len(line) < 100 for line in shown)


def test_help_of_every_level_has_one_voice() -> None:
    for words in (("--help",), ("ckpt", "--help"), ("ckpt", "ls", "--help"), ("sandbox", "fault", "--help")):
        found = transom(*words).stdout
        assert found.startswith("Usage: transom") and "╭" not in found


def test_short_option_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}

    def collect(command: Any) -> None:
        for one in getattr(command, "commands", {}).values():
            collect(one)
        for param in command.params:
            for short in (name for name in param.opts if re.fullmatch("-[A-Za-z]", name)):
                meanings.setdefault(short, set()).add(next(name for name in param.opts if name.startswith("--")))

    collect(typer.main.get_command(app))
    assert meanings.pop("-f") == {"--file", "--follow"}  # as in sbatch's world and in tail
    assert len(meanings) > 8 and [short for short, names in meanings.items() if len(names) > 1] == []


def test_commands_are_listed_by_what_they_are_for() -> None:
    listed = transom("--help").stdout
    assert "Start:\n  run " in listed and "Other:" not in listed
    visible = {name for name, one in typer.main.get_command(app).commands.items() if not one.hidden}  # type: ignore[attr-defined]
    assert visible == set(re.findall(r"^  ([a-z]+)  +[A-Z]", listed, re.MULTILINE))

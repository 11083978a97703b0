"""The examples below a command's help: whole lines, and each in its own help."""

from __future__ import annotations

import pytest
from cli_support import transom

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

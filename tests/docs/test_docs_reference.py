"""Pages that are made from the code say what the code says; words that the pages use are known to the code."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from transom_cli.cli.app import app
from transom_cli.cli.options import EXAMPLES
from transom_cli.config.model import Settings
from transom_cli.errors import EXIT_CODES
from transom_cli.submit.srun_options import SRUN

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reference import PAGES  # noqa: E402

DOCS = sorted((ROOT / "docs").glob("*.md"))
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text()


@functools.cache
def made(name: str) -> str:
    return PAGES[name]()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_made_from_the_code_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == made(name), "rewrite it: make docs-reference"


def test_every_command_has_its_section() -> None:
    headings = re.findall(r"^##+ `transom (.*)`$", made("commands.md"), re.MULTILINE)
    assert {"run", "status", "operate", "ckpt verify", "sandbox fault kill-node"} <= set(headings)
    assert "attempt-launcher" not in headings, "it is for the templates"
    assert not re.search(r"<(?:int|str|list|path)", made("commands.md")), "Python's types are not what one types"


def test_every_exit_code_has_a_section_with_its_meaning() -> None:
    sections = dict(re.findall(r"^### Exit (\S+)\n\n\*([^*]+)\*", TROUBLE, re.MULTILINE))
    assert sections == {str(code): words for code, words in EXIT_CODES.items()}


def test_messages_are_found_with_the_exit_code_of_their_class() -> None:
    page = made("messages.md")
    rows = re.findall(r"^\| (.+?) \| \[(\d+)\]", page, re.MULTILINE)
    assert ("no run `WANTED` in ROOT", "10") in rows
    assert ("cannot create the run directory PATH", "13") in rows, "what its callers say"
    assert ("Run `RUN_ID` has a live operator", "11") in rows
    assert ("Slurm did not answer `COMMAND`", "12") in rows, "a class that comes from another module"
    assert ("The run's secret in PATH cannot be used", "13") in rows, "a text that stands in a variable"
    assert ("No checkpoint verifies in DIRECTORY", "15") in rows
    assert {int(code) for _, code in rows} <= {code for code in EXIT_CODES if isinstance(code, int)}


def commands_in(text: str) -> Iterator[str]:
    """What a reader would type: the lines of a block that begin with `$ transom`, without comments."""
    for line in re.findall(r"^ *\$ (?:\S*/bin/)?(transom .*)$", text, re.MULTILINE):
        yield re.sub(r"\s+# .*", "", line)


@functools.cache
def all_commands() -> Any:
    return typer.main.get_command(app)


SHOWN = [(path.name, line) for path in (ROOT / "README.md", *DOCS) for line in commands_in(path.read_text())]
SHOWN += [(name, line) for name, lines in EXAMPLES.items() for line in lines if line.startswith("transom")]


@pytest.mark.parametrize(("where", "line"), SHOWN)
def test_shown_command_exists_with_its_options(where: str, line: str) -> None:
    words = [word for word in shlex.split(line.split(";")[0])[1:] if word not in ("|", "&&")]
    command = all_commands()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    known |= {"--install-completion", "--show-completion"}
    known |= {f"--{name}" for name in SRUN.takes} if command.name == "launch" else set()  # it takes srun's options too
    ours = words[: words.index("--")] if "--" in words else words
    requested = {word.partition("=")[0] for word in ours if re.match(r"--?[a-z]", word, re.IGNORECASE)}
    assert requested <= known, f"{where}: {line}"
    assert hasattr(command, "commands") is False or not words or words[0].startswith("-"), f"{where}: {line}"


def test_lines_are_shown() -> None:
    assert len(SHOWN) > 60


ELSEWHERE = {"rule", "team", "pager"}  # a file of rules, and one of secrets
SNIPPETS = [
    pytest.param(kind, textwrap.dedent(text), id=f"{path.name}-{n}")
    for path in (ROOT / "README.md", *DOCS)
    for n, (kind, text) in enumerate(
        re.findall(r"^ *```(python|toml|json)\n(.*?)^ *```", path.read_text(), re.M | re.S)
    )
]


@pytest.mark.parametrize(("kind", "text"), SNIPPETS)
def test_snippet_is_valid(kind: str, text: str) -> None:
    if kind == "python":
        compile(text, "snippet", "exec")
    elif kind == "toml":
        assert set(tomllib.loads(text)) <= {*Settings.model_fields, *ELSEWHERE}
    else:
        for one in re.split(r"\n(?=\{)", text.strip()):
            json.loads(one.replace("...", ""))


def test_make_targets_that_the_docs_name_exist() -> None:
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS))
    named = set(re.findall(r"^ *\$ make ([a-z-]+)|`make ([a-z-]+)[` ]", text, re.MULTILINE))
    assert len(named) > 8 and {a or b for a, b in named} <= targets

"""`transom status`, `list` and `diagnose` without typer do what they do with it."""

from __future__ import annotations

import inspect
import os
import typing
from pathlib import Path

import pytest
import typer
from cli_support import transom

from transom_cli.cli import diagnose, show, status
from transom_cli.cli.app import app
from transom_cli.cli.common import without_colours
from transom_cli.cli.quick import SHAPES, arguments
from transom_cli.layout import RunDir
from transom_cli.view import terminal

BY_TYPER = {"status": status.status, "list": status.list_}
BODIES = {"status": show.show_status, "list": show.show_list}


@pytest.mark.parametrize("name", BY_TYPER)
def test_the_words_are_those_that_typer_knows(name: str) -> None:
    flags, paths, texts, bare = {}, {}, {}, ""
    for parameter, hint in typing.get_type_hints(BY_TYPER[name], include_extras=True).items():
        if parameter == "return":
            continue
        annotated = next(one for one in (hint, *typing.get_args(hint)) if typing.get_origin(one) is typing.Annotated)
        kind, about = typing.get_args(annotated)[:2]
        if isinstance(about, typer.models.ArgumentInfo):
            bare = parameter
            continue
        words = (about.default, *(about.param_decls or ()))
        group = flags if kind is bool else texts if str in typing.get_args(kind) else paths
        group.update(dict.fromkeys(words, parameter))
        assert group is not paths or Path in typing.get_args(kind)
    shape = SHAPES[name]
    assert (shape.flags, shape.paths, shape.texts) == (flags, paths, texts)
    assert (shape.bare, shape.does) == (bare, BODIES[name])
    assert list(inspect.signature(shape.does).parameters) == list(inspect.signature(BY_TYPER[name]).parameters)


def test_diagnose_takes_logs_and_leaves_rules_and_drafts_to_typer() -> None:
    shape, by_typer = SHAPES["diagnose"], inspect.signature(diagnose.diagnose).parameters
    assert {*shape.flags.values(), shape.many} <= by_typer.keys() & inspect.signature(shape.does).parameters.keys()
    assert arguments(shape, ["a.log", "--json", "b"]) == {"paths": [Path("a.log"), Path("b")], "json_": True}
    for words in ("", "--json", "--learn a", "--rules x a", "-- a", "--help"):
        assert arguments(shape, words.split()) is None


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", {}),
        ("r --json", {"run": "r", "json_": True}),
        ("--root /r --all r", {"root": Path("/r"), "everything": True, "run": "r"}),
        ("--root=/r=s --exit-code", {"root": Path("/r=s"), "exit_code": True}),
        ("--root", None),
        ("--help", None),
        ("-h", None),
        ("a b", None),
        ("--jsn", None),
        ("--json=yes", None),
        ("-- r", None),
    ],
)
def test_what_leaves_a_doubt_is_left_to_typer(words: str, asked: dict[str, object] | None) -> None:
    assert arguments(SHAPES["status"], words.split()) == asked


def test_no_color_is_not_in_the_environment_of_the_job_and_words_of_the_training_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "no_colours", False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert without_colours(["run", "--", "a", "--no-color"])[-1] == "--no-color" and not terminal.no_colours
    assert without_colours(["top", "--no-color", "r"]) == ["top", "r"] and terminal.no_colours
    assert "NO_COLOR" not in os.environ and terminal.error_console().no_color


def test_no_color_of_a_program_in_the_sandbox_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    command = typer.main.get_command(app)
    for words, ours in (
        (["sandbox", "exec", "prog", "--no-color"], False),
        (["sandbox", "status", "--no-color"], True),
    ):
        monkeypatch.setattr(terminal, "no_colours", False)
        context = command.make_context("transom", list(words), resilient_parsing=True)
        left = [*context._protected_args, *context.args]
        assert ("--no-color" in left) is not ours and terminal.no_colours is ours


def test_mistakes_and_help_are_typers(run: RunDir) -> None:
    assert "Show the state of a run" in transom("status", "--help").stdout
    wrong = transom("status", "--jsn")
    assert wrong.returncode == 2 and "--jsn" in wrong.stderr
    assert transom("status", "--json", "none", "--root", run.path.parent).returncode == 10


def test_an_error_is_told_the_same_way(tmp_path: Path) -> None:
    asked = transom("status", "nobody", "--root", tmp_path)
    assert asked.returncode == 10 and asked.stderr.startswith("error: no run `nobody`: there are no runs in ")
    assert '"kind": "no_such_run"' in transom("status", "nobody", "--root", tmp_path, "--json").stdout

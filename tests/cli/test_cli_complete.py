"""Completion: which run ids a shell offers, from where, and with how little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import transom

from transom_cli.cli.options import MAX_COMPLETIONS, newest
from transom_cli.submit.rundir import list_runs

OLD, NEW = "llama-20260101-000000-0a0b", "gpt-2-20260102-000000-0a0c"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs, and what else may lie there."""
    for name in (OLD, NEW, ".x-20260103-000000-0a0d.new", "notes", "y-20260103-000000"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.toml").touch()
    return tmp_path / "runs"


def asked_by_bash(*words: str, **env: str) -> list[str]:
    given = {"COMP_WORDS": " ".join(("transom", *words)), "COMP_CWORD": str(len(words))}
    done = transom(**given, _TRANSOM_COMPLETE="complete_bash", **env)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_newest_run_comes_first_and_they_are_those_of_list(root: Path) -> None:
    assert newest(root) == [NEW, OLD] == [run.run_id for run in list_runs(root)]
    assert newest(root, "ll") == [OLD] and newest(root, "z") == []


def test_no_more_are_offered_than_a_screen_holds(tmp_path: Path) -> None:
    for n in range(MAX_COMPLETIONS + 5):
        (tmp_path / f"r-20260101-{n:06}-0000").mkdir()
    assert len(newest(tmp_path)) == MAX_COMPLETIONS
    assert newest(tmp_path)[0] == f"r-20260101-{MAX_COMPLETIONS + 4:06}-0000"


@pytest.mark.parametrize(
    "words", [("attach",), ("stop",), ("nodes", "--run"), ("ckpt", "ls"), ("ckpt", "verify"), ("policy",)], ids=" ".join
)
def test_commands_offer_run_ids(root: Path, words: tuple[str, ...]) -> None:
    assert asked_by_bash(*words, "g", TRANSOM_ROOT=str(root)) == [NEW]


def test_the_root_that_is_typed_counts(root: Path) -> None:
    assert asked_by_bash("attach", "--root", str(root), "l", TRANSOM_ROOT="/nonexistent") == [OLD]


def test_a_path_and_an_unreadable_root_offer_nothing_and_say_nothing(root: Path) -> None:
    assert asked_by_bash("attach", "./l", TRANSOM_ROOT=str(root)) == []
    assert asked_by_bash("attach", "l", TRANSOM_ROOT="/nonexistent") == []


def test_runs_are_looked_for_where_the_settings_say(root: Path, tmp_path: Path) -> None:
    (tmp_path / "transom").mkdir()
    (tmp_path / "transom" / "config.toml").write_text('root = "../runs"\n')
    assert asked_by_bash("attach", "l", XDG_CONFIG_HOME=str(tmp_path)) == [OLD]
    (tmp_path / "transom" / "config.toml").write_text("root = \n")
    assert asked_by_bash("attach", "l", XDG_CONFIG_HOME=str(tmp_path)) == [], "and nothing is said of the mistake"


def test_completion_loads_nothing_heavy(root: Path) -> None:
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "sys.argv = ['transom']\n"
        "from transom_cli.__main__ import main\n"
        "main()\n"
    )
    env = {**os.environ, "_TRANSOM_COMPLETE": "complete_bash", "COMP_WORDS": "transom attach l", "COMP_CWORD": "2"}
    env |= {"TRANSOM_ROOT": str(root)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [OLD]
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    assert {"torch", "rich", "jinja2", "numpy", "psutil", "ClusterShell", "tomli_w"} & loaded == set()
    assert "transom_cli" in loaded


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o default"), ("zsh", "#compdef"), ("fish", "complete")]
)
def test_each_shell_gets_its_script(shell: str, word: str) -> None:
    done = transom("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0 and word in done.stdout and "_TRANSOM_COMPLETE" in done.stdout

"""Unknown words are reported like every other error: what, and where to look; as JSON if requested."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import typer
from cli_support import transom

from transom_cli.cli import app, requests


@pytest.mark.parametrize(
    ("words", "what", "where"),
    [
        (("bogus",), "No such command 'bogus'", "transom --help"),
        (("status", "--bogus"), "No such option: --bogus", "transom status --help"),
        (("sandbox", "fault", "kill-node"), "Missing argument 'node'", "transom sandbox fault kill-node --help"),
        (("nodes", "--lift"), "Option '--lift' requires an argument", "transom nodes --help"),
        (("ckpt", "ls", "a", "--root"), "Option '--root' requires an argument", "transom ckpt ls --help"),
        (("ckpt", "diff", "a", "b"), "No such file or directory: a", "transom ckpt diff --help"),
        (("list", "--state", "faild"), "There is no state `faild`", "transom list --state failed"),
        (("check", "-w", "n1", "--here"), "`--nodelist` and `--here` cannot be combined", "omit one of them"),
        (("stop", "a", "b"), "Got unexpected extra argument", "transom stop --help"),
    ],
)
def test_what_no_command_understands(words: tuple[str, ...], what: str, where: str) -> None:
    done = transom(*words)
    assert done.returncode == 2 and done.stdout == ""
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(f"error: {what}") and last == f"hint: {where}"


def test_as_json_where_that_is_requested() -> None:
    done = transom("explain", "--zzz", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], done.stderr) == (2, 2, "")
    assert found["error"]["kind"] == "usage" and found["error"]["what"] == "No such option: --zzz"


@pytest.mark.parametrize("words", [("ckpt",), ("sandbox", "fault")])
def test_a_command_that_needs_another_prints_its_help(words: tuple[str, ...]) -> None:
    done = transom(*words)
    assert done.returncode == 2 and (done.stdout + done.stderr).startswith("Usage: transom")


@pytest.mark.parametrize("word", ["sto", "stpo", "cancle", "prun", "requeu"])
def test_mistyped_command_never_suggests_one_that_ends_or_removes_something(word: str) -> None:
    done = transom(word)
    assert done.returncode == 2 and done.stderr.splitlines()[0] == f"error: No such command '{word}'"


@pytest.mark.parametrize(
    ("words", "what", "says"),
    [
        (("run", "--gpus", "2", "--", "true"), "No such option: --gpus", "did you mean `--gpus-per-node`?"),
        (("run", "--gres", "gpu:1", "--", "true"), "No such option: --gres", "did you mean `--gpus-per-node`?"),
        (("run", "-w", "n1", "--", "true"), "No such option: -w", "use `--set job.sbatch=--nodelist=n1`, or an"),
        (("run", "--gres", "gpu:a100:4", "--", "true"), "No such option: --gres", "`--set job.sbatch=--gres=gpu:a100"),
        (("run", "--root", "", "--", "true"), "`--root` is empty", "give a value, or omit `--root`"),
        (("stop", "", "--yes"), "`RUN` is empty", "a variable may be unset"),
        (("run", "-n", "3", "--", "true"), "No such option: -n", "did you mean `--tasks-per-node`?"),
        (
            ("run", "--", "python3 train.py"),
            "`python3 train.py` is one word: its quotes make it the name of a program",
            "hint: transom run -- python3 train.py",
        ),
        (("run", "--spares", "two", "--", "true"), "`--spares` needs a whole number, not `two`", ""),
        (("run", "--spares=2.5", "--", "true"), "`--spares` needs a whole number, not `2.5`", ""),
        (("run", "--", "python"), "`python` is given no script", "transom run -- python train.py"),
        (("run", "-N", "2"), "`run` needs a command, or an sbatch script", "transom run -N 2 -- python train.py"),
        (("run", "-f", "no.toml", "--", "true"), "No such settings file: no.toml", "`transom init` writes one"),
        (("run", "train.py"), "`train.py` is a Python script, not a command", "transom run -- python train.py"),
        (("run", "--", "pyhton", "train.py"), "`pyhton` was not found on this host", "did you mean `python`?"),
        (("run", "--", "python", "no-such.py"), "`no-such.py` was not found on this host", "add `--force`"),
    ],
)
def test_mistake_in_a_submission_is_refused_before_slurm_is_asked(words: tuple[str, ...], what: str, says: str) -> None:
    done = transom(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"error: {what}" and says in done.stderr


def test_mistyped_command_suggests_a_harmless_one() -> None:
    assert "did you mean `status`?" in transom("statsu").stderr and "that is `transom list`" in transom("ls").stderr
    assert "did you mean `run`?" in transom("runn").stderr
    assert "did you mean" not in transom("stopp").stderr


def test_help_of_a_command_by_its_name() -> None:
    assert transom("help", "ckpt", "ls").stdout == transom("ckpt", "ls", "--help").stdout
    assert transom("help").stdout == transom("--help").stdout


@pytest.mark.parametrize(
    ("context", "says", "code"),
    [(KeyboardInterrupt, "\nnothing was changed\n", 130), (None, "nothing was changed\n", 1)],
)
def test_question_that_is_not_answered_with_yes(
    context: type[BaseException] | None,
    says: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(**_: object) -> None:
        try:
            raise (context or ValueError)
        except BaseException:
            raise typer.Abort from None

    monkeypatch.setattr(app, "app", ask)
    with pytest.raises(SystemExit) as left:
        app.run_app()
    assert (left.value.code, capsys.readouterr().err) == (code, says)


def test_question_is_asked_again_after_an_answer_that_is_neither(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(("jep", " Y ", ""))
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    requests.confirm("stop", "r", "Stop run r?")
    assert capsys.readouterr().err == "error: type y or n\n"
    with pytest.raises(typer.Abort):
        requests.confirm("stop", "r", "Stop run r?")

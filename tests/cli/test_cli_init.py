"""`transom init` writes settings that `transom run` reads; bare `transom` says what runs; help is never cut."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_support import transom

from transom_cli.cli.app import app
from transom_cli.cli.init import _from_script, _in_slurms_form, _wrong, init, settings_text
from transom_cli.config.load import load
from transom_cli.errors import UsageError

SCRIPT = """#!/bin/bash
#SBATCH -J llama -N 4 --gres=gpu:h100:8
#SBATCH --time=12:00:00 --partition long
#SBATCH --mail-type=END
srun python train.py
"""


def test_settings_from_a_script_are_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, file = tmp_path / "train.sbatch", tmp_path / "run.toml"
    script.write_text(SCRIPT)
    file.write_text(settings_text(_from_script(script)))
    settings = load(file, {}, {}, site=None, user=None)
    job = settings.job
    found = (settings.name, job.nodes, job.gpus_per_node, job.time, job.partition, job.tasks_per_node)
    assert found == ("llama", 4, 8, "12:00:00", "long", None)
    assert "--mail-type" in capsys.readouterr().err
    file.write_text(re.sub(r"(?m)^# (?=\w+ = |\[)", "", file.read_text()))
    suggested = load(file, {}, {}, site=None, user=None)
    assert (suggested.steps, suggested.detect.first_step) == (10000, 1800)


@pytest.mark.parametrize(
    ("lines", "command"),
    [("srun -n 8 python -u my/t.py --lr 3e-4", "python -u my/t.py --lr 3e-4"), ("srun $CMD", "python YOUR_SCRIPT.py"),
     ("python t.py", "python YOUR_SCRIPT.py")],
)  # fmt: skip
def test_next_command_starts_what_the_script_starts(lines: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "t.sbatch").write_text(f"#!/bin/bash\n#SBATCH -N 2\n{lines}\n")
    done = transom("init", "t.sbatch", cwd=tmp_path)
    assert done.stderr.rstrip().endswith(f"run -f run.toml --dry-run -- {command}")


def test_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("mine")
    done = transom("init", "-o", str(tmp_path / "run.toml"))
    assert done.returncode == 2 and "exists" in done.stderr
    assert (tmp_path / "run.toml").read_text() == "mine"


def test_bare_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_ROOT", str(tmp_path / "runs"))
    done = transom()
    assert done.returncode == 0, done.stderr
    assert "transom run" in done.stdout and "transom doctor" in done.stdout and "transom --help" in done.stdout


def test_summaries_in_the_help_are_short_and_whole() -> None:
    text = transom("--help").stdout
    commands = text.partition("Start:")[2].partition("Exit codes")[0]
    summaries = [one.split(maxsplit=1) for one in commands.splitlines() if one[:2] == "  " and one.strip()]
    assert len(summaries) > 25
    assert [one for one in summaries if len(one[1]) > 50 or one[1].endswith("...")] == []


def test_summaries_of_subcommands_fit_fifty_characters() -> None:
    def summaries(command: Any) -> Iterator[str]:
        for one in getattr(command, "commands", {}).values():
            if not one.hidden:
                yield one.get_short_help_str(1000)
                yield from summaries(one)

    found = list(summaries(typer.main.get_command(app)))
    assert len(found) > 50 and [text for text in found if len(text) > 50] == []


@pytest.mark.parametrize(
    ("setting", "answer", "why"),
    [
        ("job.nodes", "two", "should be a valid integer"),
        ("job.nodes", "0", "greater than or equal to 1"),
        ("job.time", "soon", "'soon' is not a Slurm time"),
        ("job.partition", "1:00:00", "there is no partition `1:00:00`; there are: main, large"),
        ("job.partition", "large,main", ""),
        ("job.time", "1-12:00", ""),
        ("name", "llama 7b", ""),
    ],
)
def test_each_answer_is_checked(setting: str, answer: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom_cli.bootstrap.slurm.partitions", lambda: ("main", "large"))
    assert why in _wrong(setting, answer) and bool(why) == bool(_wrong(setting, answer))


def test_time_limit_may_have_units() -> None:
    given = ("1h", "2d", "90 min", "1h 30m", "1:00:00", "90", "hour")
    assert [_in_slurms_form(one) for one in given] == [
        "01:00:00", "48:00:00", "01:30:00", "01:30:00", "1:00:00", "90", "hour",
    ]  # fmt: skip


def test_wrong_answer_from_a_pipe_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transom_cli.bootstrap.slurm.partitions", tuple)
    for answers, what in (("a\n2\ntwo\n", "`two` cannot be the answer to: GPUs per node"), ("a\n", "five questions")):
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        with pytest.raises(UsageError, match=what):
            init(None, Path("run.toml"))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n2\n\n1h\n\n"))
    init(None, Path("run.toml"))
    job = load(Path("run.toml"), {}, {}, site=None, user=None).job
    assert (job.nodes, job.gpus_per_node, job.time, job.partition) == (2, 0, "01:00:00", None)

"""A program or a script that is not there is reported before a job waits for hours to find that out."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.config.model import Settings
from transom_cli.submit.inputs import missing_program
from transom_cli.submit.prepare import prepare


def settings(**flags: object) -> Settings:
    return load(
        None, {key.replace("__", "."): value for key, value in flags.items()}, site=None, user=Path("/nonexistent")
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "there.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "lacking"),
    [
        ("python there.py", ""),
        ("python nope.py --lr 1", "nope.py"),
        ("/bin/sh -c nope", ""),
        ("python3.11 -u -X dev nope.py", "python3.11 or nope.py"),
        ("python -m nope", ""),
        ("python -c nope", ""),
        ("python", ""),
        ("nope.py", "nope.py"),
        ("./there.py", ""),
        ("./nope.py", "./nope.py"),
        ("sh nope.sh", ""),
    ],
)
def test_missing_program_is_named(here: Path, command: str, lacking: str) -> None:
    found = missing_program(tuple(command.split()), settings(), here)
    assert found in lacking.split(" or ") if lacking else found == ""


def test_torchrun_is_given_a_script(here: Path) -> None:
    torchrun = settings(launch__kind="torchrun")
    assert missing_program(("there.py",), torchrun, here) == missing_program(("-m", "nope"), torchrun, here) == ""
    assert missing_program(("nope.py",), torchrun, here) == "nope.py"


def test_behind_setup_or_in_a_container_nothing_is_known(here: Path) -> None:
    words = ("nope", "nope.py")
    assert missing_program(words, settings(job__setup=["module load nope"]), here) == ""
    assert missing_program(words, settings(launch__container__image="nope.sqsh"), here) == ""


@pytest.mark.parametrize(
    ("flags", "noted"),
    [
        ({"job.nodes": 2, "job.min_nodes": 1}, True),
        ({"job.nodes": 2}, False),
        ({"job.nodes": 2, "job.min_nodes": 2}, False),
    ],
)
def test_a_range_of_nodes_says_what_the_trainer_must_be_able_to_do(
    flags: dict[str, object], noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(("sh", "-c", "true"), None, flags)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "number of ranks" in line] or [""]
    assert line == noted * (
        "note: on fewer than 2 nodes, your trainer must load a checkpoint that another number of ranks wrote; "
        "transom cannot check that in advance (docs/elastic.md)"
    )

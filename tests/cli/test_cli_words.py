"""What a terminal gets to see of words that others wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli import __version__
from transom_cli.errors import TransomError, printable
from transom_cli.view.text import fit


def transom(*words: str | bytes, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    full = {**os.environ, **(env or {})}
    program = [sys.executable, "-m", "transom_cli", *words]
    return subprocess.run(program, env=full, capture_output=True, timeout=60)


def test_an_error_is_safe_for_the_terminal() -> None:
    error = TransomError("no run `a\x1b[31mb\nc`", "é 日本\n\x07two\udcff", "rm 'a\x1b[0m'\nthen this")
    assert str(error).splitlines() == [
        r"no run `a\x1b[31mb\nc`",
        "  é 日本",
        r"  \x07two\udcff",
        "",
        r"hint: rm 'a\x1b[0m'",
        "      then this",
    ]
    assert printable("plain é") == "plain é"


def test_escape_sequences_of_a_command_line_and_a_file_are_reported_not_sent(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    requested = transom("status", "a\x1b[31mb\nc", "--root", str(tmp_path))
    assert requested.returncode == 10 and b"\x1b" not in requested.stderr
    (tmp_path / "run.toml").write_text('"a\\u001b[31mb" = 1\n')
    refused = transom("run", "-f", str(tmp_path / "run.toml"), "--", "true")
    assert refused.returncode == 2 and b"\x1b" not in refused.stderr and b"a\\x1b[31mb" in refused.stderr


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([b"--name", b"a\xff"], b"command line: name: "),
        ([b"-p", b"\xff"], b"command line: job.partition (--partition): "),
        ([b"--root", b"/r\xff"], b"command line: root: "),
        ([b"--set", b"job.env=A=\xff"], b"command line: job.env: "),
        ([b"--set", b"job.sbatch=--x=\xff"], b"command line: job.sbatch: "),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_by_key_and_layer(words: list[bytes], key: bytes) -> None:
    done = transom("run", *words, "--dry-run", "--", "true")
    assert done.returncode == 2, done.stdout
    assert key in done.stderr and b"is not UTF-8 text" in done.stderr and b"surrogate" not in done.stderr


def test_a_variable_that_is_not_utf8_is_refused_by_its_name() -> None:
    done = transom("run", "--dry-run", "--", "true", env={"TRANSOM_JOB__ENV": os.fsdecode(b"A=\xff")})
    assert done.returncode == 2 and b"TRANSOM_JOB__ENV: job.env: " in done.stderr and b"not UTF-8" in done.stderr


def test_lines_of_the_screen_are_safe_too() -> None:
    assert fit("RuntimeError: \x1b[2J", 80) == r"RuntimeError: \x1b[2J"
    assert fit("é" * 9, 6) == "ééé..."


def test_settings_that_a_script_of_ones_own_has_no_place_for_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n#SBATCH -N1\ntrue\n")
    file = tmp_path / "run.toml"
    file.write_text(
        '[job]\nnodes = 4\nchdir = "/"\n[launch]\nkind = "torchrun"\n[restart]\nrelaunches = 1\nbackoff = 1\n'
    )
    words = ("run", "-f", str(file), "--dry-run", str(tmp_path / "train.sbatch"))
    found = transom(*words, env={"TRANSOM_JOB__SPARES": "1"}).stderr.decode()
    assert "not used: job.nodes, job.spares, launch.kind, restart.relaunches\n" in found
    file.write_text("[restart]\nbackoff = 1\n")
    assert "not used" not in transom(*words).stderr.decode()


def test_the_version() -> None:
    done = transom("--version")
    assert done.returncode == 0 and done.stdout.decode() == f"transom {__version__}\n"
    assert b"Keep a training run alive on a Slurm cluster." in transom("--help").stdout

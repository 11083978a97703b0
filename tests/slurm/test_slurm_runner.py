"""The runner against small programs that stand in for Slurm's commands, and Slurm's own words of refusal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transom_cli.errors import SlurmUnreachable
from transom_cli.slurm.port import SlurmRefused, SlurmUnknown
from transom_cli.slurm.runner import Runner, SlurmTimeout, classify

ERRORS = [line.split("\t") for line in (Path(__file__).parent / "samples" / "errors.tsv").read_text().splitlines()]


@pytest.mark.parametrize(("kind", "code", "command", "words"), ERRORS)
def test_slurm_message_decides_the_error_class(kind: str, code: str, command: str, words: str) -> None:
    error = classify(command.split(), int(code), "", words.replace("~", "\n"))
    assert type(error).__name__ == kind
    assert words.split("~")[0] in error.why


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def make(body: str) -> str:
        path = tmp_path / "squeue"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("squeue: error: No cluster 'alsp' known by database.", "sacctmgr show clusters"),
        ("squeue: error: 'x' can't be reached now, or it is an invalid entry for --cluster.", "sacctmgr show clusters"),
        ("squeue: fatal: Could not establish a configuration source", "export SLURM_CONF="),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "scontrol ping"),
    ],
)
def test_what_now_depends_on_what_slurm_said(words: str, hint: str) -> None:
    error = classify(["squeue"], 1, "", words)
    assert isinstance(error, (SlurmUnknown, SlurmRefused)) and hint in error.hint


def test_arguments_arrive_as_they_are(program: Callable[[str], str]) -> None:
    odd = ["a b", "q\"uo'te", "$HOME;`id`", "two\nlines", "*"]
    assert Runner().run([program('printf "%s\\0" "$@"'), *odd]) == "".join(f"{part}\0" for part in odd)


def test_no_terminal_and_a_plain_locale(program: Callable[[str], str]) -> None:
    assert Runner().run([program('cat; printf %s "$LC_ALL"')]) == "C"


def test_the_callers_slurm_settings_do_not_reshape_answers(
    program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    monkeypatch.setenv("SINFO_PARTITION", "debug")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    monkeypatch.setenv("SBATCH_WAIT", "1")
    result = Runner().submit([program("env")], {"EXTRA": "b ar"})
    assert not any(
        name in result for name in ("SQUEUE_PARTITION", "SINFO_PARTITION", "SLURM_JOB_ID", "LC_ALL=C", "SBATCH_WAIT")
    )
    assert {"SLURM_CONF=/etc/other.conf", "SBATCH_ACCOUNT=physics", "EXTRA=b ar"} <= set(result.splitlines())


def test_a_job_inherits_no_rank_of_another_launch(
    program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a second operator submits, from a shell inside a job."""
    another = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID")
    for name in (*another, "RANKING", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.setenv(name, "0")
    result = Runner().submit([program("env")], {}).splitlines()
    assert not [name for name in another if f"{name}=0" in result]
    assert {"RANKING=0", "MASTER_ADDR=0", "TORCHELASTIC_ERROR_FILE=0"} <= set(result)


def test_at_the_deadline_the_whole_group_is_killed(program: Callable[[str], str], tmp_path: Path) -> None:
    path = program(f"echo wait >&2; sleep 100 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(SlurmTimeout, match=r"did not answer .* within 0.7 s") as raised:
        Runner(timeout=0.7).run([path])
    assert raised.value.why == "wait"
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split(") ")[1][0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the command's child lives on")


def test_a_missing_command_names_the_packages() -> None:
    with pytest.raises(SlurmUnreachable, match="`squeue-of-nowhere` was not found") as raised:
        Runner().run(["squeue-of-nowhere"])
    assert not isinstance(raised.value, SlurmUnknown)
    assert "slurm-client" in raised.value.hint and raised.value.exit_code == 12


def test_control_characters_are_cleaned(program: Callable[[str], str]) -> None:
    with pytest.raises(SlurmRefused) as raised:
        Runner().run([program("printf 'no \\033[2J way\\r\\n' >&2; exit 3")])
    assert raised.value.why == "Slurm said: no  [2J way"


def test_failure_without_output_reports_its_exit_status(program: Callable[[str], str]) -> None:
    with pytest.raises(SlurmRefused, match="refused") as raised:
        Runner().run([program("exit 3")])
    assert "exit status 3" in raised.value.why


def test_killed_by_a_signal_is_unknown(program: Callable[[str], str]) -> None:
    with pytest.raises(SlurmUnknown, match="killed by signal 9"):
        Runner().run([program("kill -9 $$")])


def test_a_prefix_comes_first(program: Callable[[str], str]) -> None:
    result = Runner(prefix=("env", "WHO=prefix")).run([program('printf %s "$WHO"')])
    assert result == "prefix"


def test_a_nul_byte_is_refused() -> None:
    with pytest.raises(SlurmRefused, match="Cannot run squeue"):
        Runner().run(["squeue", "a\0b"])


def test_output_that_is_not_utf8(program: Callable[[str], str]) -> None:
    assert Runner().run([program("printf 'a\\377b'")]) == "a\ufffdb"

"""submission.json outlives an upgrade: a run is submitted again, by a newer version, from what an older one wrote."""

import json
import os
from pathlib import Path

import pytest

from transom_cli.cli.resume import _compare_shells
from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.submit.submission import SubmissionRecord, changed_variables, fingerprints

FILE = {
    "options": ["--nodes=2"],
    "args": ["a b"],
    "chdir": "/work",
    "env": {"A": "1", "BC": "2"},
    "requested_cluster": "",
    "cluster": "alps",
    "sbatch": {"SBATCH_QOS": "low"},
    "observed": 0,
}


def test_the_format_is_that_of_runs_that_live(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.submission.write_text(json.dumps(FILE))
    record = SubmissionRecord.load(run)
    assert record.env == (("A", "1"), ("BC", "2")) and record.sbatch == (("SBATCH_QOS", "low"),)
    record.save(run)
    assert json.loads(run.submission.read_text()) == FILE


def test_resume_names_variables_that_the_training_may_read_and_keeps_no_value(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a-1")
    run.path.mkdir()
    shell = {"STEPS": "400", "TOKEN": "secret", "PATH": "/a:/b", "SHLVL": "1", "SSH_TTY": "/dev/pts/3"}
    SubmissionRecord(shell=tuple(fingerprints(shell, run.run_id).items())).save(run)
    assert "secret" not in run.submission.read_text() and "SSH_TTY" not in run.submission.read_text()
    assert changed_variables(run, {**shell, "SHLVL": "4", "TMUX": "x"}) == ()
    now = {"TOKEN": "other", "PATH": "/a:/b", "AT": "1"}
    assert changed_variables(run, now) == ("STEPS is not set", "TOKEN is different", "AT is new")
    SubmissionRecord().save(run)
    assert changed_variables(run, now) == (), "not recorded by earlier versions"


def test_resume_warns_of_another_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "a-1")
    run.path.mkdir()
    SubmissionRecord(shell=tuple(fingerprints({**os.environ, "MY_STEPS": "400"}, run.run_id).items())).save(run)
    _compare_shells(run, ask=False)
    assert "differs from the first job's: MY_STEPS is not set\n" in capsys.readouterr().err
    monkeypatch.setenv("MY_STEPS", "400")
    _compare_shells(run, ask=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["{}", "[]", '{"options": []}', "torn {"])
def test_a_file_that_lacks_something_is_damaged_and_no_job_without_options(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    run.submission.write_text(text)
    with pytest.raises(TransomError, match="is damaged"):
        SubmissionRecord.load(run)

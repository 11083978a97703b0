"""submission.json outlives an upgrade: a run is submitted again, by a newer version, from what an older one wrote."""

import json
from pathlib import Path

import pytest

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.submit.submission import SubmissionRecord

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


@pytest.mark.parametrize("text", ["{}", "[]", '{"options": []}', "torn {"])
def test_a_file_that_lacks_something_is_damaged_and_no_job_without_options(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    run.submission.write_text(text)
    with pytest.raises(TransomError, match="is damaged"):
        SubmissionRecord.load(run)

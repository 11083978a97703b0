"""A run as it lies on disk before its operator's first look. No Slurm is needed."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.core.operator.state import Policy
from transom_cli.layout import RunDir
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import write_header

SCRIPT = "#!/bin/bash\n#SBATCH -N1\n# \xe9\ntrue\n".encode("latin-1").decode("utf-8", "surrogateescape")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    settings = load(site=None, user=Path("/nonexistent"))
    made = new_run(tmp_path / "runs", "r", datetime(2026, 3, 4, tzinfo=timezone.utc), settings, SCRIPT)
    SubmissionRecord(chdir="/").save(made)
    write_header(made.journal, Policy(), 1)
    return made

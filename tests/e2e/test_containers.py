"""Ranks in a container by Apptainer, the whole way through: a stand-in notes its words and runs the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.support import COMMAND, Person

pytestmark = pytest.mark.sandbox

STAND_IN = """\
#!/bin/bash
printf "%s\\n" "$@" > "{folder}/words-$SLURM_PROCID"
while [ "$1" != "/images/a b.sif" ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.long
def test_every_rank_is_started_by_apptainer_and_beats(person: Person, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(folder=tmp_path))
    program.chmod(0o755)
    path = f'job.setup=["export PATH={program.parent}:$PATH"]'
    flags = ("--apptainer", "/images/a b.sif", "--set", path, "--set", 'launch.container.args=["--cleanenv"]')
    done = person.run("-N", "2", *flags, "--", *COMMAND, "--steps", "12")
    assert done.returncode == 0, done.stderr
    run = person.newest()
    assert person.status(run)["step"] == 12, "beats come through"
    for rank in (0, 1):
        words = (tmp_path / f"words-{rank}").read_text().splitlines()
        assert words[0] == "exec" and f"--bind={run.path}" in words and "--cleanenv" in words
        assert "--nv" not in words and words[words.index("/images/a b.sif") + 1] == COMMAND[0]


@pytest.mark.long
def test_a_job_without_apptainer_says_so(person: Person) -> None:
    done = person.run("-N", "1", "--apptainer", "/images/x.sif", "--", *COMMAND)
    assert done.returncode != 0
    run = person.newest()
    log = run.job_log(person.status(run)["job_id"]).read_text()
    assert "Neither apptainer nor singularity is here" in log and "module load" in log

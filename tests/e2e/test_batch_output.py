"""What the batch script's output tells of a failure: srun's own words, and those of a user's own script."""

from __future__ import annotations

import pytest
from e2e.support import Person

pytestmark = pytest.mark.sandbox


@pytest.mark.long
def test_unknown_srun_flag_ends_the_run_and_quotes_srun(person: Person) -> None:
    """As `--container-image` does where there is no pyxis."""
    done = person.run("-N", "1", "--container-image", "/shared/train.sqsh", "--", "true")
    assert done.returncode == 1
    assert "unrecognized option '--container-image=/shared/train.sqsh'" in done.stderr, done.stderr
    view = person.status(person.newest())
    assert (view["phase"], view["starts"], len(view["incidents"])) == ("failed", 0, 1)
    assert view["verdict"].count("unrecognized option") == 1, view["verdict"]


def test_own_script_failure_is_diagnosed_from_its_output(person: Person) -> None:
    (person.cwd / "logs").mkdir()
    script = person.cwd / "mine.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --output=logs/%x-%j.out\n"
        "srun python3 -c 'raise ValueError(\"mine\")'\n"
    )
    done = person.run(str(script))
    assert done.returncode == 1 and "ValueError: mine" in done.stderr, done.stderr
    run = person.newest()
    view = person.status(run)
    assert (view["phase"], view["starts"]) == ("failed", 0)
    link = run.job_log(view["job_id"])
    assert link.readlink() == person.cwd / "logs" / f"mine.sbatch-{view['job_id']}.out" and "mine" in link.read_text()

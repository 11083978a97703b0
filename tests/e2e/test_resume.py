"""`transom resume` continues a run that has ended: the same run, in a new job, from its newest checkpoint."""

from __future__ import annotations

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.sandbox.cluster import Sandbox
from transom_cli.submit.submission import SubmissionRecord

pytestmark = pytest.mark.sandbox
STEPS = "300"  # enough for a stop before the end


def test_stopped_run_continues_as_the_same_run(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", STEPS)
    first = person.wait(run, at_step(12))
    assert person.transom("stop", run.run_id).returncode == 0
    stopped = person.status(run)
    assert stopped["phase"] == "stopped" and stopped["durable"] > 0
    assert f"transom resume {run.run_id}" in person.transom("status", run.run_id).stdout

    refused = person.transom("resume", run.run_id, "--nodes", "1", "--detach")
    assert refused.returncode == 2 and "it has another number of ranks" in refused.stderr
    changes = ("--nodes", "1", "--force", "--time", "2:00:00", "--exclude", "node1")
    done = person.transom("resume", run.run_id, *changes, "--detach")
    assert done.returncode == 0, done.stderr
    assert f"continues from checkpoint {stopped['durable']}" in done.stderr
    assert not run.summary.exists() or person.status(run)["phase"] != "stopped"
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["run_id"], view["starts"]) == ("done", int(STEPS), run.run_id, 1)
    assert view["job_id"] != first["job_id"] and len(view["nodes"]) == 1 and "node1" not in view["nodes"]
    assert "--time=2:00:00" in SubmissionRecord.load(run).options
    log = (run.attempt(view["job_id"], 0).logs(0) / "rank-0.log").read_text()
    assert "goes on from step" in log and "from step 0" not in log

    again = person.transom("resume", run.run_id)
    assert again.returncode == 1 and "its training is done" in again.stderr

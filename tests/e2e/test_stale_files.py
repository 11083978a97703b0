"""The operator's file system shows all three seconds late, as NFS may: it sees, isolates and requeues all the same.

Those who write, launchers, agents and ranks, see the files as they are: they are on other nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from e2e.support import COMMAND, PATIENCE, Person, at_step

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace"),
]
LATE = "3"


@pytest.mark.long
def test_a_dead_node_is_isolated_once_by_an_operator_that_sees_all_late(person: Person, sandbox: Sandbox) -> None:
    view = [sys.executable, "-m", "transom_cli.sandbox.stale_view", LATE, str(person.root), "-"]
    run = [sys.executable, "-m", "transom_cli", "run", "-N", "3", "--", *COMMAND, "--steps", "80"]
    env = {**os.environ, **person.env, "TRANSOM_ROOT": str(person.root)}
    person.root.mkdir()
    with subprocess.Popen([*view, *run], env=env, cwd=person.cwd, stdin=subprocess.DEVNULL) as watching:
        try:
            found = _made(person, watching)
            person.wait(found, at_step(15))
            faults.kill_node(sandbox, "node2")
            assert watching.wait(PATIENCE) == 0
        finally:
            watching.kill()
    told = person.status(found)
    assert (told["phase"], told["step"], told["starts"]) == ("done", 80, 1)
    assert [node for node, *_ in told["excluded"]] == ["node2"]
    (incident,) = told["incidents"]
    assert incident["result"] == "recovered" and "node2 lost" in incident["words"]
    marks = [what for _, what, _ in incident["marks"]]
    assert (marks.count("isolated"), marks.count("requeued")) == (1, 1)
    resumed = (found.attempt(told["job_id"], 1).logs(0) / "rank-0.log").read_text()
    assert "goes on from step" in resumed and "from step 0" not in resumed


def _made(person: Person, watching: subprocess.Popen[bytes]) -> RunDir:
    while not any(RunDir(path).journal.exists() for path in person.root.iterdir()):
        assert watching.poll() is None, "it ended before it began"
        time.sleep(0.1)
    return person.newest()

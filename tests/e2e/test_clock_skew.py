"""Wall clocks that are wrong, jump or change to winter time: nothing is blamed that is not at fault."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.errors import NotPermitted
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.long

FAILS = (
    "import os, time; first = os.environ['RANK'] == '1'; time.sleep(3.0 if first else 4.0); os._exit(7 if first else 8)"
)


@pytest.fixture
def clocks(healed_sandbox: Sandbox, person: Person) -> Iterator[None]:
    try:
        person.env |= faults.clock_env(healed_sandbox)
    except NotPermitted as refused:
        pytest.skip(str(refused))
    yield
    faults.reset_clock(healed_sandbox)


@pytest.mark.usefixtures("clocks")
@pytest.mark.parametrize("ahead", [200.0, -200.0])
def test_the_culprit_is_named_whatever_its_nodes_clock_shows(person: Person, sandbox: Sandbox, ahead: float) -> None:
    faults.jump_clock(sandbox, ahead, "node2")
    run = person.start("-N", "2", "--set", "restart.relaunches=0", "--", sys.executable, "-c", FAILS)
    view = person.wait(run, lambda v: any(m[1] == "diagnosed" for i in v["incidents"] for m in i["marks"]))
    person.transom("stop", run.run_id)
    assert "rank 1 on node2 ended with exit code 7" in view["incidents"][0]["message"]


def zone_that_leaves_summer_time(at: float) -> str:
    """Return a POSIX time zone that is an hour ahead of UTC until `at`, and then is UTC: one hour occurs twice."""
    local = datetime.fromtimestamp(at + 3600, timezone.utc).replace(year=2026)  # without February 29
    return f"WINTER0SUMMER-1,J1/0,J{local.timetuple().tm_yday}/{local:%H:%M:%S}"


def offset_of(zone: str, at: float) -> str:
    command = ["date", "-d", f"@{at:.0f}", "+%z"]
    return subprocess.run(command, env={"TZ": zone}, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.timeout(480)
@pytest.mark.usefixtures("clocks")
def test_time_zones_winter_time_and_clocks_that_jump_are_no_incident(person: Person, sandbox: Sandbox) -> None:
    change = time.time() + 30.0  # while the run trains
    person.env["TZ"] = zone_that_leaves_summer_time(change)
    assert [offset_of(person.env["TZ"], change + late) for late in (-2.0, 2.0)] == ["+0100", "+0000"]
    words = ("-N", "2", "-t", "30", "--set", 'job.env={TZ="NODES+9:30"}', "--", *COMMAND)
    run = person.start(*words, "--steps", "700", "--delay", "0.1")
    person.wait(run, at_step(5))
    for host, seconds in (("node2", 3600.0), ("login", -3600.0), ("node1", -90.0), ("login", 7200.0), ("", 45.0)):
        faults.jump_clock(sandbox, seconds, host)
        step = person.status(run)["step"]
        view = person.wait(run, at_step(step + 40))
        assert (view["phase"], view["incidents"], view["excluded"]) == ("training", [], [])
        assert view["health"] in ("healthy", "degraded") and view["step"] < 700
    time.sleep(max(0.0, change + 5.0 - time.time()))
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["starts"], len(view["incidents"])) == ("done", 0, 1)
    explained = json.loads(person.transom("explain", "--json", run.run_id).stdout)["incidents"][0]
    assert "rank 1 on node2 killed by SIGKILL" in explained["message"]
    assert 0.0 <= explained["duration"] < 60.0
    assert all(0.0 <= entry["took_seconds"] < 60.0 for entry in explained["entries"]), explained["entries"]

"""A node whose wall clock is wrong: the rank that failed first is named, not its victim."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from e2e.support import Person

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

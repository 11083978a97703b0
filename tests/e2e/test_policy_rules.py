"""A rule of the user's own decides, in the launcher and then in the operator, on a real Slurm."""

from __future__ import annotations

import json

import pytest
from e2e.support import COMMAND, Person

RULES = """
[[policy.rules]]
name = "seven"
exit_code = 7
action = "relaunch"
budget = 1
then = "stop"
"""


@pytest.mark.long
def test_the_second_time_the_run_stops_and_says_by_which_rule(person: Person) -> None:
    mine = person.cwd / "mine.toml"
    mine.write_text(RULES)
    done = person.run("-f", str(mine), "-N", "2", "--", *COMMAND, "--end", "7", "--at", "8", "--always")
    assert done.returncode == 1, done.stderr
    assert "stopped by rule `seven`" in done.stderr and "for the second time in this run" in done.stderr
    run = person.newest()
    view = person.status(run)
    assert (view["phase"], view["starts"]) == ("failed", 0), "relaunched once, and never requeued"
    told = json.loads(person.transom("explain", "--json", run.run_id).stdout)["incidents"]
    assert [(i["rule"], i["action"]) for i in told] == [("seven", "relaunch"), ("seven", "stop")]
    assert len({i["fingerprint"] for i in told}) == 1, "launcher and operator speak of one failure"
    kept = json.loads(person.transom("policy", "--json", run.run_id).stdout)["rules"]
    assert kept[0]["name"] == "seven" and kept[0]["source"] == str(mine)

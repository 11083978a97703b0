"""A clock that jumps: in running processes, on the host that is named, and nowhere but on the wall clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox import fault_clock, faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox

CLOCKS = """
import datetime, json, sys, time
for line in sys.stdin:
    time.sleep(0.05)
    now = datetime.datetime.now().timestamp()
    print(json.dumps([time.time(), now, time.monotonic()]), flush=True)
"""


@pytest.fixture
def clocks(sandbox: Sandbox) -> Iterator[dict[str, str]]:
    try:
        env = faults.clock_env(sandbox)
    except NotPermitted as refused:
        pytest.skip(str(refused))
    yield {**os.environ, **env}
    faults.reset_clock(sandbox)


class Asked:
    """A Python that runs all the while and tells its clocks when it is asked."""

    def __init__(self, env: dict[str, str]) -> None:
        argv = [sys.executable, "-c", CLOCKS]
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wrong_by(self) -> list[float]:
        """By how much its time.time(), datetime.now() and time.monotonic() differ from ours."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        return [result[0] - time.time(), result[1] - time.time(), result[2] - time.monotonic()]


def test_the_clock_of_a_running_process_jumps_and_comes_back(sandbox: Sandbox, clocks: dict[str, str]) -> None:
    here = {key: value for key, value in clocks.items() if key != "SLURMD_NODENAME"}
    login, node = Asked(here), Asked({**here, "SLURMD_NODENAME": "node2"})
    try:
        for seconds in (3600.0, -7200.5):
            faults.jump_clock(sandbox, seconds, "node2")
            assert node.wrong_by() == pytest.approx([seconds, seconds, 0.0], abs=20.0)
            assert login.wrong_by() == pytest.approx([0.0, 0.0, 0.0], abs=20.0)
            result = [(fault.what, fault.undo) for fault in faults.active(sandbox)]
            assert result == [(f"the clock of node2 is wrong by {seconds:+g} s", "reset-clock --host node2")]
            faults.reset_clock(sandbox, "node2")
            assert node.wrong_by() == pytest.approx([0.0, 0.0, 0.0], abs=20.0)
        faults.jump_clock(sandbox, 100.0)
        faults.jump_clock(sandbox, 50.0, "login")
        assert login.wrong_by() == pytest.approx([150.0, 150.0, 0.0], abs=20.0)
        assert node.wrong_by() == pytest.approx([100.0, 100.0, 0.0], abs=20.0)
        faults.reset_clock(sandbox)
        assert faults.active(sandbox) == []
    finally:
        for requested in (login, node):
            requested.process.communicate()


def test_slurms_own_programs_keep_the_machines_clock(sandbox: Sandbox, clocks: dict[str, str]) -> None:
    faults.jump_clock(sandbox, 86400.0)
    result = subprocess.run(["date", "+%s"], env=clocks, capture_output=True, text=True, check=True).stdout
    assert abs(int(result) - time.time()) < 20


def test_what_cannot_be_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no host 'node9'") as refused:
        faults.jump_clock(sandbox, 1.0, "node9")
    assert refused.value.why == "its hosts: login, node1, node2, node3, node4"
    for seconds in (float("nan"), float("inf"), 1e12):
        with pytest.raises(UsageError, match="ten years"):
            faults.jump_clock(sandbox, seconds)
    (sandbox.dir / "clocks.so").unlink(missing_ok=True)
    monkeypatch.setattr(fault_clock.shutil, "which", lambda _name: None)
    with pytest.raises(NotPermitted, match="clock that can jump needs a C compiler") as missing:
        faults.clock_env(sandbox)
    assert "no compiler was found" in missing.value.why

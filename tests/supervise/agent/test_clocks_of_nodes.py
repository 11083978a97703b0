"""Real ranks on nodes whose wall clocks differ or jump: the launcher knows which failed first."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

import transom_cli
from transom_cli.core.clocks import failed_first, first_bad, on_launchers_clock
from transom_cli.layout import RunDir
from transom_cli.rpc import secret
from transom_cli.supervise.attempt_files import ExitRecords
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions

PACKAGE = Path(transom_cli.__file__).parent
WRAPPER = PACKAGE / "supervise" / "agent" / "rank_wrapper.py"
HOUR = 3600.0


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + 40
    while not done():
        assert time.monotonic() < end, "not within a minute"
        time.sleep(0.02)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("first", "second", "jump"),
    [
        (0.0, -200.0, 0.0),
        pytest.param(200.0, 0.0, 0.0, marks=pytest.mark.long),
        pytest.param(0.0, 0.0, -HOUR, marks=pytest.mark.long),
    ],
)
def test_the_rank_that_failed_first_is_known(first: float, second: float, jump: float, tmp_path: Path) -> None:
    """first, second: by how much the clocks of n1 and n2 are ahead. jump: of n2, between the two failures."""
    library, clocks = tmp_path / "clock.so", tmp_path / "clocks"
    build = ["cc", "-shared", "-fPIC", "-o", str(library), str(PACKAGE / "sandbox" / "clock.c"), "-ldl"]
    subprocess.run(build, check=True)
    clocks.mkdir()
    for node, ahead in (("n1", first), ("n2", second)):
        (clocks / node).write_bytes(struct.pack("=q", int(ahead * 1e9)))
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(12, 0)
    attempt.exits(0).mkdir(parents=True)
    secret.make(run.secret)
    attempt.peers.write_text('{"allowed": ["127.0.0.1"], "nodes": {}}')
    started: list[subprocess.Popen[bytes]] = []

    def spawn(node: str, *words: str, **more: str) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM"))}
        env |= {"PYTHONPATH": str(PACKAGE.parent), "SLURMD_NODENAME": node, "TZ": "UTC" if node == "n1" else "HST10"}
        env |= {"LD_PRELOAD": str(library), "TRANSOM_SANDBOX_CLOCKS": str(clocks), **more}
        started.append(subprocess.Popen([sys.executable, *words], env=env, stdin=subprocess.DEVNULL))
        return started[-1]

    def rank(number: int, node: str) -> None:
        beats = ("--attempt-dir", str(attempt.path), "--node-beats-dir", str(tmp_path / f"beats-{node}"))
        code = (sys.executable, "-c", "raise SystemExit(1)")
        spawn(node, "-I", "-S", str(WRAPPER), *beats, "--", *code, SLURM_PROCID=str(number)).wait()

    try:
        for node in ("n1", "n2"):
            beats = ("--beats-dir", str(tmp_path / f"beats-{node}"), "--node", node)
            spawn(node, "-m", "transom_cli.supervise.agent.agent", "--attempt-dir", str(attempt.path), *beats)
            until(attempt.endpoint(node).exists)
        rank(0, "n1")
        (clocks / "n2").write_bytes(struct.pack("=q", int((second + jump) * 1e9)))
        rank(1, "n2")
        options = LaunchOptions(run, "srun", ("true",), (sys.executable,))
        agents = Agents(Allocation(12, 0, ("n1", "n2")), options, attempt, lambda *_, **__: None, lambda _: FakeSlurm())
        agents._ips = {"n1": "127.0.0.1", "n2": "127.0.0.1"}
        ended = agents.end(0, ("n1", "n2"), 0.0)
    finally:
        for process in started:
            process.kill()
            process.wait()
    exits = tuple(ExitRecords(attempt.exits(0)).read().values())
    misled = first_bad(exits)
    assert misled is not None and misled.rank == 1, "the wall clocks say so"
    assert not ended.unheard and [clock.node for clock in ended.clocks] == ["n1", "n2"]
    (found,) = failed_first(on_launchers_clock(exits, ended.clocks))
    assert (found.rank, found.node) == (0, "n1")
    assert json.loads((attempt.exits(0) / "rank-0.json").read_text())["mono"] == found.mono

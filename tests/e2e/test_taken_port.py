"""Another program listens on the rendezvous port when rank 0 wants it: the next launch has another port."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from e2e.support import Person, over

pytestmark = pytest.mark.sandbox

TRAINER = """\
import os, pathlib, socket, sys, time
from transom_cli import beat

rank, launch, port = (int(os.environ[name]) for name in ("RANK", "TRANSOM_LAUNCH", "MASTER_PORT"))
taken = pathlib.Path(sys.argv[1])
with open(f"{taken}-{launch}-{rank}", "w") as file:
    file.write(str(port))
if launch == 0 and rank == 1:
    held = socket.create_server(("", port))  # all nodes of a sandbox are one host
    taken.touch()
    time.sleep(600)
while not taken.exists():
    time.sleep(0.01)
if rank == 0:
    try:
        socket.create_server(("", port))
    except OSError as error:
        why = "The server socket has failed to listen on any local network address."
        raise RuntimeError(f"{why} port: {port}, name: EADDRINUSE, message: {error.strerror}") from None
for step in range(3):
    beat(step)
    time.sleep(0.1)
"""


@pytest.mark.long
def test_a_taken_port_costs_no_restart(person: Person, tmp_path: Path) -> None:
    """Not even where relaunches are disabled."""
    (tmp_path / "train.py").write_text(TRAINER)
    command = (sys.executable, str(tmp_path / "train.py"), str(tmp_path / "port"))
    run = person.start("-N", "2", "--set", "restart.relaunches=0", "--", *command)
    view = person.wait(run, over)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 0, [])
    records = map(json.loads, run.attempt(view["job_id"], 0).launcher_journal.read_text().splitlines())
    decided = [r["words"] for r in records if r["type"] == "recovery" and r["what"] == "decided"]
    assert len(decided) == 1 and "costs no budget" in decided[0]
    ports = {n: {(tmp_path / f"port-{n}-{rank}").read_text() for rank in (0, 1)} for n in (0, 1)}
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0] != ports[1], "all ranks of a launch know the same port"

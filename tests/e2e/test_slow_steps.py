"""A site's TaskProlog takes 7 s: a step takes that long on every node, and that is no sign of a dead one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over
from slurm_support import release_home

from transom_cli.layout import RunDir
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
PROLOG = 7


@pytest.fixture(scope="module")
def sandbox(short_dir: Path) -> Iterator[Sandbox]:
    prolog = short_dir / "task_prolog"
    prolog.write_text(f"#!/bin/sh\nsleep {PROLOG}\n")
    prolog.chmod(0o755)
    extra = {"TaskProlog": str(prolog)}
    cluster = Sandbox.up(SandboxSpec(short_dir / "tp", nodes=3, home=release_home(), extra=extra))
    yield cluster
    cluster.down()


def test_slow_task_prolog_drains_no_node(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "600")
    job_id = person.wait(run, at_step(10))["job_id"]
    os.kill(agent_of(run, job_id, "node2"), signal.SIGKILL)
    view = person.wait(run, over, 150)
    assert (view["phase"], view["excluded"], view["starts"]) == ("done", [], 0), view["incidents"]
    assert [n.name for n in sandbox.nodes() if n.state.startswith("drain")] == []
    told = run.attempt(job_id, 0).launcher_journal.read_text()
    assert "starts no step" not in told, told


def agent_of(run: RunDir, job_id: int, node: str) -> int:
    import json

    return int(json.loads(run.attempt(job_id, 0).endpoint(node).read_text())["pid"])

"""Nodes that see a folder late, each by itself: in the jobs of a real Slurm."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_support import client

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox import fault_disks, faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

pytestmark = pytest.mark.sandbox
LATE = 4.0


@pytest.fixture
def own(short_dir: Path, tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of its own, whose nodes see `tmp_path` late."""
    sb = Sandbox.up(SandboxSpec(short_dir / "late", nodes=2))
    try:
        try:
            faults.late_files(sb, tmp_path, LATE)
        except NotPermitted as refused:
            pytest.skip(str(refused))
        yield sb
    finally:
        sb.down()
    shutil.rmtree(short_dir / "late")


def on(sb: Sandbox, node: str, script: str, *args: object) -> str:
    done = client(sb, "srun", "-N1", f"--nodelist={node}", "sh", "-c", script, "sh", *map(str, args))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_each_node_sees_its_own_at_once_and_the_others_late(own: Sandbox, tmp_path: Path) -> None:
    look = 'cat "$1" 2>/dev/null || echo none'
    began = time.monotonic()
    assert on(own, "node1", look, tmp_path / "a") == "none"
    assert on(own, "node2", 'echo mine > "$1"; cat "$1"', tmp_path / "a") == "mine"
    assert (tmp_path / "a").read_text() == "mine\n", "all others see the folder as it is"
    seen = on(own, "node1", look, tmp_path / "a")
    if time.monotonic() - began < LATE:  # else the machine was too busy to see it
        assert seen == "none"
    time.sleep(LATE)
    assert on(own, "node1", look, tmp_path / "a") == "mine"


def test_a_node_that_comes_back_has_its_view_again_until_all_is_healed(own: Sandbox, tmp_path: Path) -> None:
    assert [fault.undo for fault in faults.active(own)] == [f"fresh-files {tmp_path}"]
    where = f"grep -c '{tmp_path}' /proc/self/mounts || true"
    faults.kill_node(own, "node1")
    faults.restore_node(own, "node1")
    assert on(own, "node1", where) == "1"
    with pytest.raises(UsageError, match="has no delay"):
        faults.fresh_files(own, tmp_path / "other")
    faults.heal(own)
    assert faults.active(own) == [] and own.late() == {}
    assert [on(own, node, where) for node in own.node_names] == ["0", "0"]


def test_what_is_missing_is_reported(own: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotPermitted, match="it needs root"):
        fault_disks.late_files(own, tmp_path / "never", LATE)
    assert not (tmp_path / "never").exists()

"""`transom check` where Slurm itself calls it: a Prolog, an Epilog and a HealthCheckProgram of a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_support import require_slurm

from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.state import SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
REPO = Path(__file__).resolve().parents[2]
XID = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Site:
    """A cluster whose administrator has put the check into one of the places, and each node's kernel log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "kernel"
        self.logs.mkdir()
        for node in ("node1", "node2"):
            (self.logs / node).touch()
        self.cluster: Sandbox | None = None

    def up(self, place: str, name: str, **settings: str) -> Sandbox:
        script = self.folder / f"{name}.sh"
        said = self.folder / f"{name}.said"
        said.touch()
        said.chmod(0o666)
        script.write_text(
            "#!/bin/bash\n"
            f"export PATH={os.environ['PATH']} PYTHONPATH={REPO} TRANSOM_KERNEL_LOG={self.logs}\n"
            f"export SLURM_CONF={self.folder}/site/slurm.conf\n"
            f"{sys.executable} -P -m transom_cli check --as {place} --off gpu_count >> {said} 2>&1\n"
            f'code=$?\necho "$SLURMD_NODENAME $code" >> {said}\nexit $code\n'
        )
        script.chmod(0o755)
        extra = {name: str(script), **settings}
        self.cluster = Sandbox.up(SandboxSpec(self.folder / "site", nodes=2, gpus_per_node=0, extra=extra))
        return self.cluster

    def breaks(self, node: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        (self.logs / node).write_text(f"{stamp} {XID}\n")

    def until(self, node: str, ready: Callable[[str], bool], patience: float = 60.0) -> str:
        assert self.cluster is not None
        deadline = time.monotonic() + patience
        while not ready(said := self.cluster.slurm("sinfo", "-h", "-n", node, "-o", "%T %E")):
            logs = "\n".join(p.read_text() for p in self.folder.glob("*.said"))
            assert time.monotonic() < deadline, f"{said}\n{logs}"
            time.sleep(0.5)
        return said

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self.cluster is not None
        env = {**os.environ, **self.cluster.env()}
        return subprocess.run(["srun", *words], env=env, capture_output=True, text=True, timeout=90, check=False)


@pytest.fixture
def site(short_dir: Path, tmp_path: Path) -> Iterator[Site]:
    require_slurm()
    folder = short_dir / tmp_path.name[-12:]
    folder.mkdir()
    folder.chmod(0o755)
    made = Site(folder)
    yield made
    if made.cluster is not None:
        made.cluster.down()


def test_a_prolog_lets_a_job_in_and_keeps_it_off_a_bad_node(site: Site) -> None:
    site.up("prolog", "Prolog")
    assert site.run("-N1", "-w", "node1", "true").returncode == 0
    site.breaks("node2")
    site.run("-N1", "-w", "node2", "-t1", "--immediate=20", "true")
    site.until("node2", lambda said: "drain" in said)
    assert "drain" not in site.until("node1", lambda said: True)


def test_an_epilog_drains_the_node_that_broke_under_a_job(site: Site) -> None:
    site.up("epilog", "Epilog")
    assert site.run("-N1", "-w", "node1", "true").returncode == 0
    time.sleep(2.0)
    assert "drain" not in site.until("node1", lambda said: True)
    site.breaks("node1")
    site.run("-N1", "-w", "node1", "true")
    site.until("node1", lambda said: "drain" in said)


def test_a_health_check_program_drains_with_its_own_reason_and_leaves_anothers(site: Site) -> None:
    cluster = site.up("healthcheck", "HealthCheckProgram", HealthCheckInterval="3", HealthCheckNodeState="ANY")
    cluster.slurm("scontrol", "update", "nodename=node1", "state=drain", "reason=a fan")
    site.breaks("node1")
    site.breaks("node2")
    said = site.until("node2", lambda words: "transom: gpu_xid:" in words)
    assert "79" in said
    time.sleep(5.0)
    assert "a fan" in site.until("node1", lambda said: True)

"""`--accounting`: a real slurmdbd on a real MariaDB, so that sacct works."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from slurm_support import client, release_home, require_slurm

from transom_cli.sandbox import processes
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import SlurmUnknown
from transom_cli.slurm.runner import Runner

pytestmark = pytest.mark.sandbox


def test_sacct_shows_how_a_job_ended(short_dir: Path) -> None:
    require_slurm(accounting=True)
    sb = Sandbox.up(SandboxSpec(short_dir / "a", nodes=2, accounting=True, home=release_home()))
    try:
        assert client(sb, "srun", "-N2", "--gres=gpu:1", "bash", "-c", "exit 3").returncode == 3
        ask = ("sacct", "-a", "-D", "-X", "-n", "-P", "-o", "JobIDRaw,State,NodeList,ExitCode")
        deadline = time.monotonic() + 30
        while not (found := sb.slurm(*ask).strip()).endswith("FAILED|node[1-2]|3:0"):
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
        by_name = CliSlurm(
            Runner(env={**os.environ, **sb.env()}, cluster=sb.cluster)
        )  # as on a site of several clusters
        assert len(by_name.nodes()) == 2 and [job.exit_code for job in by_name.jobs()] == [3]
        assert by_name.history(1)[0].exit_code == 3
        with pytest.raises(SlurmUnknown, match="did not answer"):
            CliSlurm(Runner(env={**os.environ, **sb.env()}, cluster="elsewhere")).jobs()
        assert (sb.dir / "slurmdbd.conf").stat().st_mode & 0o777 == 0o600
    finally:
        sb.down()
    assert processes.of_sandbox(sb.cluster) == []

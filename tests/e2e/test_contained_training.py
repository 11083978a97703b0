"""A PyTorch training in a container: user, mount and PID namespaces of its own, and its own root file system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from e2e.support import Person, at_step, over, remembering

from transom_cli.layout import RunDir
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
STAND_IN = Path(__file__).with_name("apptainer_stand_in")
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    done = subprocess.run(["unshare", "-Urmpf", "--mount-proc", "true"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr.decode()}")


@pytest.fixture
def contained(person: Person, tmp_path: Path) -> tuple[str, ...]:
    """Flags of `transom run` for an image that has Python and torch, and this folder's trainer."""
    pytest.importorskip("torch")
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.symlink_to(STAND_IN)
    pythons = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1], TESTS}
    image = ":".join(("/usr", "/etc", *sorted(str(p) for p in pythons if not p.is_relative_to("/usr"))))
    path = f'job.setup=["export PATH={program.parent}:$PATH"]'
    return "--apptainer", image, "--set", path, "--set", f'launch.container.mounts=["{tmp_path}"]'


def evidence(run: RunDir, job_id: int, name: str) -> str:
    return (run.attempt(job_id, 0).evidence("l1") / name).read_text()


@pytest.mark.timeout(300)
def test_a_contained_training_is_seen_examined_and_recovered_from_memory(
    person: Person, sandbox: Sandbox, tmp_path: Path, contained: tuple[str, ...], undisturbed: str
) -> None:
    """Nothing is on disk when rank 1 hangs: the relaunch resumes from the daemons outside the container."""
    command = remembering(tmp_path / "final", "--delay", "0.4")
    run = person.start("-N", "2", *contained, "--set", "detect.floor=3", "--", *command)
    job_id = person.wait(run, at_step(10), 120)["job_id"]
    view = person.wait(run, lambda view: view["memory"] >= 0, 60)  # as the node's daemon says, outside
    assert not view["blind"], "heartbeats pass through the wall"
    _require_namespaces(run, job_id)
    _stop_trainer(job_id, "node2")
    view = person.wait(run, over, 200)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 0, []), view["incidents"]
    for rank in (0, 1):
        assert "remembering.py" in evidence(run, job_id, f"rank-{rank}.stack.txt")
    said = (run.attempt(job_id, 0).logs(1) / "rank-0.log").read_text()
    assert "goes on from step" in said and "from step 0" not in said, said
    assert (tmp_path / "final").read_text() == undisturbed


@pytest.mark.timeout(200)
def test_a_shm_of_the_containers_own_is_reported(person: Person, tmp_path: Path, contained: tuple[str, ...]) -> None:
    """No heartbeat passes, so no hang could be found: the rank says so, and the screen does."""
    setup = ("--set", 'job.env={CONTAINED_SHM="private"}', "--set", "restart.relaunches=0")
    run = person.start("-N", "1", *contained, *setup, "--", *remembering(tmp_path / "final"))
    job_id = person.wait(run, lambda view: bool(view["job_id"]))["job_id"]
    log = run.attempt(job_id, 0).logs(0) / "rank-0.log"
    person.wait(run, lambda _: log.exists() and "no heartbeats from rank 0" in log.read_text(), 90)
    person.transom("stop", run.run_id)


def _require_namespaces(run: RunDir, job_id: int) -> None:
    """The trainer is process 1 of its own namespace, so the record names no process outside."""
    pid = int(_trainer_pids(job_id, "node1")[0])
    assert Path(f"/proc/{pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    assert Path(f"/proc/{pid}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
    assert Path(f"/proc/{pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()


def _trainer_pids(job_id: int, node: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            env = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = {f"SLURM_JOB_ID={job_id}".encode(), f"SLURMD_NODENAME={node}".encode()} <= set(env)
        if ours and words[0].endswith(b"python") and any(w.endswith(b"remembering.py") for w in words[:3]):
            found.append(folder.name)
    return found


def _stop_trainer(job_id: int, node: str) -> None:
    for pid in _trainer_pids(job_id, node):
        subprocess.run(["kill", "-STOP", pid], check=True)

"""What a person gets wrong, or a machine: each with its words and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.blind import blind
from e2e.support import COMMAND, Person
from processes import wait_for

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = pytest.mark.sandbox
GPT = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"


def test_no_slurm_on_this_machine(person: Person) -> None:
    person.env = {**person.env, "PATH": "/nonexistent"}
    done = person.run("--", *COMMAND)
    assert done.returncode == 12
    assert "slurm-client" in done.stderr
    assert not person.root.exists(), "nothing is left behind"


def test_slurm_does_not_answer(person: Person, sandbox: Sandbox) -> None:
    faults.kill_controller(sandbox)
    done = person.run("--", *COMMAND)
    assert done.returncode == 12
    assert "Slurm" in done.stderr and "hint:" in done.stderr


def test_detached_run_that_slurm_refuses_fails_at_once(person: Person) -> None:
    done = person.run("--detach", "--force", "-p", "nowhere", "--", *COMMAND)
    assert (done.returncode, done.stdout) == (1, ""), "a script would take the ID for that of a run"
    assert (
        "was not submitted" in done.stderr
        and "invalid partition" in done.stderr
        and "the partitions are: " in done.stderr
    )


def test_unknown_partition_is_refused_before_the_queue(person: Person, sandbox: Sandbox) -> None:
    done = person.run("-p", "nowhere", "--", *COMMAND)
    names = ", ".join(dict.fromkeys(sandbox.slurm("sinfo", "--noheader", "--format=%R").split()))
    assert done.returncode == 2, done
    assert "There is no partition `nowhere`" in done.stderr and f"the partitions are: {names}" in done.stderr
    assert not person.root.exists(), "nothing is left behind"


def test_gpus_that_no_node_has_are_refused_before_the_queue(person: Person, sandbox: Sandbox) -> None:
    done = person.run("-N", "2", "--gpus-per-node", "9", "--", *COMMAND)
    assert done.returncode == 2 and "`--gpus-per-node 2` fits" in done.stderr
    assert "0 of 4 nodes have 9 GPUs or more; the job asks for 2" in done.stderr
    assert not person.root.exists() and sandbox.slurm("squeue", "--noheader") == ""


def test_fault_needs_a_job_only_if_several_run(person: Person, sandbox: Sandbox) -> None:
    words = ("sandbox", "fault", "kill-launcher", "--dir", str(sandbox.dir))
    done = person.transom(*words)
    assert done.returncode == 2 and "No job runs in the sandbox" in done.stderr
    for _ in range(2):
        sandbox.slurm("sbatch", "--output=/dev/null", "--wrap=sleep 60")
    wait_for(lambda: sandbox.slurm("squeue", "--noheader", "-t", "RUNNING").count("\n") >= 1)
    done = person.transom(*words)
    assert done.returncode == 2 and "2 jobs run in the sandbox" in done.stderr, done
    assert "choose one with `--job`" in done.stderr


def test_all_bad_keys_at_once(person: Person, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("nme = 'x'\n[job]\nnodez = 3\n[restart]\nbackoff = -1\n")
    done = person.run("-f", str(file), "--", *COMMAND)
    assert done.returncode == 2
    for words in (
        "3 settings are invalid",
        "nme",
        "did you mean `name`",
        "nodez",
        "did you mean `job.nodes`",
        "restart.backoff",
    ):
        assert words in done.stderr


def test_a_script_that_does_not_exist(person: Person) -> None:
    done = person.run("nowhere.sbatch")
    assert done.returncode == 2
    assert "no such script: nowhere.sbatch" in done.stderr


def test_a_folder_is_neither_a_script_nor_a_command(person: Person, tmp_path: Path) -> None:
    done = person.run(str(tmp_path))
    assert done.returncode == 2 and "is a folder, neither a script nor a command" in done.stderr


def test_a_dry_run_shows_the_operators_own_job(person: Person) -> None:
    done = person.run("--dry-run", "--operator", "job", "-N", "1", "--", "true")
    assert done.returncode == 0 and "--job-name=operator-run-" in done.stderr and "operator" not in done.stdout


def test_an_array_that_runs_cannot_follow_is_refused(person: Person, tmp_path: Path) -> None:
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH --array=1-4%2\ntrue\n")
    done = person.run("a.sbatch")
    assert done.returncode == 2
    assert "array" in done.stderr and "--array=1-4%2" in done.stderr
    (tmp_path / "a.sbatch").write_text("#!/bin/bash\n#SBATCH --array=1-4\ntrue\n")
    done = person.run("--foreground", "a.sbatch")
    assert done.returncode == 2 and "`a.sbatch` has 4 elements" in done.stderr


def test_no_such_run(person: Person) -> None:
    done = person.transom("attach", "nothing")
    assert done.returncode == 10


@pytest.mark.root
def test_no_space_left(person: Person, sandbox: Sandbox, short_dir: Path) -> None:
    disk = short_dir / "full"
    faults.fill_disk(sandbox, disk)
    person.root = disk / "runs"
    done = person.run("--", *COMMAND)
    faults.free_disk(sandbox, disk, unmount=True)
    assert done.returncode == 1
    assert "no space" in done.stderr.lower() and "hint:" in done.stderr


@pytest.fixture
def half_blind(person: Person, sandbox: Sandbox) -> Iterator[Person]:
    person.root.mkdir()
    blind(sandbox, "node4", person.root)
    yield person
    faults.kill_node(sandbox, "node4")


@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (("-N", "1", "-x", "node[1-3]"), 0),
        # the other node can train: first without node4, for which Slurm finds too few nodes, and then node4 is let in
        pytest.param(("-N", "2", "-x", "node[1-2]"), 1, marks=pytest.mark.long),
    ],
)
def test_a_run_directory_that_a_node_cannot_see(half_blind: Person, words: tuple[str, ...], starts: int) -> None:
    done = half_blind.run(*words, "--", *COMMAND, "--steps", "5")
    assert done.returncode == 14
    assert "node4" in done.stderr and "run directory" in done.stderr
    assert half_blind.status(half_blind.newest())["starts"] == starts


def _train(person: Person, folder: Path, steps: int) -> tuple[int, str, str]:
    """A real training with real checkpoints in `folder`: exit code, what transom said, rank 0's log."""
    done = person.run(
        *("-N", "1", "--set", f"checkpoint.directory={folder}", "--"),
        *(sys.executable, str(GPT), "--steps", str(steps), "--every", "4", "--layers", "1", "--width", "32"),
    )
    logs = sorted(person.newest().attempts.glob("*/logs/0/rank-0.log"))
    return done.returncode, done.stderr, logs[-1].read_text()


def _damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.long
def test_damaged_checkpoints_are_passed_over_and_when_none_is_left_the_run_stops(
    person: Person, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "checkpoints"
    assert _train(person, folder, 8)[0] == 0
    _damage(folder / "step-8" / "__0_0.distcp")
    code, _, log = _train(person, folder, 12)
    assert code == 0
    assert "step-8" in log and "passed over" in log
    assert "restored step-4" in log
    for file in folder.glob("step-*/__0_0.distcp"):
        _damage(file)
    code, said, log = _train(person, folder, 16)
    assert code == 15, said + log
    assert "none of them restores" in said
    assert {p.name for p in folder.glob("step-*")} >= {"step-12"}, "nothing is deleted"

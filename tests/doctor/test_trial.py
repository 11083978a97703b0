"""`doctor --site --job`: what a job shows on a real Slurm, and how refusals are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm
from slurm_support import OrdinaryUser

from transom_cli.doctor import trial as module
from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.doctor.trial import Trial, of_trial, try_job
from transom_cli.errors import TransomError
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.slurm.port import SlurmDenied, Submission

FACTS = (
    "began 10.0",
    "reach 0 n1",
    "reach 1 n2",
    "step 10.5",
    "stepped 0 11.0",
    "got hello yes",
    "kept hello",
    "done 11.5",
)
GOOD = Trial(
    given="transom:doctor-x", comment="transom:doctor-x", waited=2.0, seen=0.5, facts=FACTS, requeued=3.0,
)  # fmt: skip


def found(trial: Trial) -> dict[str, Symptom]:
    return {one.about: one for one in of_trial(trial)}


def refused(**calls: str) -> Trial:
    return replace(GOOD, refused={name.replace("_", " "): why for name, why in calls.items()})


def test_each_line_of_a_job_without_trouble() -> None:
    judged = found(GOOD)
    assert {about for about, one in judged.items() if one.grade is not Grade.OK} == {
        "step environment",
        "from a batch host",
    }
    assert "2.0 s" in judged["start"].words and "took 0.5 s" in judged["step"].words
    assert judged["from a batch host"].words.startswith("does not reach the slurmds of n2")
    assert "--export=ALL" in judged["step environment"].hint


@pytest.mark.parametrize(
    ("trial", "about", "grade", "hint"),
    [
        (replace(GOOD, error="Invalid account"), "job", Grade.FAIL, "job.account"),
        (replace(GOOD, comment="rewritten"), "comment", Grade.NOTE, ""),
        (refused(comment="Access denied"), "comment", Grade.NOTE, ""),
        (refused(release="Access denied"), "modify", Grade.FAIL, "scontrol release"),
        (refused(exclusions="Access denied"), "modify", Grade.WARN, 'restart.how = "resubmit"'),
        (refused(start_time="Access denied"), "modify", Grade.NOTE, 'restart.how = "resubmit"'),
        (replace(GOOD, waited=None, reason="Resources"), "start", Grade.NOTE, "repeat"),
        (replace(GOOD, seen=None, facts=()), "shared root", Grade.FAIL, "set `root`"),
        (replace(GOOD, facts=("began 1", "step 1", "stepped 1 2")), "step", Grade.FAIL, "salloc"),
        (replace(GOOD, facts=("step 1", "stepped 0 31", "got yes", "kept yes")), "step", Grade.NOTE, ""),
        (replace(GOOD, facts=("step 1", "stepped 0 2", "got", "kept")), "step environment", Grade.FAIL, "TaskProlog"),
        (replace(GOOD, requeued=None, requeue=False), "requeue job", Grade.WARN, 'restart.how = "resubmit"'),
    ],
)
def test_what_a_job_shows_and_what_to_set(trial: Trial, about: str, grade: Grade, hint: str) -> None:
    one = found(trial)[about]
    assert one.grade is grade and hint in one.hint


class Refusing(FakeSlurm):
    """A site whose job_submit plugin refuses what `calls` names."""

    calls: tuple[str, ...] = ()

    def update_pending(self, *args: object, **more: object) -> None:
        raise SlurmDenied("Slurm refused `scontrol update`", "Slurm said: Access/permission denied")

    def submit(self, submission: Submission) -> int:
        if "submit" in self.calls:
            raise TransomError("Slurm refused `sbatch`", "Slurm said: Invalid account")
        return super().submit(submission)


def test_refusal_is_noted_and_the_rest_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_WITHIN", 0.05)  # nothing runs the script
    slurm = Refusing()
    said: list[str] = []
    trial = try_job(slurm, tmp_path, (), slurm.nodes(), sleep=slurm.tick, say=said.append)
    assert trial.refused == {"exclusions": "Slurm said: Access/permission denied"}
    assert trial.waited is not None and list(tmp_path.iterdir()) == []
    assert said[0] == "submitting a job of one task" and "waiting for Slurm to start it" in said[1]
    assert all(job.state.ended for job in slurm.jobs()), "the job is cancelled"
    slurm.calls = ("submit",)
    assert "Invalid account" in try_job(slurm, tmp_path, (), (), sleep=slurm.tick).error


def doctor(root: Path, env: dict[str, str], user: OrdinaryUser | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    argv = [sys.executable, "-m", "transom_cli", "doctor", "--site", "--job", "--json", "--root", str(root)]
    if user is None:
        full = {**os.environ, **env}
        done = subprocess.run(argv, env=full, capture_output=True, text=True, check=False, timeout=180)
    else:
        done = user.run(argv, env, timeout_s=180)
    assert done.stdout, done.stderr
    return done.returncode, {one["about"]: one for one in json.loads(done.stdout)["found"]}


@pytest.mark.sandbox
def test_doctor_finds_nothing_that_prevents_runs_on_a_real_slurm(healed_sandbox: Sandbox, short_dir: Path) -> None:
    root = short_dir / "doctor"
    root.mkdir()
    code, lines = doctor(root, {**healed_sandbox.env(), "TRANSOM_JOB__SBATCH": "--mem=100"})
    bad = {about: one["words"] for about, one in lines.items() if one["grade"] == "fail"}
    assert code == 0 and bad == {}
    for about in (
        "start",
        "shared root",
        "from a batch host",
        "step",
        "comment",
        "modify",
        "requeue job",
        "from this host",
        "probe",
    ):
        assert lines[about]["grade"] == "ok", lines[about]
    assert list(root.iterdir()) == [], "nothing is left"
    states = healed_sandbox.slurm("squeue", "-h", "-a", "-o", "%T %j").splitlines()
    assert not [row for row in states if row.startswith(("PENDING", "RUNNING"))]

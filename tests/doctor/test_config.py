"""The doctor's judges of Slurm's configuration, on what each release prints (tests/slurm/samples)."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.doctor.config import config_of, of_cluster, of_site, partition_of
from transom_cli.doctor.symptom import Grade, Symptom

SAMPLES = Path(__file__).parents[1] / "slurm" / "samples"
RELEASES = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
in_each = pytest.mark.parametrize("release", RELEASES)


def judged(release: str, kind: str = "", **more: str) -> dict[str, Symptom]:
    config = config_of((SAMPLES / release / f"config{kind}.txt").read_text())
    partition = partition_of((SAMPLES / release / f"partition{kind}.txt").read_text())
    config |= more
    return {one.about: one for one in (*of_cluster(config), *of_site(config, partition))}


@in_each
def test_defaults_of_slurm_need_nothing(release: str) -> None:
    found = judged(release)
    assert {about for about, one in found.items() if one.grade is not Grade.OK} <= {"accounting", "stray processes"}
    assert found["prolog"].words.startswith("the site runs no program")
    assert found["preemption"].words == "no job is preempted"


@in_each
def test_strict_site_is_told_what_follows(release: str) -> None:
    found = judged(release, "_strict")
    assert found["requeue"].words.startswith("JobRequeue=0: ")
    assert found["kill wait"].grade is Grade.WARN and "only 5 s" in found["kill wait"].words
    assert found["wait time"].grade is Grade.NOTE and "WaitTime=30: " in found["wait time"].words
    assert found["prolog"].words.startswith("Prolog=/bin/true, TaskProlog=/bin/true: ")
    assert found["prolog"].hint.endswith("restart.release_held = true")
    assert "is requeued; a final checkpoint has 5 s" in found["preemption"].words
    assert found["preemption"].grade is Grade.NOTE


@in_each
def test_modes_of_preemption(release: str) -> None:
    config = config_of((SAMPLES / release / "config_strict.txt").read_text())
    partition = partition_of((SAMPLES / release / "partition_strict.txt").read_text())
    for mode, words in (("CANCEL", "cancelled, and transom starts it again"), ("SUSPEND,GANG", "the run waits")):
        found = {one.about: one for one in of_site(config, {**partition, "PreemptMode": mode})}
        assert words in found["preemption"].words


@in_each
def test_memory_limit_of_cgroups_counts_snapshots(release: str) -> None:
    plain = judged(release, TaskPlugin="task/cgroup,task/affinity", ConstrainCores="yes")["cgroups"]
    assert plain.grade is Grade.OK and plain.words.endswith("confines steps: Cores")
    limited = judged(release, TaskPlugin="task/cgroup", ConstrainCores="yes", ConstrainRAMSpace="yes")["cgroups"]
    assert limited.grade is Grade.NOTE and "job.mem" in limited.hint


def test_lists_of_programs_in_newer_releases() -> None:
    config = {"Prolog[0]": "/a", "Prolog[1]": "/b", "PrologFlags": "Alloc", "PrologEpilogTimeout": "65534"}
    (one,) = [one for one in of_site(config, {}) if one.about == "prolog"]
    assert one.words.startswith("Prolog=/a, Prolog=/b: ")


def test_partition_that_is_the_default_is_judged() -> None:
    text = "PartitionName=a Default=NO GraceTime=0\nPartitionName=b Default=YES GraceTime=300 PreemptMode=REQUEUE\n"
    assert partition_of(text)["PartitionName"] == "b" and partition_of("") == {}
    config = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL", "KillWait": "30 sec"}
    (one,) = [one for one in of_site(config, partition_of(text)) if one.about == "preemption"]
    assert "requeued; a final checkpoint has 330 s" in one.words and not one.hint

"""The doctor reports what prevents transom from working, from readings of real systems."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_fake import FakeSlurm

from transom_cli.doctor import examine as examining
from transom_cli.doctor.config import config_of, of_cluster
from transom_cli.doctor.examine import _drain_ways, examine
from transom_cli.doctor.symptom import (
    DrainWay,
    Grade,
    Symptom,
    logind,
    of_cpu_limit,
    of_logout,
    of_rights,
    of_spool,
    of_versions,
)
from transom_cli.errors import UsageError
from transom_cli.slurm.port import BackendTrial
from transom_cli.slurm.runner import Runner
from transom_cli.view.findings import symptom_lines

CONFIG = """\
Configuration data as of 2026-01-01T10:00:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = alps
JobRequeue              = 1
KillWait                = 30 sec
ProctrackType           = proctrack/cgroup
SlurmUser               = slurm(64030)

Slurmctld(primary) at ctl is UP
"""
WITHOUT = BackendTrial(why_not="it is not in this Python")


def grades(found: list[Symptom]) -> dict[str, Grade]:
    return {one.about: one.grade for one in found}


def test_recommended_cluster_settings_are_ok() -> None:
    assert {one.grade for one in of_cluster(config_of(CONFIG))} == {Grade.OK}


@pytest.mark.parametrize(
    ("was", "now", "about", "grade"),
    [
        ("JobRequeue              = 1", "JobRequeue              = 0", "requeue", Grade.OK),
        ("KillWait                = 30 sec", "KillWait                = 5 sec", "kill wait", Grade.WARN),
        ("proctrack/cgroup", "proctrack/linuxproc", "stray processes", Grade.NOTE),
        ("accounting_storage/slurmdbd", "accounting_storage/none", "accounting", Grade.NOTE),
        ("accounting_storage/slurmdbd", "(null)", "accounting", Grade.NOTE),
    ],
)
def test_what_a_recovery_depends_on(was: str, now: str, about: str, grade: Grade) -> None:
    assert was in CONFIG
    assert grades(of_cluster(config_of(CONFIG.replace(was, now))))[about] is grade


def test_who_may_drain() -> None:
    config = config_of(CONFIG)
    assert of_rights("root", 0, config, "").grade is Grade.OK
    assert of_rights("slurm", 64030, config, "").grade is Grade.OK
    assert of_rights("ada", 1000, config, "Administrator").grade is Grade.OK
    assert of_rights("ada", 1000, config, "Operator").grade is Grade.NOTE, "Slurm asks for an administrator"
    assert of_rights("ada", 1000, config, "None").grade is of_rights("ada", 1000, config, "").grade is Grade.NOTE


def test_the_sites_ways_for_those_who_may_not(commands: Path, tmp_path: Path) -> None:
    config = config_of(CONFIG)
    two = [DrainWay("sudo -n drain"), DrainWay("the spool /s")]
    told = of_rights("ada", 1000, config, "", two)
    assert told.grade is Grade.OK and told.words.endswith("through sudo -n drain, then the spool /s")
    told = of_rights("ada", 1000, config, "", [*two, DrainWay("the spool /t", "not there")])
    assert told.grade is Grade.WARN and "the spool /t: not there" in told.words and "/s" not in told.words
    assert of_rights("root", 0, config, "", two).words == "root may drain nodes"
    ways = _drain_ways(lambda: ((str(tmp_path / "none"), "x"), tmp_path))
    assert [bool(way.broken) for way in ways] == [True, False]


def test_broken_site_drain_command_or_spool_is_reported(tmp_path: Path) -> None:
    def broken(command: tuple[str, ...], spool: Path | None = None) -> str:
        return _drain_ways(lambda: (command, spool))[0].broken

    (tmp_path / "plain").touch(mode=0o644)
    assert broken((str(tmp_path / "plain"), "x")).endswith("does not exist here or is not executable")
    assert "as a list of words" in broken(("sudo -n drain",))
    for mode, words in ((0o1777, ""), (0o777, "remove others' requests; it should be 1777"), (0o700, "")):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        assert broken((), folder).endswith(words) and bool(broken((), folder)) is bool(words)
    assert broken((), tmp_path / "plain") == "it is not a folder"
    assert broken((), tmp_path / "none") == "No such file or directory"
    assert "you cannot put requests there" in of_spool(0o755, writable=False)


def test_machines_that_end_processes_at_logout() -> None:
    kill, excluded = logind(
        ["[Login]\n#KillUserProcesses=yes\n", "KillUserProcesses = yes\nKillExcludeUsers=eve bob\n"]
    )
    assert kill and excluded == ("eve", "bob")
    assert logind(["KillUserProcesses=yes\n", "KillUserProcesses=no\n"])[0] is False, "the later one holds"
    assert of_logout(kill, excluded, "ada", lingers=False).hint.startswith("loginctl enable-linger ada; then ")
    assert of_logout(kill, excluded, "ada", lingers=True).hint.startswith("transom service install "), "not enough"
    assert of_logout(kill, excluded, "bob", lingers=False).grade is Grade.OK
    assert of_logout(False, excluded, "ada", lingers=False).grade is Grade.OK


def test_limits_and_versions() -> None:
    assert of_cpu_limit(float("inf")) is None
    assert [of_cpu_limit(s).grade for s in (600.0, 36000.0)] == [Grade.WARN, Grade.NOTE]  # type: ignore[union-attr]
    assert of_versions({"squeue": "22.05.8", "sbatch": "22.05.8"}).words == "22.05.8"
    assert of_versions({"squeue": "22.05.8", "sbatch": "24.11.1"}).grade is Grade.WARN
    assert of_versions({"squeue": "", "sbatch": ""}).grade is Grade.NOTE


@given(st.text(), st.text(), st.text(), st.sampled_from(list(Grade)), st.integers(60, 200))
def test_lines_fit_the_width_and_contain_no_control_characters(
    about: str, words: str, hint: str, grade: Grade, width: int
) -> None:
    for line in symptom_lines(Symptom(about[:10], grade, words, hint), width):
        assert len(line) <= width or len(about[:10]) != len(repr(about[:10])) - 2
        assert line.isprintable()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands, as far as the doctor asks them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "config").write_text(CONFIG)
    for name in (*examining.NEEDED, "sacct", "sacctmgr"):
        said = f"cat {tmp_path}/config" if name == "scontrol" else "echo None" if name == "sacctmgr" else "true"
        script = f'#!/bin/sh\nif [ "$1" = --version ]; then echo slurm 22.05.8; else {said}; fi\n'
        (folder / name).write_text(script)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_doctor_passes_on_a_good_machine(commands: Path, tmp_path: Path) -> None:
    found = list(examine(FakeSlurm(), Runner(), lambda: tmp_path / "not" / "yet" / "there", lambda: WITHOUT))
    told = grades(found)
    assert Grade.FAIL not in told.values()
    assert [told[name] for name in ("settings", "runs", "slurm", "controller", "requeue")] == [Grade.OK] * 5
    assert next(one.words for one in found if one.about == "controller").startswith("alps: answers in ")
    assert list(tmp_path.glob(".transom-doctor-*")) == [], "nothing is left"


def test_places_where_it_cannot_work(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> Path:
        raise UsageError("1 setting is wrong", "job.nodes: not a number", "correct it")

    assert grades(list(examine(FakeSlurm(), Runner(), wrong, lambda: WITHOUT)))["settings"] is Grade.FAIL
    (tmp_path / "file").touch()
    assert (
        grades(list(examine(FakeSlurm(), Runner(), lambda: tmp_path / "file" / "runs", lambda: WITHOUT)))["runs"]
        is Grade.FAIL
    )
    (commands / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert grades(list(examine(FakeSlurm(), Runner(), lambda: tmp_path, lambda: WITHOUT)))["controller"] is Grade.FAIL
    monkeypatch.setenv("PATH", str(tmp_path))
    (one,) = [s for s in examine(FakeSlurm(), Runner(), lambda: tmp_path, lambda: WITHOUT) if s.about == "slurm"]
    assert one.grade is Grade.FAIL and "sbatch" in one.words and "transom sandbox up" in one.hint


def test_missing_pyslurm_is_a_note(commands: Path) -> None:
    def told(trial: BackendTrial) -> Symptom:
        return next(s for s in examine(FakeSlurm(), Runner(), Path, lambda: trial) if s.about == "pyslurm")

    without = told(WITHOUT)
    assert without.grade is Grade.NOTE and "it is not in this Python" in without.words
    there = told(BackendTrial("25.11.2 on Python 3.14, with Slurm 26.05.5: 2 jobs of yours", detours={"submit": "why"}))
    assert there.grade is Grade.OK and "Slurm 26.05.5" in there.words and "submit: why" in there.words
    wished = told(BackendTrial(why_not="no such file", wish="slurm.pyslurm_python = /nope"))
    assert wished.grade is Grade.WARN and "requested by slurm.pyslurm_python = /nope" in wished.words and wished.hint


def test_the_command(commands: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "transom_cli", "doctor", "--root", str(tmp_path), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert said["schema"] == 1 and said["well"] is (done.returncode == 0)
    assert {"about", "grade", "words", "hint"} == set(said["found"][0])


def test_cluster_from_the_settings_is_examined(commands: Path, tmp_path: Path) -> None:
    (commands / "scontrol").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked; echo "Unable to contact" >&2; exit 1\n'
    )
    argv = [sys.executable, "-m", "transom_cli", "doctor", "--root", str(tmp_path), "--json"]
    for name in ("alps", "alps,bern"):
        environ = {**os.environ, "TRANSOM_JOB__CLUSTER": name}
        subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)
    first, *rest = [line for line in (tmp_path / "asked").read_text().splitlines() if "config" in line]
    assert first == "--clusters=alps show config" and all("--clusters" not in line for line in rest)


def test_unknown_setting_is_reported(commands: Path, tmp_path: Path) -> None:
    """Also with --root, where no setting is needed to look at runs."""
    (tmp_path / "transom").mkdir()
    (tmp_path / "transom" / "config.toml").write_text('rooot = "/x"\n')
    argv = [sys.executable, "-m", "transom_cli", "doctor", "--root", str(tmp_path), "--json"]
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ)
    (one,) = [one for one in json.loads(done.stdout)["found"] if one["about"] == "settings"]
    assert done.returncode == 1 and one["grade"] == Grade.FAIL.value and "did you mean `root`?" in one["words"]

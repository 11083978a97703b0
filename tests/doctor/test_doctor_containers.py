"""The doctor reports what keeps a contained training from being seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from transom_cli.doctor.containers import ContainerHost, judge_containers, read_containers
from transom_cli.doctor.symptom import Grade

HOST = ContainerHost({"apptainer": "/usr/bin/apptainer"}, {"mount dev": "yes", "user bind control": "yes"}, True, 1, 1)
CONF = """\
# MOUNT DEV: [yes/no/minimal]
mount dev = minimal
user bind control = yes
allow setuid = no
"""


def grades(host: ContainerHost) -> list[Grade]:
    return [one.grade for one in judge_containers(host)]


def test_a_host_that_lets_everything_through_is_named_with_its_runtimes() -> None:
    (one,) = judge_containers(HOST)
    assert one.grade is Grade.OK and one.words.startswith("apptainer, pyxis: ")


def test_each_wall_is_reported_with_what_to_do() -> None:
    minimal = replace(HOST, settings={"mount dev": "minimal"})
    (one,) = judge_containers(minimal)
    assert one.grade is Grade.WARN and "no heartbeat" in one.words and "/dev/shm" in one.hint
    assert grades(replace(HOST, settings={"user bind control": "no"})) == [Grade.FAIL]
    assert grades(replace(HOST, settings={"allow setuid": "no"}, namespaces=0)) == [Grade.FAIL]
    assert grades(replace(HOST, namespaces=0)) == [Grade.OK], "a setuid apptainer needs none"
    assert grades(replace(HOST, ptrace=2)) == [Grade.NOTE]


def test_pyxis_alone_has_no_settings_of_apptainer() -> None:
    host = ContainerHost({"enroot": "/usr/bin/enroot"}, {"mount dev": "no"}, True)
    assert grades(host) == [Grade.OK]
    assert grades(ContainerHost()) == [Grade.NOTE]


def test_settings_are_read_from_apptainers_file(tmp_path: Path) -> None:
    (tmp_path / "apptainer").mkdir()
    (tmp_path / "apptainer" / "apptainer.conf").write_text(CONF)
    host = read_containers(tmp_path, tmp_path)
    assert host.settings == {"mount dev": "minimal", "user bind control": "yes", "allow setuid": "no"}
    assert (host.namespaces, host.ptrace) == (None, None)

"""The table of the contract: from what pytest writes to what a person reads."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import pytest
import slurm_contract
from contract_table import End, Tried, World, cases_table, contract, read_results, worlds_table

from transom_cli.errors import TransomError


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_contract, "find_tools", lambda **_: {})


def written(*cases: str) -> str:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


def case(name: str, slurm: str, by: str, end: str = "") -> str:
    found = {"slurm": slurm, "by": by, "case": name}
    properties = "".join(f'<property name="{key}" value="{value}"/>' for key, value in found.items())
    return f'<testcase name="{name}[{by}]"><properties>{properties}</properties>{end}</testcase>'


KEPT = [
    case("test_a_b[7]", "", "fake"),
    case("test_c", "", "fake", '<skipped type="pytest.skip" message="Skipped: starts nothing">x.py:1</skipped>'),
    case("test_a_b[7]", "22.05.8", "commands"),
    case("test_c", "22.05.8", "commands"),
    case("test_a_b[7]", "26.05.5", "pyslurm"),
]
FAILED = case("test_c", "26.05.5", "pyslurm", '<failure message="assert 1 == 2">long</failure>')
BESIDE = '<testcase name="test_spine"/>'


def test_case_by_world_with_the_reason_below() -> None:
    assert cases_table(read_results(written(*KEPT))).splitlines() == [
        "| case | fake | 22.05.8 commands | 26.05.5 pyslurm |",
        "| --- | --- | --- | --- |",
        "| a b [7] | kept | kept | kept |",
        "| c | – (1) | kept | – (2) |",
        "",
        "(1) starts nothing",
        "(2) it was not run",
    ]


def test_worlds_with_how_many_cases_were_kept() -> None:
    assert worlds_table(read_results(written(*KEPT, FAILED))).splitlines()[2:] == [
        "| fake | 1 | 1 | 0 | c: starts nothing |",
        "| 22.05.8 commands | 2 | 0 | 0 |  |",
        "| 26.05.5 pyslurm | 1 | 0 | 1 |  |",
    ]


def test_the_fake_is_counted_once_and_a_failure_in_one_run_is_not_hidden_by_another() -> None:
    fine = read_results(written(KEPT[0]))
    broken = read_results(written(case("test_a_b[7]", "", "fake", '<error message="x"/>')))
    assert contract([*fine, *fine]) == fine
    assert contract([*fine, *broken]) == contract([*broken, *fine]) == broken


def test_tests_outside_the_contract_are_listed_by_release() -> None:
    (one,) = read_results(written(BESIDE), "forky")
    assert one == Tried(World("forky", ""), "test_spine", End.KEPT) and contract([one]) == []


def test_unavailable_release_is_listed_last_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_mirror(*_: object) -> None:
        raise TransomError("`apt-get` failed (exit 100)", "Could not connect", "less build.log")

    monkeypatch.setattr(slurm_contract, "obtain", no_mirror)
    monkeypatch.setattr(slurm_contract, "run", lambda release: read_results(written(*KEPT, BESIDE), release))
    monkeypatch.setattr(sys, "argv", ["slurm_contract.py", "native", "forky"])
    assert slurm_contract.main() == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "native: test_spine: kept",
        "forky: NOT TRIED: `apt-get` failed (exit 100); Could not connect; less build.log",
    ]
    monkeypatch.setattr(sys, "argv", ["slurm_contract.py", "--obtain", "forky"])
    assert slurm_contract.main() == 1 and "forky: cannot be had: `apt-get` failed" in capsys.readouterr().out


def test_a_case_that_failed_fails_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_contract, "run", lambda release: read_results(written(*KEPT, FAILED), release))
    monkeypatch.setattr(sys, "argv", ["slurm_contract.py", "native"])
    assert slurm_contract.main() == 1 and "| c | – (1) | kept | FAILED |" in capsys.readouterr().out

"""Which way to Slurm the operator gets, by `slurm.backend` and by what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transom_cli.config.load import load
from transom_cli.config.model import SlurmCalls
from transom_cli.errors import UsageError
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.pyslurm.client import PySlurm
from transom_cli.wiring import slurm as wiring


@pytest.fixture(params=[True, False], ids=["installed", "not installed"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(wiring, "find_spec", lambda name: object() if request.param and name == "pyslurm" else None)
    return bool(request.param)


def test_by_itself_it_is_pyslurm_where_that_is_installed(installed: bool) -> None:
    chosen = wiring.lasting_slurm(SlurmCalls())
    assert type(chosen) is (PySlurm if installed else CliSlurm)
    if isinstance(chosen, PySlurm):
        assert chosen._worker.argv[0] == sys.executable and not chosen._fits, "its release is looked at first"
    assert type(wiring.slurm_client()) is CliSlurm, "who asks a few times does not wait for an import"


def test_the_commands_where_they_are_asked_for(installed: bool) -> None:
    assert type(wiring.lasting_slurm(SlurmCalls(backend="cli"))) is CliSlurm
    assert "not wanted" in wiring.try_pyslurm(SlurmCalls(backend="cli")).why_not


def test_pyslurm_of_any_release_where_it_is_asked_for_and_a_refusal_where_there_is_none(installed: bool) -> None:
    asked = SlurmCalls(backend="pyslurm", timeout=7)
    if installed:
        chosen = wiring.lasting_slurm(asked)
        assert isinstance(chosen, PySlurm) and chosen._fits and chosen._runner.timeout == 7
        return wiring.require_backend(asked)
    assert type(wiring.lasting_slurm(asked)) is CliSlurm, "an operator that lives on does not fail over it"
    assert "not in this Python" in wiring.try_pyslurm(asked).why_not
    with pytest.raises(UsageError, match="no pyslurm") as raised:
        wiring.require_backend(asked)
    assert "slurm.pyslurm_python" in raised.value.hint


def test_a_python_of_its_own(installed: bool, tmp_path: Path) -> None:
    settings = load(None, {}, {"TRANSOM_SLURM__PYSLURM_PYTHON": str(tmp_path / "python"), "HOME": str(tmp_path)})
    chosen = wiring.lasting_slurm(settings.slurm)
    assert isinstance(chosen, PySlurm) and chosen._worker.argv[0] == str(tmp_path / "python")
    wiring.require_backend(SlurmCalls(backend="pyslurm", pyslurm_python=tmp_path / "python"))


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        load(None, {}, {"TRANSOM_SLURM__BACKEND": "rest", "HOME": str(tmp_path)})
    assert "slurm.backend" in str(raised.value).lower().replace("__", ".")

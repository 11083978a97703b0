"""Which way to Slurm the operator gets, by `slurm.backend` and by what is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from transom_cli.bootstrap import slurm as bootstrap
from transom_cli.config.load import load
from transom_cli.config.model import SlurmCalls
from transom_cli.errors import UsageError
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.pyslurm.client import PySlurm


@pytest.fixture(params=[True, False], ids=["installed", "not installed"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(bootstrap, "find_spec", lambda name: object() if request.param and name == "pyslurm" else None)
    return bool(request.param)


def test_auto_uses_pyslurm_if_installed(installed: bool) -> None:
    chosen = bootstrap.long_lived_slurm(SlurmCalls())
    assert type(chosen) is (PySlurm if installed else CliSlurm)
    if isinstance(chosen, PySlurm):
        assert chosen._worker.argv[0] == sys.executable and not chosen._fits, "its release is looked at first"
    assert type(bootstrap.slurm_client()) is CliSlurm, "who asks a few times does not wait for an import"


def test_cli_backend_uses_the_commands(installed: bool) -> None:
    assert type(bootstrap.long_lived_slurm(SlurmCalls(backend="cli"))) is CliSlurm
    assert bootstrap.try_pyslurm(SlurmCalls(backend="cli")).why_not == 'slurm.backend = "cli"'


def test_pyslurm_backend_accepts_any_release_and_refuses_without_pyslurm(installed: bool) -> None:
    requested = SlurmCalls(backend="pyslurm", timeout=7)
    if installed:
        chosen = bootstrap.long_lived_slurm(requested)
        assert isinstance(chosen, PySlurm) and chosen._fits and chosen._runner.timeout == 7
        return
    assert type(bootstrap.long_lived_slurm(requested)) is CliSlurm, "an operator that lives on does not fail over it"
    assert "not installed for this Python" in bootstrap.try_pyslurm(requested).why_not
    with pytest.raises(UsageError, match="pyslurm does not work here") as raised:
        bootstrap.require_backend(requested)
    assert "slurm.pyslurm_python" in raised.value.hint


def test_pyslurm_python_setting_is_used(installed: bool, tmp_path: Path) -> None:
    settings = load(None, {}, {"TRANSOM_SLURM__PYSLURM_PYTHON": str(tmp_path / "python"), "HOME": str(tmp_path)})
    chosen = bootstrap.long_lived_slurm(settings.slurm)
    assert isinstance(chosen, PySlurm) and chosen._worker.argv[0] == str(tmp_path / "python")
    bootstrap.require_backend(SlurmCalls(pyslurm_python=tmp_path / "python"))  # auto: the commands do without it


HELLO = """#!/bin/sh
read question
echo "$question" >> "$0.asked"
echo '{"value": {"pyslurm": "25.11.2", "python": "3.14"}}'
read end
"""
NOT_ONE = {"none": None, "exits": "#!/bin/sh\nexit 3\n", "hangs": "#!/bin/sh\nexec sleep 600\n", "no text": "\x7fELF"}


def test_pyslurm_that_answers_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(HELLO)
    (tmp_path / "python").chmod(0o755)
    bootstrap.require_backend(SlurmCalls(backend="pyslurm", pyslurm_python=tmp_path / "python"))
    assert '"hello"' in (tmp_path / "python.asked").read_text()


@pytest.mark.parametrize("what", NOT_ONE)
def test_pyslurm_that_cannot_answer_is_refused_before_submission(tmp_path: Path, what: str) -> None:
    python, text = tmp_path / "python", NOT_ONE[what]
    if text is not None:
        python.write_text(text)
        python.chmod(0o755)
    with pytest.raises(UsageError, match="pyslurm does not work here") as raised:
        bootstrap.require_backend(SlurmCalls(backend="pyslurm", pyslurm_python=python, timeout=1))
    assert str(python) in raised.value.why and "slurm.pyslurm_python" in raised.value.hint
    wish = bootstrap.try_pyslurm(SlurmCalls(pyslurm_python=python, timeout=1)).wish
    assert wish == f"slurm.pyslurm_python = {python}"


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        load(None, {}, {"TRANSOM_SLURM__BACKEND": "rest", "HOME": str(tmp_path)})
    assert "slurm.backend" in str(raised.value).lower().replace("__", ".")

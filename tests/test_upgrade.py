"""An upgrade of transom under a live process."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transom_cli
from transom_cli import start

PACKAGE = Path(transom_cli.__file__).parent
PROGRAM = """
import sys, pathlib
folder = pathlib.Path({folder!r})
first = folder / "__init__.py"
first.write_text(first.read_text().replace('"0.1.0"', '"0.2.0"'))
from transom_cli.plural import what_only_the_new_version_has
"""


def test_half_upgraded_process_says_so_instead_of_a_traceback(tmp_path: Path) -> None:
    copy = tmp_path / "transom_cli"
    copy.mkdir()
    for name in ("start.py", "plural.py"):
        shutil.copy(PACKAGE / name, copy / name)
    (copy / "__init__.py").write_text('__version__ = "0.1.0"\n')
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(copy)))
    words = [sys.executable, "-I", str(copy / "start.py"), str(program)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "transom was upgraded while this process ran (version 0.1.0 before, 0.2.0 now)" in done.stderr
    assert "what_only_the_new_version_has" in done.stderr and "docs/upgrading.md" in done.stderr


def test_installation_that_has_not_changed_is_no_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start.upgraded() == ""
    monkeypatch.setattr(start, "_STARTED", (1, 2, "0.0.9"))
    assert start.upgraded().endswith(f"(version 0.0.9 before, {transom_cli.__version__} now)")


def late_imports(module: str) -> set[str]:
    """What functions of a module import from transom."""
    tree = ast.parse(Path(str(importlib.import_module(module).__file__)).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = {one.module for node in functions for one in ast.walk(node) if isinstance(one, ast.ImportFrom)}
    return {name for name in found if name and name.startswith("transom_cli.")}


def test_operator_has_imported_what_it_needs_for_a_recovery() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", "import sys; from transom_cli.bootstrap import operator; operator.import_ahead(); "
         "print(*(name for name in sys.modules if name.startswith('transom_cli')))"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    operators = [name for name in listed if ".supervise." in name or ".bootstrap." in name or ".slurm." in name]
    missing = {late for name in operators for late in late_imports(name)} - set(listed)
    assert missing - {"transom_cli.supervise.agent"} == set()


@pytest.mark.parametrize("module", ["handoff", "revive", "history", "node_release", "executor", "loop"])
def test_launcher_imports_nothing_late(module: str) -> None:
    assert late_imports(f"transom_cli.supervise.launcher.{module}") == set()

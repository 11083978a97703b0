"""Every process of transom's own starts without code that others left in the current directory or on PYTHONPATH."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from planted import Planted
from slurm_support import OrdinaryUser

from transom_cli.start import installed, own

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = [
    path
    for folder in ("transom_cli", "examples", "contrib", "sbatch_templates")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix in (".py", ".j2", "")
]
PYENV = Path("~/.pyenv/versions").expanduser()
PYTHONS = {sys.executable: f"{sys.version_info[0]}.{sys.version_info[1]}, this one"}
for minor in (10, 11, 12, 13, 14):
    found = [*sorted(PYENV.glob(f"3.{minor}.*/bin/python3.{minor}")), shutil.which(f"python3.{minor}")]
    PYTHONS |= {str(path): f"3.{minor}" for path in found[:1] if path}
SHOW = "import json, os, sys\nprint(json.dumps([sys.path, sys.argv, os.environ.get('PYTHONPATH')]))\n"


@pytest.fixture(params=PYTHONS, ids=PYTHONS.values())
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "planted", tmp_path / "marks")


@pytest.fixture
def show(tmp_path: Path) -> str:
    path = tmp_path / "show.py"
    path.write_text(SHOW)
    return str(path)


def run(argv: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        argv, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


def searched(show: str, cwd: Path, **env: str) -> list[str]:
    """Where a process of transom's own looks for modules."""
    return list(json.loads(run(own(show), cwd, **env).stdout)[0])


@pytest.mark.parametrize("pythonpath", ["", ":", ".", "planted", ":/nowhere", "..:/nowhere"])
def test_the_current_directory_is_never_searched(planted: Planted, show: str, python: str, pythonpath: str) -> None:
    done = run(own(show, "a", "-b", python=(python,)), planted.folder, PYTHONPATH=pythonpath)
    path, argv, kept = json.loads(done.stdout)
    assert argv == [show, "a", "-b"] and kept == pythonpath, "arguments and environment arrive as they are"
    assert {"", ".", str(planted.folder), str(planted.folder.parent)}.isdisjoint(path)
    assert all(os.path.isabs(entry) for entry in path)  # noqa: PTH117
    assert planted.marks == []


def test_any_interpreter_runs_this_very_transom(planted: Planted, python: str) -> None:
    """The probe's has the job's PyTorch and need not have transom."""
    done = run(own("transom_cli.supervise.agent.agent", "--help", python=(python,)), planted.folder)
    assert "--attempt-dir" in done.stdout
    assert planted.marks == []


def test_another_interpreter_runs_the_transom_that_it_has(planted: Planted, python: str, tmp_path: Path) -> None:
    """As with `launch.python`."""
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "transom_cli").symlink_to(ROOT / "transom_cli")
    argv = installed(str(tmp_path / "venv/bin/python"), "transom_cli.supervise.agent.agent", "--help")
    done = run(argv, planted.folder, PYTHONPATH=f":{planted.folder}")
    assert "--attempt-dir" in done.stdout
    assert planted.marks == []


def test_entries_of_pythonpath_that_nobody_else_can_change_are_searched(show: str, tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o755)
    link.symlink_to("mine")
    path = searched(show, tmp_path, PYTHONPATH=f"{mine}:{link}")
    assert path[:2] == [str(mine), str(link)]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_entries_of_pythonpath_that_others_can_write_are_left_out(show: str, tmp_path: Path, mode: int) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(mode)
    assert str(theirs) not in searched(show, tmp_path, PYTHONPATH=str(theirs))
    link = tmp_path / "link"
    link.symlink_to("theirs")
    assert str(link) not in searched(show, tmp_path, PYTHONPATH=str(link))


@pytest.mark.parametrize(("mode", "kept"), [(0o777, False), (0o775, False), (0o1777, True)])
def test_a_folder_above_an_entry_counts_too(show: str, tmp_path: Path, mode: int, kept: bool) -> None:
    """What is in a folder that others can write to can be replaced, unless the folder is sticky."""
    entry = tmp_path / "above" / "entry"
    entry.mkdir(parents=True, mode=0o755)
    entry.parent.chmod(mode)
    assert (str(entry) in searched(show, tmp_path, PYTHONPATH=str(entry))) is kept
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "link"
    (entry.parent / "via").symlink_to(elsewhere)
    elsewhere.mkdir(mode=0o755)
    link.symlink_to("above/via")
    assert (str(link) in searched(show, tmp_path, PYTHONPATH=str(link))) is kept
    here = entry.parent / "here"
    here.symlink_to(".")
    assert str(here) not in searched(show, tmp_path, PYTHONPATH=str(here))


@pytest.mark.root
def test_entries_of_pythonpath_that_belong_to_others_are_left_out(
    show: str, tmp_path: Path, ordinary_user: OrdinaryUser
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    (theirs / "below").mkdir(parents=True, mode=0o755)
    mine.symlink_to("theirs")
    os.chown(theirs, ordinary_user.uid, ordinary_user.gid)
    asked = f"{theirs}:{theirs}/below:{mine}"
    assert set(asked.split(":")).isdisjoint(searched(show, tmp_path, PYTHONPATH=asked))


def test_a_missing_package_is_explained_by_the_entries_that_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    (tmp_path / "asks.py").write_text("import not_there\n")
    done = subprocess.run(
        own(str(tmp_path / "asks.py")), env={**os.environ, "PYTHONPATH": str(tmp_path / "theirs")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "No module named 'not_there'" in done.stderr
    assert f"not searched for modules: {tmp_path}/theirs" in done.stderr


@pytest.mark.parametrize("has_own", [True, False])
def test_the_users_own_packages_are_found_as_python_finds_them(tmp_path: Path, has_own: bool, python: str) -> None:
    """`pip install --user`, also with PYTHONUSERBASE."""
    if "venv" in python:
        pytest.skip("a virtual environment has none")
    env = {"PYTHONUSERBASE": str(tmp_path)} | ({} if has_own else {"PYTHONNOUSERSITE": "1"})
    ask = [python, "-c", "import site; print(site.getusersitepackages())"]
    folder = Path(run(ask, tmp_path, **env).stdout.strip())
    folder.mkdir(parents=True)
    show = tmp_path / "show.py"
    show.write_text(SHOW)
    usual = json.loads(run([python, str(show)], tmp_path, **env).stdout)[0][1:]
    assert json.loads(run(own(str(show), python=(python,)), tmp_path, **env).stdout)[0] == usual
    assert (str(folder) in usual) is has_own


@pytest.fixture
def holder(planted: Planted, tmp_path: Path) -> Iterator[Path]:
    """The socket of a snapshot daemon that a rank in the planted folder starts."""
    path = tmp_path / "m" / "memory"
    rank = tmp_path / "rank.py"
    rank.write_text(
        "from transom_cli.ckpt.snapshot import client\n"
        f"line = client.reach_or_start({str(path)!r})\nprint('reached')\nline.close()\n"
    )
    done = run([sys.executable, str(rank)], planted.folder, TRANSOM_MEMORY_LINGER="1")
    assert done.stdout == "reached\n"
    yield path
    deadline = time.monotonic() + 20
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def test_the_snapshot_daemon_runs_nothing_from_the_trainers_directory(holder: Path, planted: Planted) -> None:
    assert holder.exists()
    assert planted.marks == []


def test_only_the_helper_starts_an_interpreter_with_transom() -> None:
    """`own` and `installed` make every command line; the rank's wrapper is started with -I -S by its path."""
    strays = []
    for path in SHIPPED:
        text = path.read_text(errors="replace")
        where = str(path.relative_to(ROOT))
        if path.suffix != ".py":
            strays += [where] if "-m transom_cli" in text else []
            continue
        if not any(word in text for word in ('"-m"', "-m transom_cli", "sys.executable")):
            continue
        tree = ast.parse(text)
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                strays += [f"{where}:{node.lineno}"] if "-m transom_cli" in node.value else []
            if isinstance(node, (ast.List, ast.Tuple)):
                words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
                module = next((b for a, b in pairwise(words) if a == "-m"), None)
                ours = isinstance(module, str) and module.split(".")[0] == "transom_cli"
                strays += [f"{where}:{node.lineno}"] if ours or (_is_executable(node) and len(words) > 1) else []
    assert [stray for stray in strays if not stray.startswith(ALLOWED)] == []


# The helper itself, and interpreters of trainers and of a release of Slurm, which are not transom's own processes.
ALLOWED = ("transom_cli/start.py:", "transom_cli/integrations/deepspeed.py:", "examples/demo/demo.py:")


def _is_executable(node: ast.List | ast.Tuple) -> bool:
    """Whether the first word is `sys.executable`."""
    first = node.elts[0] if node.elts else None
    return isinstance(first, ast.Attribute) and ast.unparse(first) == "sys.executable"

"""The templates are found in a checkout and in a wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from transom_cli.errors import TransomError
from transom_cli.submit.inputs import FOLDER, template_folder

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

REPO = Path(__file__).resolve().parents[2]
NAMES = {"_header.j2", "_container.j2", "srun.sbatch.j2", "torchrun.sbatch.j2"}


def test_a_checkout_has_them_beside_the_package() -> None:
    folder = template_folder(REPO / "transom_cli")
    assert folder == REPO / FOLDER and {path.name for path in folder.iterdir()} == NAMES


def test_the_wheel_puts_them_where_an_installed_package_looks(tmp_path: Path) -> None:
    built = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    [(source, inside)] = [pair for pair in built["force-include"].items() if pair[0] == FOLDER]
    assert (REPO / source).is_dir()
    installed = tmp_path / inside
    installed.mkdir(parents=True)
    (installed / "_header.j2").touch()
    assert template_folder(tmp_path / "transom_cli") == installed


def test_a_broken_installation_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(TransomError, match="sbatch templates are missing") as caught:
        template_folder(tmp_path / "transom_cli")
    assert str(tmp_path / "transom_cli" / FOLDER) in caught.value.why and "pip install" in caught.value.hint


@pytest.mark.long
def test_a_real_wheel_holds_them(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, REPO], check=True, timeout=200
    )
    [wheel] = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if f"/{FOLDER}/" in name}
    assert packed == {f"transom_cli/{FOLDER}/{name}" for name in NAMES}

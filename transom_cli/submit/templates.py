"""Where the sbatch templates lie: inside the package when installed from a wheel, beside it in a source checkout."""

from __future__ import annotations

from pathlib import Path

import transom_cli
from transom_cli.errors import TransomError

FOLDER = "sbatch_templates"


def template_folder(package: Path | None = None) -> Path:
    """The folder of the templates for the package at ``package`` (default: this one)."""
    package = package or Path(transom_cli.__file__).resolve().parent
    places = (package / FOLDER, package.parent / FOLDER)
    for place in places:
        if (place / "_header.j2").is_file():
            return place
    raise TransomError(
        "this installation of transom lacks its sbatch templates",
        why="looked in " + " and ".join(map(str, places)),
        hint="in the clone of transom: pip install --force-reinstall .",
    )

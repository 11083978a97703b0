"""Modules that somebody left in a folder: whoever imports one leaves a mark."""

from __future__ import annotations

from pathlib import Path

# transom's own name, what it imports first from the standard library and from elsewhere, and what Python looks for.
EVERYTHING = ("transom_cli", "json", "runpy", "site", "sitecustomize", "usercustomize", "linecache", "typer", "torch")


class Planted:
    """A folder that everyone can write to, with modules in it."""

    def __init__(self, folder: Path, marks: Path, names: tuple[str, ...] = EVERYTHING) -> None:
        self.folder, self._marks = folder, marks
        folder.mkdir()
        folder.chmod(0o777)
        marks.touch()
        marks.chmod(0o666)
        for name in names:
            (folder / name).mkdir()
            code = f"import sys\nwith open({str(marks)!r}, 'a') as file:\n    print(__file__, sys.argv, file=file)\n"
            (folder / name / "__init__.py").write_text(code)

    @property
    def marks(self) -> list[str]:
        return self._marks.read_text().splitlines()

"""The standard library's TOML parser, or the package that replaces it in Python 3.10."""

from pathlib import Path
from typing import Any

try:
    import tomllib as tomllib
except ModuleNotFoundError:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Return what is in a file; {} if there is none, or none that can be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):
        return {}

"""Completion of run ids, asked for at every press of TAB: with the standard library alone, and by names alone.

It only looks, and is silent about whatever is wrong: what cannot be read completes to nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import typer

from transom_cli.layout import RUN_ID

SITE_FILE = Path("/etc/transom.toml")
MOST = 100  # of ids, the newest: more would not fit a screen


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest runs whose ids start with ``incomplete``. None for a path: shells complete these by themselves."""
    if "/" in incomplete:
        return []
    root = ctx.params.get("root")
    with contextlib.suppress(OSError, RuntimeError):
        return newest(Path(root) if root else runs_root(os.environ), incomplete)
    return []


def newest(root: Path, start: str = "") -> list[str]:
    """Ids of runs in ``root``, the newest first. Raises OSError where it cannot be read."""
    matches = (RUN_ID.fullmatch(name) for name in (path.name for path in root.iterdir()) if name.startswith(start))
    dated = sorted(((match["stamp"], match[0]) for match in matches if match), reverse=True)
    return [name for _, name in dated[:MOST]]


def runs_root(environ: Mapping[str, str], site: Path = SITE_FILE) -> Path:
    """Where run directories live, by the layers of the settings (`config.load`), of which only `root` is read."""
    asked = environ.get("TRANSOM_ROOT")
    if asked:
        return Path(asked).expanduser()
    base = environ.get("XDG_CONFIG_HOME") or ""
    config = Path(base) if base.startswith("/") else Path.home() / ".config"
    for file in (config / "transom" / "config.toml", site):
        root = _root_in(file)
        if root:
            return file.parent / Path(root).expanduser()
    return Path.home() / ".transom" / "runs"


def _root_in(file: Path) -> str:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        return ""
    try:
        root = tomllib.loads(file.read_text(encoding="utf-8")).get("root")
    except (OSError, ValueError):
        return ""
    return root if isinstance(root, str) else ""

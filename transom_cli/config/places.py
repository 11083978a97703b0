"""Where settings files lie, and what a path in one of them counts from. The standard library alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

SITE_FILE = Path("/etc/transom.toml")


def user_file(environ: Mapping[str, str]) -> Path:
    """The user's own settings file, which need not exist."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    # the XDG rules: a relative value counts as unset
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".config"
    return home / "transom" / "config.toml"


def default_root() -> Path:
    """Where run directories live when no layer says otherwise."""
    return Path.home() / ".transom" / "runs"


def absolute(value: str, base: Path | None) -> str:
    """A path counts from its layer's folder (``base``), or from where we are; links are kept."""
    there = Path(value)
    with contextlib.suppress(RuntimeError):  # "~nobody/..."
        there = there.expanduser()
    if there.is_absolute():  # and the current directory, which may be gone, does not matter
        return str(there)
    return str((base or Path.cwd()) / there)

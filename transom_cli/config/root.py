"""Where run directories live, as the settings' layers say, without reading all settings: for commands that only look.

Reading all of them takes longer than everything else that `transom status` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transom_cli.config.places import SITE_FILE, absolute, default_root, user_file

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_VARIABLE = "TRANSOM_ROOT"


def runs_root(explicit: Path | None, environ: Mapping[str, str], site: Path = SITE_FILE) -> Path:
    """As asked, else as the layers say. UsageError where one of them cannot be read, or gives no path."""
    if explicit is not None:
        return explicit
    found = environ.get(_VARIABLE)
    if found is not None:
        return Path(absolute(found, None)) if _usable(found) else _all_settings(environ)
    for file in (user_file(environ), site):
        try:
            root = tomllib.loads(file.read_text(encoding="utf-8")).get("root")
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return _all_settings(environ)
        if root is not None:
            return Path(absolute(root, file.absolute().parent)) if _usable(root) else _all_settings(environ)
    return default_root()


def _usable(root: object) -> bool:
    return isinstance(root, str) and bool(root) and root.isprintable()


def _all_settings(environ: Mapping[str, str]) -> Path:
    """What is wrong is told by whoever reads all of it."""
    from transom_cli.config.load import load

    return load(None, {}, environ).root

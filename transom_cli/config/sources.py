"""Where settings come from: files, the folder of run directories, environment variables. Standard library only.

`runs_root` reads only the one setting that `transom status` needs. Reading all settings takes longer than everything
else that this command does.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from transom_cli.toml import tomllib

SITE_FILE = Path("/etc/transom.toml")


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's settings file, which need not exist."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    # XDG: a relative value counts as unset
    home = Path(base) if base.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".config"
    return home / "transom" / "config.toml"


def default_root() -> Path:
    """Return the folder of run directories if no layer sets another one."""
    return Path.home() / ".transom" / "runs"


def absolute(value: str, base: Path | None) -> str:
    """Make a path absolute, relative to its layer's folder (`base`) or the current directory. Links are kept."""
    there = Path(value)
    with contextlib.suppress(RuntimeError):  # "~nobody/..."
        there = there.expanduser()
    if there.is_absolute():  # then the current directory, which may be deleted, is not used
        return str(there)
    return str((base or Path.cwd()) / there)


_VARIABLE = "TRANSOM_ROOT"


def runs_root(explicit: Path | None, environ: Mapping[str, str], site: Path = SITE_FILE) -> Path:
    """Return `explicit`, or the setting. Raises UsageError if a layer cannot be read or has no valid path."""
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
    """Read all settings: their loader reports what is wrong."""
    from transom_cli.config.load import load

    return load(None, {}, environ).root


RUN_VARIABLES: frozenset[str] = frozenset(
    {
        "TRANSOM_RUN_DIR",
        "TRANSOM_ATTEMPT",
        "TRANSOM_ATTEMPT_DIR",
        "TRANSOM_LAUNCH",
        "TRANSOM_WORLD_SIZE",
        "TRANSOM_BEAT_DIR",
        "TRANSOM_BEAT_PLACE",
        "TRANSOM_MEMORY",
        "TRANSOM_MEMORY_LINGER",
        "TRANSOM_CHECKPOINT_DIR",
        "TRANSOM_RANK_PID",
        "TRANSOM_ONLY",
        "TRANSOM_RECOVERABLE",
        "TRANSOM_HOSTS",
        "TRANSOM_REPLICAS",
        "TRANSOM_STANDBY",
        "TRANSOM_STANDBY_LEARN",
        "TRANSOM_ROLE",
    }
)
"""What transom passes to its own processes and to the ranks of a run."""

_OTHERS = (
    "TRANSOM_INJECT",
    "TRANSOM_SANDBOX",
    "TRANSOM_REQUIRE_SLURM",
    "TRANSOM_NODE",
    "TRANSOM_TIER",
    "TRANSOM_SYSFS",
    "TRANSOM_STATE_DIR",
    "TRANSOM_KERNEL_LOG",
    "TRANSOM_XID_RULES",
    "TRANSOM_DCGM_LEVEL",
    "TRANSOM_PROBE_FLIP",
    "TRANSOM_NVML",
    "TRANSOM_WANDB",
)
"""Prefixes of other variables: marks of the sandbox, switches of the test suite, arguments of a site's checks, a
replacement of /sys for checks, and the folder of the history of nodes."""


def is_setting(name: str) -> bool:
    """Return whether a variable is meant as a setting, even a misspelt one."""
    return name.startswith("TRANSOM_") and name not in RUN_VARIABLES and not name.startswith(_OTHERS)


def outer_run_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of an outer run in this environment.

    A run started inside another one must not inherit them: it would write its heartbeats and checkpoints into the
    outer run's directory.
    """
    return tuple(sorted(RUN_VARIABLES & environ.keys()))

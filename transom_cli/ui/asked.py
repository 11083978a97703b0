"""What a screen shows of a run's settings, from the frozen run.toml: without the model, which has checked it before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.config.slurmtime import slurm_seconds
from transom_cli.layout import RunDir

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_LAUNCH = re.compile(r"\btransom(?:_cli)?\s+launch\b")
SILENT, FIRST_STEP = 10.0, 1800.0  # seconds, as in `detect` where they are not set


@dataclass(frozen=True)
class Asked:
    """steps: that the training makes. limit: seconds of an attempt. warned: the ranks are told before it ends."""

    checkpoints: Path
    steps: int | None = None
    limit: int | None = None
    warned: bool = True
    node_silent: float = SILENT
    first_step: float = FIRST_STEP
    cluster: str = ""  # of several, by its name
    launcher: bool = True  # the batch script starts transom's
    wants: str = ""  # of its nodes, beyond their number, in words


def read_asked(run: RunDir) -> Asked:
    """Nothing but defaults where run.toml cannot be read."""
    try:
        told = tomllib.loads(run.settings.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):
        return Asked(run.checkpoints)
    job, steps, directory = _section(told, "job"), told.get("steps"), _section(told, "checkpoint").get("directory")
    detect = _section(told, "detect")
    return Asked(
        Path(directory) if isinstance(directory, str) and directory else run.checkpoints,
        steps if isinstance(steps, int) else None,
        _seconds(job.get("time")),
        job.get("signal_before") != 0,
        _number(detect.get("node_silent"), SILENT),
        _number(detect.get("first_step"), FIRST_STEP),
        str(job.get("cluster", "")),
        _launches(run),
        ", ".join(f"{name} `{job[name]}`" for name in ("reservation", "constraint") if job.get(name)),
    )


def _launches(run: RunDir) -> bool:
    """Whether the script is one of ours, or calls `transom launch` itself."""
    try:
        return _LAUNCH.search(run.script.read_text(errors="replace")) is not None
    except OSError:
        return True


def operator_job(run: RunDir) -> int:
    """The Slurm job that was last submitted to be the run's operator; 0: none was."""
    try:
        return int(run.operator_job.read_text())
    except (OSError, ValueError):
        return 0


def _section(told: dict[str, Any], name: str) -> dict[str, Any]:
    section = told.get(name)
    return section if isinstance(section, dict) else {}


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default


def _seconds(time: object) -> int | None:
    if not isinstance(time, str) or not time:
        return None
    try:
        return slurm_seconds(time)
    except ValueError:
        return None

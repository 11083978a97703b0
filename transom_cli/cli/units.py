"""Values that users write on the command line: durations, sizes, states of runs."""

import difflib
import re

from transom_cli.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_LIVE = ("submitting", "pending", "starting", "training", "recovering", "finishing", "stopping", "held")
STATES = (*_LIVE, "preflight", "leaving", "starved", "crash-loop", "failing", "done", "failed", "stopped", "unknown")


def duration(text: str, option: str) -> float:
    """Return the seconds of `30m`, `12h`, `7d` or `2w`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if match is None:
        raise UsageError(
            f"{option} `{text}` is not a duration", "it needs a number and a unit", "for example 12h or 7d"
        )
    return float(match[1]) * _SECONDS[match[2]]


def size(text: str, option: str) -> int:
    """Return the bytes of `500G`, `2TiB` or `4096`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise UsageError(f"{option} `{text}` is not a size", "it needs a number and a unit", "for example 500G or 2T")
    return int(float(match[1]) * _BYTES[match[2]])


def parameters(text: str) -> float:
    """Return the number of `70e9`, `70B` or `350M`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:e\+?\d+)?)([kmbt]?)", text.strip().lower())
    found = float(match[1]) * _COUNTS[match[2]] if match is not None else 0.0
    if not 0 < found < 1e18:
        raise UsageError(f"`--params {text}` is not a number of parameters", hint="--params 70e9, or --params 70B")
    return found


def states(text: str | None) -> tuple[str, ...]:
    """Return the states of `failed,held`. Raises UsageError."""
    found = tuple(filter(None, re.split(r"[,\s]+", (text or "").lower())))
    if text is not None and not found:
        raise UsageError("`--state` names no state", hint=f"give one or more of {', '.join(STATES)}")
    unknown = [one for one in found if one not in STATES]
    if unknown:
        near = difflib.get_close_matches(unknown[0], STATES, n=1) or ["failed,held"]
        why = f"a run is {', '.join(STATES[:-1])} or {STATES[-1]}"
        raise UsageError(f"There is no state `{unknown[0]}`", why, f"transom list --state {near[0]}")
    return tuple(one.replace("-", " ") for one in found)

"""The kinds of values that settings hold: text that fits on one line, Slurm's times and sizes, names of variables.

Pure. Used by `model`; each refusal is a sentence that follows "<layer>: <key>: ".
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def one_line(value: str) -> str:
    """Slurm cannot carry a line break (or another control character) in an #SBATCH line."""
    bad = next((c for c in value if ord(c) < 32 or ord(c) == 127), None)
    if bad is not None:
        raise ValueError(f"holds the control character {bad!r}, which an #SBATCH line cannot carry")
    return value


def not_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL character, which no command line can carry")
    return value


def slurm_time(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise ValueError(f"{value!r} is not a Slurm time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED")
    return value


def slurm_memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise ValueError(f'{value!r} is not a Slurm size: a whole number and a unit, as in "64G" (0: all)')
    return value


def sbatch_flag(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError(f'{value!r} is not a flag: each entry is one whole flag, as in "--switches=1"')
    return value


def variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        not_nul(text)
    return value


def thresholds(value: dict[str, float]) -> dict[str, float]:
    if not value:
        return value
    from transom_cli.health.registry import limit_names

    known = limit_names()
    bad = sorted(set(value) - set(known))
    if bad:
        raise ValueError(f"{', '.join(bad)}: no such threshold; there are {', '.join(known)}")
    return value


def check_names(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        return value
    from transom_cli.health.registry import finding_names

    known = finding_names()
    bad = sorted(n for n in value if n not in known and n.partition(":")[0] not in known)
    if bad:
        raise ValueError(f"{', '.join(bad)}: no such check; there are {', '.join(known)}")
    return value


def number_as_text(value: Any) -> Any:
    """`time = 60` and `mem = 64000` are as good as their quoted forms."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def many(value: Any) -> Any:
    """`events = "held"` is as good as a list of one."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def empty_as_unset(value: Any) -> Any:
    """A later layer takes an optional setting back with the empty text."""
    return None if value == "" else value


Text = Annotated[str, AfterValidator(not_nul)]
Line = Annotated[str, AfterValidator(one_line)]
Flag = Annotated[str, AfterValidator(one_line), AfterValidator(sbatch_flag)]
OptionalLine = Annotated[Line | None, BeforeValidator(empty_as_unset)]
OptionalTime = Annotated[
    Annotated[str, AfterValidator(slurm_time)] | None,
    BeforeValidator(empty_as_unset),
    BeforeValidator(number_as_text),
]
OptionalMemory = Annotated[
    Annotated[str, AfterValidator(slurm_memory)] | None,
    BeforeValidator(empty_as_unset),
    BeforeValidator(number_as_text),
]
OptionalText = Annotated[Text | None, BeforeValidator(empty_as_unset)]
Texts = tuple[Text, ...]
Lines = tuple[Line, ...]
Flags = tuple[Flag, ...]
CheckNames = Annotated[Lines, AfterValidator(check_names)]
Variables = Annotated[dict[str, str], AfterValidator(variables), PlainSerializer(dict)]
Thresholds = Annotated[dict[str, float], AfterValidator(thresholds), PlainSerializer(dict)]

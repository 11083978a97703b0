"""Validate settings: the types of values, and problems collected over all layers. Pure.

`model` uses the types. Each message is a sentence that follows "<layer>: <key>: ".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from transom_cli.errors import UsageError

if TYPE_CHECKING:
    from transom_cli.config.describe import Setting


_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_FLAG = re.compile(r"-.*")
_MEMORY = re.compile(r"\d+[KMGT]?B?", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def one_line(value: str) -> str:
    """Reject line breaks and other control characters, which an #SBATCH line cannot contain."""
    bad = next((c for c in value if ord(c) < 32 or ord(c) == 127), None)
    if bad is not None:
        raise ValueError(f"contains the control character {bad!r}, which is not possible in an #SBATCH line")
    return value


def shared_with(value: str) -> str:
    kind, _, name = one_line(value).partition(":")
    if kind != "group" or not name:
        raise ValueError(f'{value!r} names no group: write "group:NAME", with one of your groups (`id -Gn`)')
    return value


def not_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("contains a NUL character, which is not possible in a command line")
    return value


def matching(pattern: re.Pattern[str], message: str) -> AfterValidator:
    """Accept texts of this form. message: with a place for the text."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(message.format(value))
        return value

    return AfterValidator(check)


def one_of(what: str, valid: Collection[str]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in valid:
            raise ValueError(f"{value!r} is not {what}; valid are {', '.join(valid)}")
        return value

    return AfterValidator(check)


def unique(what: str, why: str) -> AfterValidator:
    """Accept tables with names if all names differ."""

    def check(tables: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [table.name for table in tables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two {what} have the name {', '.join(repr(n) for n in twice)}: {why}")
        return tables

    return AfterValidator(check)


def variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of an environment variable")
        not_nul(text)
    return value


def thresholds(value: dict[str, float]) -> dict[str, float]:
    if not value:
        return value
    from transom_cli.health.registry import limit_names

    known = limit_names()
    bad = sorted(set(value) - set(known))
    if bad:
        raise ValueError(f"{', '.join(bad)}: no such threshold; valid are {', '.join(known)}")
    return value


def check_names(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        return value
    from transom_cli.health.registry import finding_names

    known = finding_names()
    bad = sorted(n for n in value if n not in known and n.partition(":")[0] not in known)
    if bad:
        raise ValueError(f"{', '.join(bad)}: no such check; valid are {', '.join(known)}")
    return value


def number_as_text(value: Any) -> Any:
    """Accept `time = 60` and `mem = 64000` like their quoted forms."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def many(value: Any) -> Any:
    """Accept `events = "held"` like a list of one."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def empty_as_unset(value: Any) -> Any:
    """Accept the empty text as unset, so that a later layer can unset an optional setting."""
    return None if value == "" else value


Text = Annotated[str, AfterValidator(not_nul)]
Line = Annotated[str, AfterValidator(one_line)]
Flag = Annotated[
    str,
    AfterValidator(one_line),
    matching(_FLAG, '{!r} is not a flag: each entry is one complete flag, such as "--switches=1"'),
]
OptionalLine = Annotated[Line | None, BeforeValidator(empty_as_unset)]
Share = Annotated[Annotated[str, AfterValidator(shared_with)] | None, BeforeValidator(empty_as_unset)]
Time = Annotated[
    str,
    matching(_TIME, "{!r} is not a Slurm time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED"),
]
Memory = Annotated[str, matching(_MEMORY, '{!r} is not a Slurm size: an integer and a unit, such as "64G" (0: all)')]
OptionalTime = Annotated[Time | None, BeforeValidator(empty_as_unset), BeforeValidator(number_as_text)]
OptionalMemory = Annotated[Memory | None, BeforeValidator(empty_as_unset), BeforeValidator(number_as_text)]
OptionalText = Annotated[Text | None, BeforeValidator(empty_as_unset)]
Texts = tuple[Text, ...]
Lines = tuple[Line, ...]
Flags = tuple[Flag, ...]
CheckNames = Annotated[Lines, AfterValidator(check_names)]
Variables = Annotated[dict[str, str], AfterValidator(variables), PlainSerializer(dict)]
Thresholds = Annotated[dict[str, float], AfterValidator(thresholds), PlainSerializer(dict)]


NO_FILE = "no such file"
_FLAGS = {"launch.kind": "--torchrun", "launch.container.image": "--container-image", "launch.container.runtime": ""}
_FLAGGED = ("nodes", "spares", "gpus_per_node", "tasks_per_node", "cpus_per_task", "mem", "time", "exclude")
_FLAGS |= {f"job.{key}": f"--{key.replace('_', '-')}" for key in (*_FLAGGED, "partition", "account", "qos")}


def flag_of(key: str) -> str:
    """Return the flag of `transom run` for a setting; the setting itself if it has none."""
    return _FLAGS.get(key, key)


@dataclass(frozen=True)
class Problem:
    """One problem. layer: a file, a variable or "flags". section: set if its valid keys would help."""

    layer: str
    key: str
    what: str
    section: tuple[str, ...] | None = None

    def __str__(self) -> str:
        layer = "command line" if self.layer == "flags" else self.layer
        flag = f" ({flag_of(self.key)})" if self.layer == "flags" and flag_of(self.key) != self.key else ""
        where = f"{layer}: {self.key}{flag}" if self.key and self.key != layer else layer
        return f"{where}: {self.what}"


def valid_keys(settings: Sequence[Setting], section: tuple[str, ...]) -> tuple[str, ...]:
    """Return the valid keys of a section: settings, and the names of sections below it."""
    depth = len(section)
    inside = (s.path[depth] for s in settings if s.path[:depth] == section and len(s.path) > depth)
    return tuple(dict.fromkeys(inside))


def unknown_key(settings: Sequence[Setting], layer: str, path: tuple[str, ...], *, variable: bool = False) -> Problem:
    """Describe an unknown key and suggest the most similar valid one, from the same section first."""
    *above, last = path
    section = tuple(above)
    known = valid_keys(settings, section)
    while section and not known:
        section, last = section[:-1], section[-1]
        known = valid_keys(settings, section)
    by_key = {s.key: s for s in settings}
    near = [".".join((*section, k)) for k in difflib.get_close_matches(last, known, n=1)]
    near = near or [".".join((*section, k)) for k in known if len(last) > 2 and k.startswith(last)][:1]
    near = near or [s.key for s in settings if s.path[-1] == path[-1]]
    near = near or difflib.get_close_matches(".".join(path), by_key, n=1, cutoff=0.7)
    near = near or [s.key for s in settings if difflib.get_close_matches(path[-1], [s.path[-1]], cutoff=0.8)][:1]
    names = [by_key[k].variable if variable and k in by_key else k for k in near]
    what = "no such setting" + (f"; did you mean {' or '.join(f'`{n}`' for n in names)}?" if names else "")
    return Problem(layer, ".".join(path), what, section)


def refuse(problems: Iterable[Problem], settings: Sequence[Setting]) -> UsageError:
    """Return one error with all problems and, once for each affected section, its valid keys."""
    found = list(dict.fromkeys(problems))
    lines = [str(problem) for problem in found]
    sections = dict.fromkeys(p.section for p in found if p.section is not None)
    for section in sections:
        title = f"[{'.'.join(section)}]" if section else "outside of sections"
        lines.append(f"valid {'in ' if section else ''}{title}: {', '.join(valid_keys(settings, section))}")
    if len(found) == 1 and not found[0].key and found[0].what == NO_FILE:
        return UsageError(f"No such settings file: {found[0].layer}", hint="`transom init` writes one")
    what = "1 setting is invalid" if len(found) == 1 else f"{len(found)} settings are invalid"
    return UsageError(
        what,
        why="\n".join(lines),
        hint=f"correct {'it' if len(found) == 1 else 'them'}, and check with `transom run --dry-run ...`; "
        "docs/settings.md explains each setting",
    )

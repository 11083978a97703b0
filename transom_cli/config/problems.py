"""What is wrong with settings, gathered over all layers and told at once. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transom_cli.config.describe import Setting
from transom_cli.errors import UsageError


@dataclass(frozen=True)
class Problem:
    """``layer`` is a file, a variable or "flags"; ``section`` is set when the section's valid keys would help."""

    layer: str
    key: str
    what: str
    section: tuple[str, ...] | None = None

    def __str__(self) -> str:
        where = f"{self.layer}: {self.key}" if self.key and self.key != self.layer else self.layer
        return f"{where}: {self.what}"


def valid_keys(settings: Sequence[Setting], section: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that may stand in a section: settings, and the names of sections below it."""
    depth = len(section)
    inside = (s.path[depth] for s in settings if s.path[:depth] == section and len(s.path) > depth)
    return tuple(dict.fromkeys(inside))


def unknown_key(settings: Sequence[Setting], layer: str, path: tuple[str, ...], *, variable: bool = False) -> Problem:
    """An unknown key, with the valid one that is nearest: of the same section first, then of any."""
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
    """One error that tells all problems, and once for each section concerned its valid keys."""
    found = list(dict.fromkeys(problems))
    lines = [str(problem) for problem in found]
    sections = dict.fromkeys(p.section for p in found if p.section is not None)
    for section in sections:
        title = f"[{'.'.join(section)}]" if section else "above all sections"
        lines.append(f"valid {'in ' if section else ''}{title}: {', '.join(valid_keys(settings, section))}")
    what = "1 setting is wrong" if len(found) == 1 else f"{len(found)} settings are wrong"
    return UsageError(
        what,
        why="\n".join(lines),
        hint="correct them and look at the result with `transom run --dry-run ...`; docs/settings.md explains each",
    )

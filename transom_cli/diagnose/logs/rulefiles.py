"""Rule files: TOML, one a family, `[defaults]` and `[[rule]]` tables. Whatever is wrong in them is told at once.

    [[rule]]
    name = "site-fan"                      unique; a site's rule of the same name replaces one of ours
    category = "gpu_hardware"              of `diagnose.clue.Category`
    level = "cause"                        benign, sign, ending, cause or authority: see `rule.Level`
    any = ["fan failure"]                  text that the line must contain one of; lower case: any case
    match = ['''fan (?P<device>\\d+)''']   RE2; groups named node, rank, peer, device and code tell where
    scope, action, blames, unless, weight, confidence, explains, below, lasts, over, yields, times, traced, note,
    examples, look_alikes

Each example must be known best by its own rule, and no look-alike by it: `check`, which is a rule's own test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from transom_cli.diagnose.clue import Action, Category
from transom_cli.diagnose.logs import engines, grammar
from transom_cli.diagnose.logs.rule import Blames, Level, Rule, Scope
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OURS = Path(__file__).resolve().parent.parent / "rules"
SHORTEST = 3  # characters of a text: shorter ones are in every other line
_KNOWN = {field.name for field in fields(Rule)} - {"source"}
_LISTS = {"any", "match", "unless", "over", "explains", "examples", "look_alikes"}
_NUMBERS: dict[str, type[int] | type[float]] = {"weight": int, "times": int, "confidence": float}
_SWITCHES = {"below", "lasts", "traced", "yields"}
_CHOICES: dict[str, type[Enum]] = {"scope": Scope, "action": Action, "blames": Blames}


def load(folders: Iterable[Path] = (), *, ours: bool = True) -> tuple[Rule, ...]:
    """Our rules, and those of further folders or files. UsageError names every mistake in any of them."""
    rules: dict[str, Rule] = {}
    wrong: list[str] = []
    for path in [path for place in (*((OURS,) if ours else ()), *folders) for path in files_of(place)]:
        found, mistakes = parse(path.read_text(encoding="utf-8"), path.name if path.parent == OURS else str(path))
        wrong += mistakes
        names = [rule.name for rule in found]
        wrong += [f"{path}: two rules are called {name}" for name in sorted({n for n in names if names.count(n) > 1})]
        rules.update({rule.name: rule for rule in found})
    if wrong:
        raise UsageError(
            "A rule file cannot be used", "\n".join(wrong), "Mend it; `transom rules check FILE` tries it."
        )
    return tuple(rules.values())


def files_of(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.toml"))
    if not place.exists():
        raise UsageError(f"There are no rules in {place}: it does not exist", hint="Name a TOML file, or a folder.")
    return [place]


def parse(text: str, source: str) -> tuple[list[Rule], list[str]]:
    """The rules of one file, and what is wrong with it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [], [f"{source}: {error}"]
    wrong = [
        f"{source}: [{key}] is not known; there are [defaults] and [[rule]]"
        for key in document
        if key not in ("rule", "defaults")
    ]
    defaults, tables = document.get("defaults", {}), document.get("rule", [])
    if not isinstance(defaults, dict) or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        return [], [*wrong, f"{source}: rules stand in [[rule]] tables, what they have in common in one of [defaults]"]
    rules = []
    for number, table in enumerate(tables, 1):
        values = {**defaults, **table}
        name = values.get("name")
        where = f"{source}: rule {name if isinstance(name, str) and name else number}"
        rule, mistakes = _rule(values, where)
        wrong += mistakes
        if rule is not None:
            rules.append(replace(rule, source=source))
    return rules, wrong


def check(rules: Iterable[Rule]) -> list[str]:
    """What the rules' own examples show to be wrong, in sentences."""
    book = Rulebook(rules)
    wrong = []
    for rule in book.rules:
        if not rule.examples:
            wrong.append(f"{rule.source}: rule {rule.name} has no example: give it a line that it must know")
        for kind, lines in (("example", rule.examples), ("look-alike", rule.look_alikes)):
            for line in lines:
                record = grammar.record(grammar.cleaned(line.encode()))
                names = [match.rule.name for match in book.matches(record, benign=True)]
                if kind == "example" and (not names or names[0] != rule.name):
                    told = f"{names[0]} knows it better" if names else "no rule knows it"
                    wrong.append(f"{rule.source}: rule {rule.name}: {told}: {line}")
                if kind == "look-alike" and names and names[0] == rule.name:
                    wrong.append(f"{rule.source}: rule {rule.name} takes a look-alike for its own: {line}")
    return wrong


def _rule(values: Mapping[str, Any], where: str) -> tuple[Rule | None, list[str]]:
    wrong = [
        f"{where}: {key} is not known; there are {', '.join(sorted(_KNOWN))}" for key in values if key not in _KNOWN
    ]
    made: dict[str, Any] = {}
    for key in ("name", "note"):
        if isinstance(values.get(key, ""), str):
            made[key] = values.get(key, "")
        else:
            wrong.append(f"{where}: {key} is to be a text")
    if not made.get("name"):
        wrong.append(f"{where}: it has no name")
    for key in _LISTS & values.keys():
        value = [values[key]] if isinstance(values[key], str) else values[key]
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            made[key] = tuple(value)
        else:
            wrong.append(f"{where}: {key} is to be a list of texts")
    for key, kind in _NUMBERS.items():
        value = values.get(key, 1)
        if isinstance(value, (int, kind)) and not isinstance(value, bool) and value >= 0:  # an int does for a float
            made.update({key: kind(value)} if key in values else {})
        else:
            wrong.append(f"{where}: {key} is to be a number")
    for key in _SWITCHES & values.keys():
        made[key] = values[key]
        if not isinstance(values[key], bool):
            wrong.append(f"{where}: {key} is to be true or false")
    for key, choice in _CHOICES.items():
        if key in values:
            made[key] = _choice(values[key], choice, f"{where}: {key}", wrong)
    levels = {level.name.lower(): level for level in Level}
    made["level"] = levels.get(str(values.get("level", "cause")))
    if made["level"] is None:
        wrong.append(f"{where}: level is to be one of {', '.join(levels)}, not {values['level']!r}")
    benign = made["level"] is Level.BENIGN
    made["category"] = None if benign else _choice(values.get("category"), Category, f"{where}: category", wrong)
    made["explains"] = tuple(_choice(one, Category, f"{where}: explains", wrong) for one in made.get("explains", ()))
    wrong += _mistakes(made, where)
    return (None if wrong else Rule(**made)), wrong


def _choice(value: object, choice: type[Enum], where: str, wrong: list[str]) -> Enum | None:
    try:
        return choice(value)
    except ValueError:
        wrong.append(f"{where} is to be one of {', '.join(one.value for one in choice)}, not {value!r}")
        return None


def _mistakes(made: Mapping[str, Any], where: str) -> list[str]:
    wrong = []
    if not made.get("any"):
        wrong.append(f"{where}: `any` is needed: text by which its lines are found among gigabytes")
    wrong += [
        f"{where}: `any` has {text!r}: at least {SHORTEST} characters"
        for text in made.get("any", ())
        if len(text) < SHORTEST
    ]
    for expression in (*made.get("match", ()), *made.get("unless", ()), *made.get("over", ())):
        try:
            engines.expression(expression)
        except engines.Mistake as error:
            wrong.append(f"{where}: RE2 does not take {expression!r}: {error}")
    return wrong

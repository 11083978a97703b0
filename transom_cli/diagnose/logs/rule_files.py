"""Read rule files: TOML, one per family, with `[defaults]` and `[[rule]]` tables. All mistakes are reported at once.

    [[rule]]
    name = "site-fan"                      unique; a site's rule replaces a built-in rule of the same name
    category = "gpu_hardware"              a value of `diagnose.clue.Category`
    level = "cause"                        benign, sign, ending, cause or authority: see `rulebook.Level`
    any = ["fan failure"]                  text that the line must contain, one of these; lower case matches any case
    match = ['''fan (?P<device>\\d+)''']   RE2; the groups node, rank, peer, device and code are reported
    scope, action, blames, unless, weight, confidence, explains, below, lasts, over, yields, times, traced, frame,
    framed, note,
    examples, look_alikes

Each example must match its own rule best, and no look-alike may: `check` tests that.
"""

import contextlib
import marshal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from transom_cli.diagnose.clue import Action, Category
from transom_cli.diagnose.logs import grammar, rulebook
from transom_cli.diagnose.logs.rulebook import Blames, Level, Rule, Rulebook, Scope
from transom_cli.errors import REINSTALL, UsageError

OURS = Path(__file__).resolve().parent.parent / "rules"
SHORTEST = 3  # characters of a text; shorter ones match almost every line
_PARSERS = Path(__file__), Path(rulebook.__file__)
_KNOWN = {field.name for field in fields(Rule)} - {"source", "built_in"}
_LISTS = {"any", "match", "unless", "over", "explains", "examples", "look_alikes"}
_NUMBERS: dict[str, type[int] | type[float]] = {"weight": int, "times": int, "confidence": float}
_SWITCHES = {"below", "frame", "framed", "lasts", "traced", "yields"}
_CHOICES: dict[str, type[Enum]] = {"scope": Scope, "action": Action, "blames": Blames}


def load(folders: Iterable[Path] = (), *, ours: bool = True) -> tuple[Rule, ...]:
    """Load the built-in rules and those of further folders or files. Raises UsageError that names every mistake."""
    rules: dict[str, Rule] = {rule.name: rule for rule in _built_in()} if ours else {}
    wrong: list[str] = []
    for path in [path for place in folders for path in files_of(place)]:
        built_in = path.parent == OURS
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            wrong.append(f"{path}: not UTF-8 text")
            continue
        found, mistakes = parse(text, path.name if built_in else str(path), built_in=built_in)
        wrong += mistakes
        rules.update({rule.name: rule for rule in found})
    if wrong:
        raise UsageError("A rule file cannot be used", "\n".join(wrong), "Fix it; `transom rules check FILE` tests it.")
    return tuple(rules.values())


def _built_in() -> list[Rule]:
    """Return the built-in rules. Parsing them takes a third of a short diagnosis, so the result is kept in
    `__pycache__`, as Python keeps the code of the modules: until a file changes, and not if Python keeps none."""
    files = files_of(OURS)
    of = [(path.name, (at := path.stat()).st_mtime_ns, at.st_size) for path in (*files, *_PARSERS)]
    kept = OURS / "__pycache__" / f"rules.{sys.implementation.cache_tag}.bin"
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError, KeyError):
        known, tables = marshal.loads(kept.read_bytes())
        if known == of:
            return [_as_rule(table) for table in tables]
    parsed = [parse(path.read_text(encoding="utf-8"), path.name, built_in=True) for path in files]
    if wrong := [mistake for _, mistakes in parsed for mistake in mistakes]:
        raise UsageError("A built-in rule file cannot be used", "\n".join(wrong), REINSTALL)
    rules = [rule for found, _ in parsed for rule in found]
    if not sys.dont_write_bytecode:
        from transom_cli.files import publish_bytes

        with contextlib.suppress(OSError):
            kept.parent.mkdir(exist_ok=True)
            publish_bytes(kept, marshal.dumps((of, [_as_table(rule) for rule in rules])), mode=0o644)
    return rules


def _as_table(rule: Rule) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(rule).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.value if isinstance(value, Enum) else value


def _as_rule(table: dict[str, Any]) -> Rule:
    table |= {name: choice(table[name]) for name, choice in _CHOICES.items()}
    category, explains = table["category"], table["explains"]
    table |= {"category": Category(category) if category else None, "explains": tuple(map(Category, explains))}
    table["level"] = Level(table["level"])
    rule = object.__new__(Rule)  # its fields are complete, and were checked when they were kept
    vars(rule).update(table)
    return rule


def files_of(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.toml"))
    if not place.exists():
        raise UsageError(f"There are no rules in {place}: it does not exist", hint="Name a TOML file or a folder.")
    return [place]


def parse(text: str, source: str, *, built_in: bool = False) -> tuple[list[Rule], list[str]]:
    """Parse one file. Returns its rules and its mistakes. Expressions of built-in rules, which tests compile, are not
    compiled: that takes longer than all else."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [], [f"{source}: {error}"]
    wrong = [
        f"{source}: unknown table [{key}]; the tables are [defaults] and [[rule]]"
        for key in document
        if key not in ("rule", "defaults")
    ]
    defaults, tables = document.get("defaults", {}), document.get("rule", [])
    if not isinstance(defaults, dict) or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        return [], [*wrong, f"{source}: write rules as [[rule]] tables and their common values as one [defaults] table"]
    rules = []
    for number, table in enumerate(tables, 1):
        values = {**defaults, **table}
        name = values.get("name")
        where = f"{source}: rule {name if isinstance(name, str) and name else number}"
        rule, mistakes = _rule(values, where, source, built_in)
        wrong += mistakes
        rules += [rule] if rule is not None else []
    names = [rule.name for rule in rules]
    wrong += [f"{source}: two rules are named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    return rules, wrong


def check(rules: Iterable[Rule]) -> list[str]:
    """Test the rules against their own examples. Returns the mistakes as sentences."""
    book = Rulebook(rules)
    wrong = []
    for rule in book.rules:
        if not rule.examples:
            wrong.append(f"{rule.source}: rule {rule.name} has no example: add a line that it must match")
        for kind, lines in (("example", rule.examples), ("look-alike", rule.look_alikes)):
            for line in lines:
                record = grammar.record(grammar.clean(line.encode()))
                names = [match.rule.name for match in book.matches(record, benign=True)]
                if kind == "example" and (not names or names[0] != rule.name):
                    better = f"the rule {names[0]} matches it better" if names else "no rule matches it"
                    wrong.append(f"{rule.source}: rule {rule.name}: {better}: {line}")
                if kind == "look-alike" and names and names[0] == rule.name:
                    wrong.append(f"{rule.source}: rule {rule.name} matches a look-alike: {line}")
    return wrong


def _rule(values: Mapping[str, Any], where: str, source: str, built_in: bool) -> tuple[Rule | None, list[str]]:
    wrong = [
        f"{where}: unknown key {key}; the keys are {', '.join(sorted(_KNOWN))}" for key in values if key not in _KNOWN
    ]
    made: dict[str, Any] = {"source": source, "built_in": built_in}
    for key in ("name", "note"):
        if isinstance(values.get(key, ""), str):
            made[key] = values.get(key, "")
        else:
            wrong.append(f"{where}: {key} must be a string")
    if not made.get("name"):
        wrong.append(f"{where}: the rule has no name")
    for key in _LISTS & values.keys():
        value = [values[key]] if isinstance(values[key], str) else values[key]
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            made[key] = tuple(value)
        else:
            wrong.append(f"{where}: {key} must be a list of strings")
    for key, kind in _NUMBERS.items():
        value = values.get(key, 1)
        if isinstance(value, (int, kind)) and not isinstance(value, bool) and value >= 0:  # an int is a valid float
            made.update({key: kind(value)} if key in values else {})
        else:
            wrong.append(f"{where}: {key} must be a number")
    for key in _SWITCHES & values.keys():
        made[key] = values[key]
        if not isinstance(values[key], bool):
            wrong.append(f"{where}: {key} must be true or false")
    for key, choice in _CHOICES.items():
        if key in values:
            made[key] = _choice(values[key], choice, f"{where}: {key}", wrong)
    levels = {level.name.lower(): level for level in Level}
    made["level"] = levels.get(str(values.get("level", "cause")))
    if made["level"] is None:
        wrong.append(f"{where}: level must be one of {', '.join(levels)}, not {values['level']!r}")
    benign = made["level"] is Level.BENIGN
    made["category"] = None if benign else _choice(values.get("category"), Category, f"{where}: category", wrong)
    made["explains"] = tuple(_choice(one, Category, f"{where}: explains", wrong) for one in made.get("explains", ()))
    wrong += _mistakes(made, where, built_in)
    return (None if wrong else Rule(**made)), wrong


def _choice(value: object, choice: type[Enum], where: str, wrong: list[str]) -> Enum | None:
    try:
        return choice(value)
    except ValueError:
        wrong.append(f"{where} must be one of {', '.join(one.value for one in choice)}, not {value!r}")
        return None


def _mistakes(made: Mapping[str, Any], where: str, built_in: bool) -> list[str]:
    wrong = []
    if not made.get("any"):
        wrong.append(f"{where}: `any` is missing: text by which its lines are found quickly")
    wrong += [
        f"{where}: `any` contains {text!r}: use at least {SHORTEST} characters"
        for text in made.get("any", ())
        if len(text) < SHORTEST
    ]
    if built_in:
        return wrong
    for expression in (*made.get("match", ()), *made.get("unless", ()), *made.get("over", ())):
        try:
            rulebook.compile_expression(expression)
        except rulebook.Mistake as error:
            wrong.append(f"{where}: RE2 rejects {expression!r}: {error}")
    return wrong

"""Settings from their layers: defaults < site < user < run file < environment < flags.

Whatever is wrong in any layer is gathered and refused in one UsageError. Pydantic costs start-up time, so commands
import this module inside the function that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from transom_cli.config.describe import ENV_PREFIX, Setting, settings_of
from transom_cli.config.model import Settings
from transom_cli.config.notify import unknown_target_key
from transom_cli.config.places import SITE_FILE, absolute, user_file
from transom_cli.config.policy import DEFAULT_TABLE, RuleTable, sourced, stacked
from transom_cli.config.problems import Problem, refuse, unknown_key
from transom_cli.config.text import from_text
from transom_cli.config.variables import is_setting
from transom_cli.core.policy import DEFAULT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_ALL = tuple(settings_of())
_BY_PATH = {setting.path: setting for setting in _ALL}
_SECTIONS = {setting.path[:depth] for setting in _ALL for depth in range(len(setting.path))}
_BY_VARIABLE = {setting.variable: setting for setting in _ALL}
_RULES = ("policy", "rules")
_STACKED = (_RULES, ("notify", "targets"))  # tables that have names
_PATHS = {setting.path for setting in _ALL if setting.kind == "path"} | {("launch", "python")}

Flat = dict[tuple[str, ...], Any]


def load(
    run_file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    site: Path | None = SITE_FILE,
    user: Path | None = None,
) -> Settings:
    """The settings that the layers add up to.

    ``flags`` holds nested tables or dotted keys ("job.partition"); None means "not given", text is read as a variable's
    would be. ``user`` defaults to `user_file(environ)`. Site and user files may be missing; the run file may not.
    Raises UsageError naming every bad key and value of every layer.
    """
    environ = environ or {}
    problems: list[Problem] = []
    merged: Flat = {_RULES: default_rules()}
    for path, must_exist in ((site, False), (user or user_file(environ), False), (run_file, True)):
        if path is not None:
            _merge(merged, _file_layer(path, must_exist, problems))
    _merge(merged, _environment_layer(environ, problems))
    _merge(merged, _flags_layer(flags or {}, problems))
    if problems:
        raise refuse(problems, _ALL)
    return _whole(merged)


def default_rules() -> list[dict[str, Any]]:
    """The table of this package, below all layers."""
    rules: list[dict[str, Any]] = sourced(tomllib.loads(DEFAULT_TABLE.read_text(encoding="utf-8"))["rules"], DEFAULT)
    return rules


def thaw(text: str, source: str) -> Settings:
    """The settings that `freeze` wrote, and nothing from any other layer. ``source`` names the text in errors."""
    problems: list[Problem] = []
    layer = _parse(text.encode("utf-8", "surrogateescape"), source, Path("/"), problems)
    if problems:
        raise refuse(problems, _ALL)
    return _whole(layer)


def freeze(settings: Settings) -> str:
    """TOML text that `thaw` (and `load`, as its run file) reads back to an equal object."""
    text: str = tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
    return text


def _file_layer(path: Path, must_exist: bool, problems: list[Problem]) -> Flat:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if must_exist:
            problems.append(Problem(str(path), "", "no such file"))
        return {}
    except OSError as error:
        problems.append(Problem(str(path), "", f"cannot be read: {error.strerror}"))
        return {}
    return _parse(data, str(path), path.absolute().parent, problems)


def _parse(data: bytes, source: str, base: Path, problems: list[Problem]) -> Flat:
    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(Problem(source, "", f"line {line}: not UTF-8 text: {error.reason}"))
        return {}
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(source, "", f"not TOML: {error}"))  # tomllib's words hold line and column
        return {}
    flat: Flat = {}
    _flatten(document, (), source, flat, problems)
    return _checked(flat, source, base, problems, strict=True)


def _flatten(table: Mapping[str, Any], above: tuple[str, ...], layer: str, flat: Flat, problems: list[Problem]) -> None:
    """Nested tables to one dict keyed by path; unknown keys become problems."""
    for key, value in table.items():
        path = (*above, *key.split(".")) if layer == "flags" else (*above, key)
        if path in _BY_PATH:
            flat[path] = value
        elif path in _SECTIONS and isinstance(value, Mapping):
            _flatten(value, path, layer, flat, problems)
        elif path in _SECTIONS:
            problems.append(Problem(layer, ".".join(path), f"is a section, a table of keys, not {value!r}"))
        else:
            problems.append(unknown_key(_ALL, layer, path))


def _environment_layer(environ: Mapping[str, str], problems: list[Problem]) -> Flat:
    flat: Flat = {}
    for name in sorted(environ):
        if not is_setting(name):
            continue
        setting = _BY_VARIABLE.get(name)
        if setting is None:
            path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            problems.append(unknown_key(_ALL, name, path, variable=True))
            continue
        raw = _from_texts({setting.path: environ[name]}, name, problems)
        flat.update(_checked(raw, name, None, problems, strict=False))
    return flat


def _flags_layer(flags: Mapping[str, Any], problems: list[Problem]) -> Flat:
    flat: Flat = {}
    _flatten(flags, (), "flags", flat, problems)
    given = {path: value for path, value in flat.items() if value is not None}
    return _checked(_from_texts(given, "flags", problems), "flags", None, problems, strict=False)


def _from_texts(flat: Flat, layer: str, problems: list[Problem]) -> Flat:
    read: Flat = {}
    for path, value in flat.items():
        try:
            read[path] = from_text(_BY_PATH[path], value) if isinstance(value, str) else value
        except ValueError as error:
            problems.append(Problem(layer, ".".join(path), str(error)))
    return read


def _checked(flat: Flat, layer: str, base: Path | None, problems: list[Problem], *, strict: bool) -> Flat:
    """The layer's values, paths made absolute (from ``base``, or where we are); each bad one becomes a problem.

    Layers are checked one by one so that a bad value is told with its layer, also where a later layer hides it. What
    concerns several keys (a floor above its ceiling) is left to the whole: its parts may come from different layers.
    """
    flat = {path: _absolute(path, value, base) for path, value in flat.items()}
    if _RULES in flat:
        flat[_RULES] = sourced(flat[_RULES], layer)
    for path in [path for path, value in flat.items() if not _is_text(value)]:
        problems.append(Problem(layer, ".".join(path), f"{flat.pop(path)!r} is not UTF-8 text"))
    for location, what in _complaints(_nested(flat), strict=strict):
        setting = next((_BY_PATH[location[:d]] for d in range(len(location), 0, -1) if location[:d] in _BY_PATH), None)
        if setting is not None:
            problems.append(Problem(layer, _key(setting, location), what))
    return flat


def _is_text(value: Any) -> bool:
    """False for bytes of a command line, a variable or a folder's name that are not UTF-8: no file here holds them."""
    try:
        json.dumps(value, default=str, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _absolute(path: tuple[str, ...], value: Any, base: Path | None) -> Any:
    """Paths count from their layer's folder. A bare program name ("python3") is left to PATH; links are kept."""
    if path not in _PATHS or not isinstance(value, str) or not value or "\0" in value:
        return value
    if path == ("launch", "python") and "/" not in value:
        return value
    return absolute(value, base)


def _complaints(nested: dict[str, Any], *, strict: bool) -> list[tuple[tuple[str, ...], str]]:
    """What pydantic says about the values, as (location, sentence)."""
    # by way of JSON, where "strict" still takes arrays and paths as text; dates and times of TOML become text
    text = json.dumps(nested, default=str)
    try:
        Settings.model_validate_json(text, strict=strict)
    except ValidationError as error:
        return [(tuple(map(str, item["loc"])), _sentence(item)) for item in error.errors()]
    return []


def _sentence(item: Any) -> str:
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    if item["type"] == "extra_forbidden" and item["loc"][0] == "notify":
        return unknown_target_key(str(item["loc"][-1]))
    if item["type"] == "extra_forbidden":
        return f"no such key; there are {', '.join(RuleTable.model_fields)}"
    message: str = item["msg"][0].lower() + item["msg"][1:]
    return message.replace("input should", "should") + f", not {item['input']!r}"


def _key(setting: Setting, location: tuple[str, ...]) -> str:
    """With the place in a list, and the key of a table in it: policy.rules[2].category[0]."""
    rest = location[len(setting.path) :]
    in_a_list = next((i for i, part in enumerate(rest) if part.isdigit()), len(rest))
    return setting.key + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest[in_a_list:])


def _merge(below: Flat, above: Flat) -> None:
    for path, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(path), dict):
            value = {**below[path], **value}
        if path in _STACKED:
            value = stacked(value, below.get(path))
        below[path] = value


def _nested(flat: Flat) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        table = nested
        for part in path[:-1]:
            table = table.setdefault(part, {})
        table[path[-1]] = value
    return nested


def _whole(flat: Flat) -> Settings:
    nested = _nested(flat)
    complaints = _complaints(nested, strict=False)
    if complaints:
        raise refuse([Problem("all layers together", ".".join(at), what) for at, what in complaints], _ALL)
    return Settings.model_validate_json(json.dumps(nested, default=str))

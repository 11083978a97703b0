"""Load settings from their layers: defaults < site < user < run file < environment < flags.

Problems of all layers are collected and reported in one UsageError. Pydantic costs start-up time, so commands import
this module inside the function that needs it.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from transom_cli.config.describe import ENV_PREFIX, Setting, settings_of
from transom_cli.config.model import OBSERVE, Settings
from transom_cli.config.notify import unknown_target_key
from transom_cli.config.policy import DEFAULT_TABLE, RuleTable, merge_named, with_source
from transom_cli.config.sources import SITE_FILE, absolute, is_setting, user_file
from transom_cli.config.validation import NO_FILE, Problem, refuse, unknown_key
from transom_cli.core.policy import DEFAULT
from transom_cli.toml import tomllib


def from_text(setting: Setting, text: str) -> Any:
    """Convert the text of a variable or flag to what a TOML file would contain. Raises ValueError with a sentence."""
    if setting.optional and text == "":
        return None
    if setting.kind == "list":
        return _list(setting, text)
    if setting.kind == "table":
        return _table(text)
    return text


def _list(setting: Setting, text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        value: list[Any] = _toml(text)
        return value
    if setting.path == ("job", "setup"):  # lines of shell: keep their blanks
        return [line for line in text.splitlines() if line.strip()]
    return _words(text)


def _table(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        value: dict[str, Any] = _toml(text)
        return value
    table = {}
    for word in _words(text):
        name, equals, value_text = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is not of the form NAME=VALUE")
        table[name] = value_text
    return table


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not a TOML value: {error}") from None


_ALL = tuple(settings_of())
_BY_PATH = {setting.path: setting for setting in _ALL}
_SECTIONS = {setting.path[:depth] for setting in _ALL for depth in range(len(setting.path))}
_BY_VARIABLE = {setting.variable: setting for setting in _ALL}
_RULES = ("policy", "rules")
_MODE = ("run", "mode")
_NAMED_TABLES = (_RULES, ("notify", "targets"))  # lists of tables with names
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
    """Combine all layers.

    Args:
        run_file: must exist; site and user files may be missing.
        flags: nested tables or dotted keys ("job.partition"). None means "not given"; text is parsed like a variable.
        user: default `user_file(environ)`.

    Raises:
        UsageError: with every invalid key and value of every layer.
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
    """Return the rules of this package, which are below all layers."""
    rules: list[dict[str, Any]] = with_source(
        tomllib.loads(DEFAULT_TABLE.read_text(encoding="utf-8"))["rules"], DEFAULT
    )
    return rules


def thaw(text: str, source: str) -> Settings:
    """Read the settings that `freeze` wrote, without any other layer. source: names the text in errors."""
    problems: list[Problem] = []
    layer = _parse(text.encode("utf-8", "surrogateescape"), source, Path("/"), problems)
    if problems:
        raise refuse(problems, _ALL)
    return _whole(layer)


def freeze(settings: Settings) -> str:
    """Write settings as TOML that `thaw` (and `load`, as its run file) reads back to an equal object."""
    text: str = tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
    return text


def _file_layer(path: Path, must_exist: bool, problems: list[Problem]) -> Flat:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if must_exist:
            problems.append(Problem(str(path), "", NO_FILE))
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
        problems.append(Problem(source, "", f"not TOML: {error}"))  # tomllib's message has line and column
        return {}
    flat: Flat = {}
    _flatten(document, (), source, flat, problems)
    return _checked(flat, source, base, problems, strict=True)


def _flatten(table: Mapping[str, Any], above: tuple[str, ...], layer: str, flat: Flat, problems: list[Problem]) -> None:
    """Flatten nested tables to one dict keyed by path. Unknown keys become problems."""
    for key, value in table.items():
        path = (*above, *key.split(".")) if layer == "flags" else (*above, key)
        if path in _BY_PATH:
            flat[path] = value
        elif path in _SECTIONS and isinstance(value, Mapping):
            _flatten(value, path, layer, flat, problems)
        elif path in _SECTIONS:
            problems.append(Problem(layer, ".".join(path), f"is a section with keys, not {value!r}"))
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
    """Return the layer's values with absolute paths (from `base` or the current directory); report invalid ones.

    Layers are checked one by one, so that an invalid value is reported with its layer even if a later layer hides it.
    Conditions on several keys (a floor above its ceiling) are checked at the end: the keys may be in different layers.
    """
    flat = {path: _absolute(path, value, base) for path, value in flat.items()}
    if _RULES in flat:
        flat[_RULES] = with_source(flat[_RULES], layer)
    for path in [path for path, value in flat.items() if not _is_text(value)]:
        problems.append(Problem(layer, ".".join(path), f"{flat.pop(path)!r} is not UTF-8 text"))
    for location, what in _complaints(_nested(flat), strict=strict):
        setting = next((_BY_PATH[location[:d]] for d in range(len(location), 0, -1) if location[:d] in _BY_PATH), None)
        if setting is not None:
            problems.append(Problem(layer, _key(setting, location), what))
    return flat


def _is_text(value: Any) -> bool:
    """Return False for bytes (of an argument, variable or path) that are not UTF-8: TOML cannot contain them."""
    try:
        json.dumps(value, default=str, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _absolute(path: tuple[str, ...], value: Any, base: Path | None) -> Any:
    """Make paths absolute. A bare program name ("python3") is left to PATH."""
    if path not in _PATHS or not isinstance(value, str) or not value or "\0" in value:
        return value
    if path == ("launch", "python") and "/" not in value:
        return value
    return absolute(value, base)


def _complaints(nested: dict[str, Any], *, strict: bool) -> list[tuple[tuple[str, ...], str]]:
    """Return pydantic's errors about the values, as (location, sentence)."""
    # through JSON, where "strict" still accepts arrays and paths as text; dates and times of TOML become text
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
        return f"no such key; valid are {', '.join(RuleTable.model_fields)}"
    message: str = item["msg"][0].lower() + item["msg"][1:]
    return message.replace("input should", "should").partition(", unable to")[0] + f", not {item['input']!r}"


def _key(setting: Setting, location: tuple[str, ...]) -> str:
    """Return the key with list indices and the keys of tables in lists: policy.rules[2].category[0]."""
    rest = location[len(setting.path) :]
    in_a_list = next((i for i, part in enumerate(rest) if part.isdigit()), len(rest))
    return setting.key + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest[in_a_list:])


def _merge(below: Flat, above: Flat) -> None:
    for path, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(path), dict):
            value = {**below[path], **value}
        if path == _MODE and below.get(path) == OBSERVE:
            continue  # the strictest layer decides
        if path in _NAMED_TABLES:
            value = merge_named(value, below.get(path))
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
        raise refuse([Problem("all layers combined", ".".join(at), what) for at, what in complaints], _ALL)
    return Settings.model_validate_json(json.dumps(nested, default=str))

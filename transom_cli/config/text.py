"""Settings from text: what a variable or a flag says, turned into the shape that a TOML file would have. Pure."""

from __future__ import annotations

import shlex
from typing import Any

from transom_cli.config.describe import Setting

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib


def from_text(setting: Setting, text: str) -> Any:
    """The value that ``text`` means for ``setting``. ValueError, as a sentence, when it cannot be read."""
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
    if setting.path == ("job", "setup"):  # lines of shell, whose blanks are theirs
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

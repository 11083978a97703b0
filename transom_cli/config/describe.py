"""Describe all settings, for `docs/settings.md`, help texts and the loader's hints. Pure."""

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from transom_cli.config.model import Settings

ENV_PREFIX = "TRANSOM_"


@dataclass(frozen=True)
class Setting:
    """One setting. kind: text, path, int, float, bool, list or table. default: TOML text, "" for unset."""

    path: tuple[str, ...]
    kind: str
    optional: bool
    default: str
    description: str
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable for this setting."""
        return ENV_PREFIX + "__".join(part.upper() for part in self.path)


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a section, or None for a single setting."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def settings_of(model: type[BaseModel] = Settings, above: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield every setting, in the order of the model."""
    for name, info in model.model_fields.items():
        section = section_of(info)
        if section is not None:
            yield from settings_of(section, (*above, name))
        else:
            yield _setting((*above, name), info)


def _setting(path: tuple[str, ...], info: FieldInfo) -> Setting:
    kind, optional, choices = _kind(info.annotation)
    default = "" if info.default_factory is not None or info.default is None else _toml(info.default)
    return Setting(path, kind, optional, default, info.description or "", choices)


def _kind(annotation: Any) -> tuple[str, bool, tuple[str, ...]]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kind(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        inner = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
        kind, _, choices = _kind(inner)
        return kind, True, choices
    if origin is typing.Literal:
        return "text", False, typing.get_args(annotation)
    plain = {tuple: "list", dict: "table", Path: "path", str: "text", int: "int", float: "float", bool: "bool"}
    return plain[origin or annotation], False, ()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return "{}" if isinstance(value, dict) else str(value)

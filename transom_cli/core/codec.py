"""Events and other frozen dataclasses to and from plain JSON values. Pure; driven by the classes' own annotations."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from transom_cli.core import events

T = TypeVar("T")


class BadRecord(ValueError):
    """A record that no class of this version can read."""


def plain(value: Any) -> Any:
    """A dataclass, enum, tuple or scalar as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    return value


def build(cls: type[T], data: Mapping[str, Any]) -> T:
    """The inverse of `plain`. Unknown keys are left out (a newer writer), missing ones take the default."""
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable
    try:
        known = {name: _value(hints[name], data[name]) for name in hints if name in data}
        return cls(**known)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"not a {cls.__name__}: {error}") from error


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _value(next(h for h in typing.get_args(hint) if h is not type(None)), value)
    if origin is tuple:
        of = typing.get_args(hint)
        if of[-1] is not Ellipsis and len(of) != len(value):
            raise TypeError(f"{value!r} has not {len(of)} parts")
        hints = of if of[-1] is not Ellipsis else (of[0],) * len(value)
        return tuple(_value(h, x) for h, x in zip(hints, value, strict=True))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and not isinstance(value, hint):
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value


_EVENTS: dict[str, type[events.Event]] = {
    cls.__name__: cls
    for cls in vars(events).values()
    if isinstance(cls, type) and issubclass(cls, events.Event) and cls is not events.Event
}


def event_to_json(event: events.Event) -> dict[str, Any]:
    return {"type": type(event).__name__, **plain(event)}


def event_from_json(data: Mapping[str, Any]) -> events.Event:
    cls = _EVENTS.get(str(data.get("type")))
    if cls is None:
        raise BadRecord(f"unknown event type {data.get('type')!r}")
    return build(cls, data)

"""Events and other frozen dataclasses to and from plain JSON values. Pure; driven by the classes' own annotations."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
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
    known = {}
    try:
        for name, kind, read in _readers(cls):  # type: ignore[arg-type]  # a class is hashable
            if name in data:
                value = data[name]
                known[name] = value if type(value) is kind else read(value)
        return cls(**known)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"not a {cls.__name__}: {error}") from error


@cache
def _readers(cls: type) -> tuple[tuple[str, Any, Callable[[Any], Any]], ...]:
    """By field: the type of a value that needs no reading, and what reads any other.

    Made once: an examination of a thousand nodes has millions of values.
    """
    hints = typing.get_type_hints(cls)
    plainly = (str, int, float, bool)
    names = [f.name for f in dataclasses.fields(cls)]
    return tuple((n, hints[n] if hints[n] in plainly else None, _reader(hints[n])) for n in names)


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = _reader(next(h for h in typing.get_args(hint) if h is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        of = typing.get_args(hint)
        parts = tuple(_reader(h) for h in of if h is not Ellipsis)
        return _row(parts[0]) if of[-1] is Ellipsis else _parts(parts)
    if not isinstance(hint, type):
        return lambda value: value
    if issubclass(hint, enum.Enum):
        return hint
    if dataclasses.is_dataclass(hint):
        return lambda value: build(hint, value)
    return _scalar(hint)


def _row(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple([read(x) for x in value])


def _parts(readers: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if len(readers) != len(value):
            raise TypeError(f"{value!r} has not {len(readers)} parts")
        return tuple([one(x) for one, x in zip(readers, value, strict=True)])

    return read


def _scalar(hint: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, hint):
            raise TypeError(f"{value!r} is not {hint.__name__}")
        return value

    return read


@cache
def _events() -> dict[str, type[events.Event]]:
    """Event classes by name. Imported late: ranks and snapshot daemons, which start often, need none."""
    from transom_cli.core import events

    return {
        name: cls
        for name, cls in vars(events).items()
        if isinstance(cls, type) and issubclass(cls, events.Event) and cls is not events.Event
    }


def event_to_json(event: events.Event) -> dict[str, Any]:
    return {"type": type(event).__name__, **plain(event)}


def event_from_json(data: Mapping[str, Any]) -> events.Event:
    cls = _events().get(str(data.get("type")))
    if cls is None:
        raise BadRecord(f"unknown event type {data.get('type')!r}")
    return build(cls, data)

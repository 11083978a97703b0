"""Requests, replies and their dispatch, the same for TCP connections and for the Unix socket within a node.

A service lists what it answers in one table, ``VERBS: dict[str, Verb]``. A request is a frozen dataclass, or the
parameters of a handler that is marked with `verb`, so that its fields and their types are declared in one place.
`decode` validates them. Whatever a handler or a check raises becomes the error of the reply.

    call     {"verb": name, "request": {field: value}}
    result   {"ok": true, "answer": {field: value}, "bulk": bytes that follow}, or {"ok": false, "error": text}
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from transom_cli.errors import TransomError
from transom_cli.rpc.wire import Malformed

T = TypeVar("T")
Fields = dict[str, Any]

ERROR_TEXT = 4000  # characters of an error that are sent


@dataclass(frozen=True)
class Call:
    """A request as it arrived. ``size``: bytes of its message. ``fds``: descriptors that came with it; a handler that
    takes one over removes it from the list."""

    verb: str
    request: Fields
    size: int = 0
    fds: list[int] = field(default_factory=list)

    def encode(self) -> Fields:
        return {"verb": self.verb, "request": self.request}

    @classmethod
    def decode(cls, body: Mapping[str, object], size: int = 0, fds: list[int] | None = None) -> Call:
        """Raises Malformed."""
        verb, request = body.get("verb"), body.get("request")
        if not isinstance(verb, str) or not isinstance(request, dict):
            raise Malformed("a call without a verb or a request")
        return cls(verb, request, size, [] if fds is None else fds)


@dataclass(frozen=True)
class Reply:
    """What a handler returns. ``bulk``: views to send after the message, not copied. ``fds``: descriptors to pass."""

    answer: Fields = field(default_factory=dict)
    bulk: Sequence[memoryview] = ()
    fds: Sequence[int] = ()


@dataclass(frozen=True)
class Result:
    """A reply's message."""

    ok: bool
    answer: Fields = field(default_factory=dict)
    bulk: int = 0  # bytes
    error: str = ""

    @classmethod
    def failure(cls, error: BaseException) -> Result:
        return cls(False, error=explain(error)[:ERROR_TEXT])

    def encode(self) -> Fields:
        if self.ok:
            return {"ok": True, "answer": self.answer, "bulk": self.bulk}
        return {"ok": False, "error": self.error}

    @classmethod
    def decode(cls, body: Mapping[str, object]) -> Result:
        """Raises Malformed."""
        ok, answer, size = body.get("ok"), body.get("answer"), body.get("bulk")
        if ok is False:
            return cls(False, error=str(body.get("error", "")))
        if ok is not True or not isinstance(answer, dict) or type(size) is not int or size < 0:
            raise Malformed("not a result")
        return cls(True, answer, size)


@dataclass(frozen=True)
class Verb:
    """handler: called with the service and the request, and with the call's descriptors if ``fds`` is not 0."""

    handler: Callable[..., Reply]
    request: type[Any] | None  # None if the fields are the handler's parameters, by name
    limit: int = 4096  # bytes of the call's message
    fds: int = 0  # descriptors that must come with it


Handler = Callable[[Call], Reply]


def dispatch(verbs: Mapping[str, Verb], service: object, call: Call) -> Reply:
    """Check the call and run its handler. Raises ValueError for a call that the table does not allow."""
    verb = verbs.get(call.verb)
    if verb is None:
        raise ValueError(f"unknown verb {call.verb!r}")
    if call.size > verb.limit:
        raise ValueError(f"{call.verb} has {call.size} bytes, and {verb.limit} are allowed")
    if len(call.fds) < verb.fds:
        raise ValueError(f"{call.verb} needs {verb.fds} descriptors, and {len(call.fds)} came")
    if verb.request is None:
        more = {"fds": call.fds} if verb.fds else {}
        return verb.handler(service, **_known(verb.handler, call.request, ("self", "fds")), **more)
    request = decode(verb.request, call.request)
    return verb.handler(service, request, call.fds) if verb.fds else verb.handler(service, request)


F = TypeVar("F", bound=Callable[..., Reply])


def verb(*, limit: int = 4096, fds: int = 0) -> Callable[[F], F]:
    """Mark a method as a handler, whose parameters are the fields of its request. See `Verb`."""

    def marked(handler: F) -> F:
        handler.__dict__["verb"] = Verb(handler, None, limit, fds)
        return handler

    return marked


def verbs_of(service: type, prefix: str = "") -> dict[str, Verb]:
    """The table of the marked methods of a class, by their names without the prefix."""
    marked = {name: method.__dict__.get("verb") for name, method in vars(service).items() if inspect.isfunction(method)}
    return {name.removeprefix(prefix): found for name, found in marked.items() if found is not None}


def explain(error: BaseException) -> str:
    """Return an error in one line, for the caller on the other side."""
    if isinstance(error, TransomError):
        return f"{error.what}: {error.why}" if error.why else error.what
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Empty:
    """A request without fields."""


def decode(cls: type[T], fields: Mapping[str, object], *, strict: bool = False) -> T:
    """Build a dataclass from JSON values.

    Raises ValueError for a missing field, for a value of another type, and for an unknown field if ``strict``, as in
    nested values. A request itself may have more fields, from a newer version.
    """
    known = _known(cls, fields)
    if strict and len(known) < len(fields):
        raise ValueError(f"not a {cls.__name__}: {sorted(set(fields) - set(known))} are unknown")
    return cls(**known)


def _known(taker: Callable[..., Any], fields: Mapping[str, object], but: tuple[str, ...] = ()) -> Fields:
    """The fields that are parameters of a class or function. Raises ValueError."""
    hints, known = _hints(taker), {}
    for name, parameter in _parameters(taker).items():
        if name in fields and name not in but:
            known[name] = _value(hints[name], fields[name], name)
        elif parameter.default is inspect.Parameter.empty and name not in but:
            raise ValueError(f"{name} is missing")
    return known


_hints = cache(typing.get_type_hints)
_parameters = cache(lambda taker: inspect.signature(taker).parameters)


def _value(hint: Any, value: object, name: str) -> Any:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(of[0], value, name)
    if origin is tuple and isinstance(value, list):
        if of[-1] is Ellipsis:
            return tuple(_value(of[0], part, name) for part in value)
        if len(of) == len(value):
            return tuple(_value(kind, part, name) for kind, part in zip(of, value, strict=True))
    elif origin is dict and isinstance(value, dict):
        return {key: _value(of[1], part, name) for key, part in value.items()}
    elif hint in (Any, object) or type(value) is hint:
        return value
    elif hint is float and type(value) is int:
        return float(value)
    elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return decode(typing.cast(type, hint), value, strict=True)
    raise ValueError(f"{name} is {value!r:.200}, not {getattr(hint, '__name__', hint)}")

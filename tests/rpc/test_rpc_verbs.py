"""The table of verbs: what a call must look like, and what becomes of one that does not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from transom_cli.rpc.verbs import Call, Reply, Result, Verb, decode, dispatch
from transom_cli.rpc.wire import Malformed


@dataclass(frozen=True)
class Part:
    name: str
    size: int = 0


@dataclass(frozen=True)
class Request:
    step: int
    seconds: float = 1.0
    files: tuple[str, ...] = ()
    pair: tuple[str, int] = ("", 0)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError("step is negative")


class Service:
    def save(self, request: Request) -> Reply:
        return Reply({"step": request.step})

    def take(self, request: Request, fds: list[int]) -> Reply:
        return Reply({"fds": len(fds)})


VERBS = {"save": Verb(Service.save, Request, limit=100), "take": Verb(Service.take, Request, fds=1)}


def test_request_is_decoded_into_its_types() -> None:
    fields = {"step": 3, "seconds": 2, "files": ["a"], "pair": ["n", 1], "places": {"n1": ["::1", 5]}}
    assert decode(Request, {**fields, "part": {"name": "x"}, "of a newer version": 1}) == Request(
        3, 2.0, ("a",), ("n", 1), {"n1": ("::1", 5)}, Part("x")
    )
    assert decode(Request, {"step": 3, "part": None}) == Request(3)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"step": "3"},
        {"step": True},
        {"step": 3.0},
        {"step": None},
        {"step": -1},
        {"step": 3, "seconds": "2"},
        {"step": 3, "files": "abc"},
        {"step": 3, "files": [1]},
        {"step": 3, "pair": ["n"]},
        {"step": 3, "places": [["n", 1]]},
        {"step": 3, "places": {"n": ["a", "b"]}},
        {"step": 3, "part": {"size": 1}},
    ],
)
def test_field_of_another_type_or_missing_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        dispatch(VERBS, Service(), Call("save", fields))


def test_call_runs_the_handler_of_its_verb() -> None:
    assert dispatch(VERBS, Service(), Call("save", {"step": 3}, size=100)).answer == {"step": 3}
    assert dispatch(VERBS, Service(), Call("take", {"step": 3}, fds=[7])).answer == {"fds": 1}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (Call("_save", {"step": 3}), "unknown verb '_save'"),
        (Call("__class__", {}), "unknown verb"),
        (Call("save", {"step": 3}, size=101), "101 bytes, and 100 are allowed"),
        (Call("take", {"step": 3}), "needs 1 descriptors"),
    ],
)
def test_call_that_the_table_does_not_allow_is_refused(call: Call, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        dispatch(VERBS, Service(), call)


def test_call_and_result_survive_the_wire() -> None:
    assert Call.decode(Call("save", {"step": 1}).encode()) == Call("save", {"step": 1})
    for result in (Result(True, {"x": 1}, 5), Result(False, error="no")):
        assert Result.decode(result.encode()) == result


@pytest.mark.parametrize("body", [{}, {"ok": 1}, {"ok": True}, {"ok": True, "answer": {}, "bulk": -1}])
def test_message_that_is_not_a_result_is_malformed(body: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Result.decode(body)

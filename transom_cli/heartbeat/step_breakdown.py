"""How the ranks of a node spend their steps, by phase: the JSON document `nodes/<node>.spent`. Pure.

    {"schema": 1, "node": ..., "attempt": ..., "ranks": [{"rank": ..., "step": ..., "seconds": {"data": ...}, ...}]}

The agent writes sums since the rank's start and replaces them every few seconds: a reader takes the difference of two
readings. They are not part of the heartbeat table, so that readers of progress read less. Numbers that are not finite
are written as strings, since JSON has none for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class BadStepBreakdown(ValueError):
    """The text is not a step breakdown that an agent wrote."""


@dataclass(frozen=True)
class RankSteps:
    """at: when `step` was the last one done (node's monotonic clock, s). began: tells accounts apart.

    seconds: by phase, since `began`; "other" is outside all phases. loss: of step `loss_step`; grad_norm and
    loss_scale: of that step or an earlier one; None: not reported. device: the seconds are an accelerator's, and may be
    a few steps behind. logged: what the trainer's log shows on this node (diagnose.logs.trainer_lines). listens: the
    rank saves a final checkpoint on request.
    """

    rank: int
    launch: int
    step: int
    at: float
    began: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    loss_step: int = -1
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    device: bool = False
    logged: Mapping[str, float | str] = field(default_factory=dict)
    listens: bool = False
    guard: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeSteps:
    node: str
    attempt: str
    ranks: tuple[RankSteps, ...]


def encode(spent: NodeSteps) -> str:
    ranks = [{k: v if k in ("logged", "guard") else _plain(v) for k, v in vars(rank).items()} for rank in spent.ranks]
    return json.dumps({"schema": SCHEMA, "node": spent.node, "attempt": spent.attempt, "ranks": ranks}) + "\n"


def decode(text: str) -> NodeSteps:
    """Ignores keys of a newer writer. Raises BadStepBreakdown for anything that `encode` does not make."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        return NodeSteps(str(data["node"]), str(data["attempt"]), tuple(_rank(one) for one in data["ranks"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadStepBreakdown(f"not an account of a node: {error}") from None


def _rank(data: Mapping[str, object]) -> RankSteps:
    seconds = data["seconds"]
    if not isinstance(seconds, dict):
        raise TypeError("seconds is no object")
    return RankSteps(
        rank=_whole(data["rank"]),
        launch=_whole(data["launch"]),
        step=_whole(data["step"]),
        at=_finite(data["at"]),
        began=_finite(data["began"]),
        seconds={str(name): _finite(value) for name, value in seconds.items()},
        loss_step=_whole(data["loss_step"]),
        loss=_number_or_none(data["loss"]),
        grad_norm=_number_or_none(data["grad_norm"]),
        loss_scale=_number_or_none(data["loss_scale"]),
        device=data["device"] is True,
        logged=_logged(data.get("logged")),
        listens=data.get("listens") is True,
        guard=_object(data.get("guard")),
    )


def _logged(data: object) -> dict[str, float | str]:
    return {str(k): v for k, v in data.items() if isinstance(v, (float, str))} if isinstance(data, dict) else {}


def _object(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: round(seconds, 6) for name, seconds in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number of seconds")
    return float(value)


def _number_or_none(value: object) -> float | None:
    if value is None:
        return None
    return _WORDS[value] if isinstance(value, str) else float(_number(value))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    return value

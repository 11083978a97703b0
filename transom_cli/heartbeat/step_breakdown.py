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

from transom_cli.rpc import verbs

SCHEMA = 1
_LOSSES = ("loss", "grad_norm", "loss_scale")  # which need not be finite


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
    seconds: dict[str, float] = field(default_factory=dict)
    loss_step: int = -1
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    device: bool = False
    logged: dict[str, Any] = field(default_factory=dict)
    listens: bool = False
    guard: dict[str, Any] = field(default_factory=dict)


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
        data = _STRICT.decode(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}")
        return NodeSteps(str(data["node"]), str(data["attempt"]), tuple(map(_rank, data["ranks"])))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadStepBreakdown(f"not an account of a node: {error}") from None


def _rank(data: Mapping[str, Any]) -> RankSteps:
    losses = {name: float(data[name]) for name in _LOSSES if isinstance(data[name], str)}
    logged = {name: value for name, value in data.get("logged", {}).items() if isinstance(value, (float, str))}
    return verbs.decode(RankSteps, {**data, **losses, "logged": logged})


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: round(seconds, 6) for name, seconds in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)

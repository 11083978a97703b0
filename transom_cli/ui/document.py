"""A view as the JSON document of `transom status --json`: ui/schema/status.json says what is in it. Pure.

Within a schema number it is only ever added to. Times are seconds of the wall clock, or of a length; beside those that
are a moment stands the same moment in UTC, its key ending in `_utc`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

from transom_cli.health.gpu.shown import gpu_objects
from transom_cli.ui.slurmwords import waiting_words
from transom_cli.ui.view import NodeView, RunView
from transom_cli.ui.words import utc

SCHEMA = 1
_MOMENTS = ("now", "since", "submitted", "operator_at", "nodes_at", "slurm_asked", "slurm_start")


def document(view: RunView) -> str:
    return json.dumps(plain(view), allow_nan=False)


def plain(view: RunView) -> dict[str, Any]:
    data = asdict(replace(view, node_views=()))
    data["node_views"] = [_node(one) for one in view.node_views]  # `asdict` would take as long as reading them
    if view.loss is not None and not math.isfinite(view.loss):
        data["loss"] = None  # JSON has no word for it
    data |= {f"{key}_utc": _utc(data[key]) for key in _MOMENTS}
    for one in data["incidents"]:
        one["began_utc"] = _utc(one["began"])
    for one in (*data["ahead"], *(data[key] for key in ("next_save", "next_durable") if data[key])):
        one["at_utc"] = _utc(one["at"])
    for one in data["under_way"]:
        one["began_utc"] = _utc(one["began"])
    return {"schema": SCHEMA, **data, "slurm_words": waiting_words(view), "word": view.word, "standing": view.standing}


def _node(one: NodeView) -> dict[str, Any]:
    """Where it shows any: its GPUs below what is known of them together, and how old that is."""
    data = {key: value for key, value in vars(one).items() if key not in ("gpus", "gpus_age")}
    if one.gpus is not None:
        told = {key: value for key, value in vars(one.gpus).items() if key not in ("node", "attempt", "lines")}
        old = {"age": one.gpus_age, "old": one.gpus.old(one.gpus_age)}
        data["gpus"] = {**told, **old, "gpus": gpu_objects(one.gpus)}
    return data


def _utc(at: float | None) -> str | None:
    return utc(at) if at else None

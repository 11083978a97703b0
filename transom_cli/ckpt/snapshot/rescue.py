"""What is committed in memory and not yet durable becomes so without a trainer: before the nodes are given up.

The launcher asks, through the nodes' agents, when ranks are dead or hang. Any holder that has the step's record can see
to it; it asks its neighbours for their shares, as for every durable checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.snapshot.holding import Holding
from transom_cli.ckpt.snapshot.outcomes import COPYING, DONE
from transom_cli.ckpt.snapshot.persisting import Order

TELL = 2.0  # seconds for a neighbour to hear that the step must not be overwritten


def newest(holding: Holding) -> dict[str, Any]:
    """The newest committed step here, None where there is none, and whether it is durable already."""
    step = holding.shelf.newest
    durable = step is not None and _on_disk(holding, step)
    return {"directory": holding.shelf.directory, "step": step, "durable": durable}


def rescue(holding: Holding, step: int, attempt: str, seconds: float) -> dict[str, Any]:
    """Make `step` durable in the name of `attempt`, the newest launch. Returns state and trouble (persisting) after
    `seconds` at the latest; a write that is under way then goes on.

    Old checkpoints go only where a rank has said how many are to be kept.
    """
    if _on_disk(holding, step):
        return {"state": DONE, "trouble": ""}
    holding.neighbours.ask_all("reserve", TELL, step=step)  # ranks that step on would overwrite it
    holding.persisting.begin(Order(step, attempt, holding.persisting.keep))
    state, trouble = holding.persisting.outcome(step, seconds)
    return {"state": DONE if state == COPYING else state, "trouble": trouble}


def _on_disk(holding: Holding, step: int) -> bool:
    record = holding.shelf.records.get(step)
    if record is None:
        return False
    try:
        return (Path(holding.shelf.directory) / step_name(step) / MANIFEST).read_bytes() == record.manifest
    except OSError:
        return False

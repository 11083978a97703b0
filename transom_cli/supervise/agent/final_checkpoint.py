"""The agent's part of a flush: it writes the node's order, and tells how far the ranks are that will see it.

The launcher asks every node first, picks a step beyond what any rank has reached, and orders it on all nodes. An answer
to an order is taken after the order stands: a rank whose step is smaller there is certain to find it in time. Where one
is not, the launcher orders a larger step. That is safe whatever the ranks have done by then: those that were in time
for the first order have begun a checkpoint that never stands, and all come together at the next (ckpt.saving.engine).
"""

from __future__ import annotations

import os
import threading
import time

from transom_cli.heartbeat import final_checkpoint

SETTLE = 0.002  # seconds for a store of another core to be seen here; it takes far less
LARGEST = 1 << 53  # a step that JSON carries exactly
_one_at_a_time = threading.Lock()


def ask(beats_dir: str, launch: int, step: int) -> dict[str, object]:
    """Order a checkpoint at `step`, or with -1 only ask.

    listening: the ranks of this node that will see an order. reached: the furthest step that one of them has passed
    to save(), -1: none. keeps: those that outlive a TERM for a moment. ordered: the order that stands now, -1: none;
    an order only ever grows. Raises OSError, and ValueError when the launch is being ended.
    """
    ordered = _order(beats_dir, launch, step)
    if ordered == final_checkpoint.END:
        raise ValueError(f"launch {launch} is being ended: it makes no more checkpoints")
    if step >= 0:
        time.sleep(SETTLE)
    ranks = final_checkpoint.listeners(beats_dir, launch)
    return {
        "listening": [x.rank for x in ranks],
        "reached": max((x.step for x in ranks), default=final_checkpoint.NONE),
        "keeps": [x.rank for x in ranks if x.keeps],
        "ordered": ordered,
    }


def end_now(beats_dir: str, launch: int) -> None:
    """No order will come: ranks that keep through TERM need not wait for one. Raises OSError and ValueError."""
    _order(beats_dir, launch, final_checkpoint.END)


def _order(beats_dir: str, launch: int, step: int) -> int:
    """Make `step` the order unless a larger one stands; the one that stands then."""
    with _one_at_a_time:
        fd = final_checkpoint.open_order(beats_dir, launch, os.O_RDWR)
        try:
            seq, ordered = final_checkpoint.read(fd)
            if step <= ordered:
                return ordered
            final_checkpoint.write(fd, seq + 1, step)
            return step
        finally:
            os.close(fd)

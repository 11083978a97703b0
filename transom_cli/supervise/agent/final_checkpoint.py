"""The agent's part of a final checkpoint: it writes the node's order and reports how far the node's ranks are.

The launcher asks every node first, picks a step beyond what any rank has reached, and orders it on all nodes. The agent
reads the ranks' steps after it has written the order, so a rank with a smaller step is certain to find it in time. If a
rank is already further, the launcher orders a larger step. That is safe at any time: ranks that were in time for the
first order have begun a checkpoint that is never committed, and all ranks meet at the next one.
"""

import os
import threading
import time

from transom_cli.heartbeat import final_checkpoint

SETTLE = 0.002  # seconds for a store of another core to be seen here; it takes far less
LARGEST = 1 << 53  # a step that JSON carries exactly
_one_at_a_time = threading.Lock()


def ask(beats_dir: str, launch: int, step: int) -> dict[str, object]:
    """Order a checkpoint at `step`; -1 only asks.

    Returns:
        listening: ranks of this node that will see an order. reached: the furthest step that one of them has passed to
        save(), or -1. keeps: ranks that survive a TERM for a moment. ordered: the order in force, or -1; it only grows.

    Raises:
        OSError: the node's order cannot be written.
        ValueError: the launch is being ended.
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
    """Tell ranks that survive TERM that no final checkpoint will be ordered. Raises OSError and ValueError."""
    _order(beats_dir, launch, final_checkpoint.END)


def _order(beats_dir: str, launch: int, step: int) -> int:
    """Make `step` the order unless a larger one is in force. Return the order in force."""
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

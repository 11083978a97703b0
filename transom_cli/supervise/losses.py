"""The losses of a training along its time, as its launchers have kept them in `progress.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator

from transom_cli.core.goodput.account import Loss
from transom_cli.files import json_lines
from transom_cli.layout import AttemptDir


def read_losses(attempt: AttemptDir) -> Iterator[Loss]:
    """Of the lines that have one: older launchers wrote none. They may be no finite numbers."""
    try:
        text = attempt.progress.read_bytes()
    except OSError:
        return
    if b'"loss"' not in text:
        return
    for record in json_lines(text):
        at, launch, step, loss = (record.get(key) for key in ("wall", "launch", "step", "loss"))
        if not isinstance(at, (int, float)) or not isinstance(launch, int) or not isinstance(step, int):
            continue
        if isinstance(loss, (int, float)):
            yield Loss(attempt.name, launch, float(at), step, float(loss))

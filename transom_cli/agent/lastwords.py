"""What a rank's wrapper says of its rank once that has ended: its last step, and the exit record.

Loaded when the rank has been started, so that it is no part of the start-up.
"""
# pathlib would cost more than all the rest
# ruff: noqa: PTH103, PTH104, PTH118, PTH123, PTH208

from __future__ import annotations

import json
import os

from transom_cli.beats import record


def last_step(beats: int | None, held: int | None, code: int | None, launch: int) -> int:
    """The last step of the rank (with torchrun: the furthest of the node's ranks); -1: none. Settles the phase too."""
    try:
        if beats is not None:
            last = record.read(beats)
            if last is None:
                return -1
            if code == 0:
                last.phase = record.DONE
            elif last.phase == record.DONE:  # the interpreter ended in order, and yet not with success
                last.phase = record.STEP
            last.seq += 1
            record.write(beats, last)
            return last.step
        steps = [-1]
        for name in os.listdir(held) if held is not None else ():
            if name.startswith("rank-") and not name.endswith(".tmp"):
                fd = os.open(name, os.O_RDONLY, dir_fd=held)
                last = record.read(fd)
                os.close(fd)
                if last is not None and last.launch == launch:
                    steps.append(last.step)
        return max(steps)
    except OSError:
        return -1


def publish(folder: str, name: str, content: dict[str, object]) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.tmp")
    with open(temporary, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(folder, name))
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

"""What a rank's wrapper says of its rank once that has ended: its last step, and the exit record.

Loaded when the rank has been started, so that it is no part of the start-up.
"""
# pathlib would cost more than all the rest
# ruff: noqa: PTH104, PTH118, PTH208

import json
import os

from transom_cli.heartbeat import record
from transom_cli.modes import make_folder, open_to_group


def last_step(beats: int | None, held: int | None, code: int | None, launch: int) -> tuple[int, bool]:
    """Return the rank's last step (with torchrun: the furthest of the node's ranks), or -1; settle the phase.

    Also return whether the step counts from the start of the process (see `record.SINCE_START`).
    """
    try:
        if beats is not None:
            last = record.read(beats)
            if last is None:
                return -1, False
            if code == 0:
                last.phase = record.DONE
            elif last.phase == record.DONE:  # the interpreter ended in order, and yet not with success
                last.phase = record.STEP
            last.seq += 1
            record.write(beats, last)
            return last.step, last.since_start
        steps = {False: -1, True: -1}  # by whether they count from the start
        for name in os.listdir(held) if held is not None else ():
            if name.startswith("rank-") and not name.endswith(".tmp"):
                fd = os.open(name, os.O_RDONLY, dir_fd=held)
                last = record.read(fd)
                os.close(fd)
                if last is not None and last.launch == launch:
                    steps[last.since_start] = max(last.step, steps[last.since_start])
        return (steps[True], True) if steps[False] < 0 <= steps[True] else (steps[False], False)
    except OSError:
        return -1, False


def publish(folder: str, name: str, content: dict[str, object]) -> None:
    make_folder(folder)
    temporary = os.path.join(folder, f".{name}.tmp")
    with open(temporary, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        open_to_group(file.fileno(), temporary)
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(folder, name))
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

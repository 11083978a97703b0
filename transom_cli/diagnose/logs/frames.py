"""Where a Python traceback in a log left the trainer's own code."""

import zlib
from collections import deque
from itertools import islice
from pathlib import Path

from transom_cli.diagnose.logs.aftermath import open_log
from transom_cli.diagnose.logs.lazy_re import lazy_re

_LABEL = lazy_re(rb"(?:\[rank\d+\]: ?|\d+: )?")  # of torch's distributed excepthook, of `srun --label`
_FRAME = lazy_re(rb'\s+File "([^"\n]+)", line (\d+)')
_INSTALLED = lazy_re(rb"/(?:site|dist)-packages/|/transom_cli/|/lib/python3|^<")  # no frame of the trainer's own
_TRACEBACK = 400  # longest one, in lines


def trainer_frame(path: Path, number: int) -> str:
    """Return `FILE:LINE` of the trainer's innermost frame in the traceback that ends at a line; "" if none does."""
    if not path.is_file():
        return ""  # a pipe cannot be read again
    try:
        with open_log(path) as file:
            lines = deque(islice(file, number), maxlen=_TRACEBACK)
    except (OSError, EOFError, zlib.error):
        return ""
    label = _label(lines.pop()) if lines else b""
    for line in reversed(lines):
        if _label(line) != label:
            continue  # of another rank
        above = line[len(label) :]
        match = _FRAME.match(above)
        if match is not None and not _INSTALLED.search(match[1]):
            return f"{match[1].decode(errors='replace')}:{int(match[2])}"
        if not above[:1].isspace():
            return ""
    return ""


def _label(line: bytes) -> bytes:
    found = _LABEL.match(line)
    return found[0] if found else b""

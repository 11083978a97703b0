"""The example GPT, with ranks that can be made to hold the GIL in a C call: `STUCK` does that for `SECONDS`."""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys
from pathlib import Path

STUCK = signal.SIGRTMIN + 3
SECONDS = 40
GPT = Path(__file__).resolve().parents[1] / "examples" / "gpt"


def main() -> None:
    libc = ctypes.PyDLL(None)  # does not release the GIL
    signal.signal(STUCK, lambda *_: libc.sleep(SECONDS))
    sys.path.insert(0, str(GPT))
    sys.argv[0] = str(GPT / "train.py")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

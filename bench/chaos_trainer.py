"""The example GPT, for faults around an in-process restart.

`STUCK` makes a rank hold the GIL in a C call for `SECONDS`. Its steps last `--step-delay` longer, half of it before the
step, only until the bench has made all faults: then `hurry` exists.
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys
import time
from pathlib import Path

STUCK = signal.SIGRTMIN + 3
SECONDS = 120  # longer than a silence that counts as normal at this pace
GPT = Path(__file__).resolve().parents[1] / "examples" / "gpt"


def hurry(result: Path) -> Path:
    """The file after which a training with this `--final-hash` waits no longer."""
    return result.with_suffix(".hurry")


def main() -> None:
    libc = ctypes.PyDLL(None)  # does not release the GIL
    signal.signal(STUCK, lambda *_: libc.sleep(SECONDS))
    words = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    delay, hurries, sleep = float(words["--step-delay"]), hurry(Path(words["--final-hash"])), time.sleep
    sys.path.insert(0, str(GPT))
    import faststart

    faststart.without_dynamo()
    import data

    def pause() -> None:
        if not hurries.exists():
            sleep(delay / 2)

    def batch(sampler: data.Sampler) -> object:
        pause()
        return next_batch(sampler)

    next_batch, data.Sampler.next_batch = data.Sampler.next_batch, batch
    time.sleep = lambda seconds: pause() if seconds == delay else sleep(seconds)
    sys.argv[0] = str(GPT / "train.py")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

"""`python -m transom_cli.sandbox.throttle DUTY PID:START...`: let processes run for a share of the time only.

Ends when they are all gone; on SIGTERM it lets them run first.
"""

from __future__ import annotations

import signal
import sys
import threading

from transom_cli.sandbox.procs import Ident, alive, signal_one

PERIOD_S = 0.1


def throttle(duty: float, targets: list[Ident], asked_to_end: threading.Event) -> None:
    while any(alive(target) for target in targets) and not asked_to_end.is_set():
        for target in targets:
            signal_one(target, signal.SIGSTOP)
        asked_to_end.wait(PERIOD_S * (1.0 - duty))
        for target in targets:
            signal_one(target, signal.SIGCONT)
        asked_to_end.wait(PERIOD_S * duty)


def main(argv: list[str]) -> None:
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signum, _frame: asked_to_end.set())
    throttle(float(argv[0]), [Ident(*map(int, word.split(":"))) for word in argv[1:]], asked_to_end)


if __name__ == "__main__":
    main(sys.argv[1:])

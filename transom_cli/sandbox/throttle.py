"""`python -m transom_cli.sandbox.throttle DUTY PID:START...`: let processes run only a fraction of the time.

Ends when all of them are gone. On SIGTERM it continues them first.
"""

import signal
import sys
import threading

from transom_cli.sandbox.processes import Ident, alive, signal_one

PERIOD_S = 0.1


def throttle(duty: float, targets: list[Ident], stop: threading.Event) -> None:
    while any(alive(target) for target in targets) and not stop.is_set():
        for target in targets:
            signal_one(target, signal.SIGSTOP)
        stop.wait(PERIOD_S * (1.0 - duty))
        for target in targets:
            signal_one(target, signal.SIGCONT)
        stop.wait(PERIOD_S * duty)


def main(argv: list[str]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signum, _frame: stop.set())
    throttle(float(argv[0]), [Ident(*map(int, word.split(":"))) for word in argv[1:]], stop)


if __name__ == "__main__":
    main(sys.argv[1:])

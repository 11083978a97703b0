"""Examines the node that it runs on, as it is told on stdin, and answers on stdout: one a node, of a `Crew`.

    python -m transom_cli.health.examiner [--node N]

It ends with its stdin. Questions and answers are in `crew`; answers are cut into lines (`lines`). Standard library
alone: the readers and the probe processes, which need more, are children of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from transom_cli.beats.places import node_name
from transom_cli.core.codec import BadRecord, build
from transom_cli.health.about import About
from transom_cli.health.lines import frames
from transom_cli.health.looking import Wanted, look
from transom_cli.health.probing import Probes


class Examiner:
    def __init__(self, node: str, out: int = 1) -> None:
        self._node, self._out = node, out
        self._lock = threading.Lock()
        self._number = 0
        self._probes = Probes(node, self.say)

    def say(self, message: dict[str, Any]) -> None:
        """From any thread. A head that is gone does not hear it, and ends us by our stdin."""
        with self._lock:
            self._number += 1
            data = "".join(f"{line}\n" for line in frames(self._node, self._number, message)).encode("ascii")
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError:
                return

    def hear(self, message: dict[str, Any]) -> bool:
        """Returns at once; False: it is to end. What is not for this node, or makes no sense, is passed over."""
        to = message.get("to")
        if isinstance(to, list) and self._node not in to:
            return True
        do = message.get("do")
        if do == "ping":
            self.say({"re": "ping", "n": message.get("n"), "wall": time.time()})
        elif do == "look":
            threading.Thread(target=self._look, args=(message,), daemon=True).start()
        elif do == "start":
            self._probes.start(message)
        elif do == "probe" and isinstance(message.get("ask"), dict):
            self._probes.ask(message["ask"])
        return do != "bye"

    def _look(self, message: dict[str, Any]) -> None:
        try:
            about = build(About, message["about"])
            wanted = [Wanted(str(c["name"]), str(c["reader"]), float(c["seconds"])) for c in message["checks"]]
            for said in look(about, wanted):
                self.say({"re": "look", **said})
        except (BadRecord, KeyError, TypeError, ValueError, OSError) as error:
            self.say({"re": "look", "check": "", "error": f"{type(error).__name__}: {error}"})

    def end(self) -> None:
        self._probes.end()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="transom examiner", description="Examine this node, as stdin says.")
    parser.add_argument("--node", default=node_name())
    options = parser.parse_args(argv)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every step of a job
    os.environ["SLURMD_NODENAME"] = options.node  # for the children, also where no Slurm has started us
    examiner = Examiner(options.node)
    examiner.say({"re": "here", "pid": os.getpid(), "wall": time.time()})
    try:
        for line in sys.stdin:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and not examiner.hear(message):
                break
    finally:
        examiner.end()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # no thread of a look that still goes on is waited for

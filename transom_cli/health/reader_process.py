"""Run the readers of checks, each in its own thread, and print one line per reading. A child of the node worker.

    {"about": {...}, "checks": [{"name": "nvml", "reader": "package.module:function"}]}      (one line on stdin)

A reader that hangs (NVML, a dead file system) blocks only its own thread. The worker kills this process at the
deadline; it may be stuck in the kernel then, and nobody waits for it. It ends when its stdin closes, and kills the
programs that its readers have started.
"""

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

from transom_cli.core.codec import build, plain
from transom_cli.health.check import About
from transom_cli.health.system import end_all

_LOCK = threading.Lock()


def _read(name: str, reader: str, about: About) -> None:
    began = time.monotonic()
    answer: dict[str, Any] = {"check": name}
    try:
        module, _, function = reader.partition(":")
        answer["reading"] = plain(getattr(importlib.import_module(module), function)(about))
    except Exception as error:  # a bug in one check must not affect the others
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["seconds"] = round(time.monotonic() - began, 3)
    line = json.dumps(answer).encode() + b"\n"
    with _LOCK:
        while line:
            line = line[os.write(1, line) :]


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    end_all()
    os._exit(1)


def main() -> int:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    about = build(About, request["about"])
    threads = [
        threading.Thread(target=_read, args=(c["name"], c["reader"], about), daemon=True) for c in request["checks"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # skip the interpreter's shutdown: a library's own threads (NVML) may hang in it

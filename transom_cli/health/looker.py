"""Reads what was asked for, each check in a thread of its own, and prints a line for each: a child of the examiner.

    {"about": {...}, "checks": [{"name": "nvml", "reader": "package.module:function"}]}      (a line on stdin)

A reader that hangs (NVML, a dead file system) keeps its own thread and nobody else's answer. This process is killed
when its time is up; it may then be stuck in the kernel, and nobody waits for it. It ends with its stdin, and takes the
programs along that its readers have started: they must not outlive the examination.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

from transom_cli.core.codec import build, plain
from transom_cli.health.about import About
from transom_cli.health.node.programs import end_all

_LINE = threading.Lock()


def _read(name: str, reader: str, about: About) -> None:
    began = time.monotonic()
    said: dict[str, Any] = {"check": name}
    try:
        module, _, function = reader.partition(":")
        said["reading"] = plain(getattr(importlib.import_module(module), function)(about))
    except Exception as error:  # a fault of ours, in one check, must not cost the others
        said["error"] = f"{type(error).__name__}: {error}"
    said["seconds"] = round(time.monotonic() - began, 3)
    line = json.dumps(said).encode() + b"\n"
    with _LINE:
        while line:
            line = line[os.write(1, line) :]


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    end_all()
    os._exit(1)


def main() -> int:
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    about = build(About, asked["about"])
    threads = [
        threading.Thread(target=_read, args=(c["name"], c["reader"], about), daemon=True) for c in asked["checks"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # no interpreter's end: a library's own threads (NVML) may hang in it

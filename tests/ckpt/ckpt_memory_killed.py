"""A holder to be killed: prints its port, and sends the first MiBs of any answer and then nothing more for hours."""

from __future__ import annotations

import signal
import sys

from transom_cli.ckpt.snapshot.lines import Answer, Server

SIZE = 16 << 20


def handle(name: str, arguments: dict[str, object]) -> Answer:
    return {}, [memoryview(b"\1" * SIZE)]


if __name__ == "__main__":
    print(Server(bytes.fromhex(sys.argv[1]), sys.argv[2], None, handle, rate=1.0).start("127.0.0.1"), flush=True)
    signal.pause()

"""A server to be killed: prints its port, sends the first MiB of any reply, and then nothing more for hours."""

from __future__ import annotations

import signal
import sys

from rpc_made import make_hash, slow_down

from transom_cli.rpc.server import Server
from transom_cli.rpc.verbs import Call, Reply

SIZE = 16 << 20


def handle(call: Call) -> Reply:
    return Reply({}, [memoryview(b"\1" * SIZE)])


if __name__ == "__main__":
    server = Server(bytes.fromhex(sys.argv[1]), sys.argv[2], None, handle, make_hash=make_hash)
    slow_down(server, 1.0)
    print(server.start("127.0.0.1"), flush=True)
    signal.pause()

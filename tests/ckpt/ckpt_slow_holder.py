"""A snapshot daemon whose disk is slow: for what is to be seen while it writes."""

from __future__ import annotations

import sys
import time

from transom_cli.ckpt import files
from transom_cli.ckpt.snapshot import daemon

PIECE, PAUSE = 64 << 10, 0.4  # bytes, and seconds for so many

_write = files._write


def _slowly(fd, data, told):
    def rested(count):
        told(count)
        time.sleep(PAUSE)

    _write(fd, data, rested)


if __name__ == "__main__":
    files._WRITE_PIECE, files._write = PIECE, _slowly
    sys.exit(daemon.main(sys.argv[1:]))

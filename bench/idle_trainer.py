"""A training that costs nothing: one step per second by the clock, with a heartbeat. For many ranks on one machine."""

from __future__ import annotations

import sys
import time

from transom_cli import beat

steps = int(sys.argv[1])
for step in range(1, steps + 1):
    time.sleep(1.0)
    beat(step)

"""A training that costs nothing: a step a second by the clock, a beat for each. For many ranks on one machine."""

from __future__ import annotations

import sys
import time

from transom_cli import beat

steps = int(sys.argv[1])
for step in range(1, steps + 1):
    time.sleep(1.0)
    beat(step)

"""Generated step times and losses of healthy trainings, from a seed: a detector must raise no alarm for them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from random import Random

Series = Callable[[Random], Iterator[float]]


def steady(random: Random, sigma: float = 0.05) -> Iterator[float]:
    while True:
        yield math.exp(random.gauss(0, sigma))


def periodic(random: Random, every: int, times: float) -> Iterator[float]:
    """Every n-th step evaluates, or saves."""
    for step, seconds in enumerate(steady(random), 1):
        yield seconds * (times if step % every == 0 else 1)


def spiky(random: Random) -> Iterator[float]:
    """One step in fifty is hit by something: 6 times as long on average, without a limit."""
    for seconds in steady(random):
        yield seconds * (1 + random.expovariate(0.2) if random.random() < 0.02 else 1)


def drifting(random: Random, a_thousand: float) -> Iterator[float]:
    for step, seconds in enumerate(steady(random)):
        yield seconds * (1 + a_thousand * step / 1000)


def correlated(random: Random) -> Iterator[float]:
    """Neighbours on the network and the file system come and go: 3 % that last for some 20 steps."""
    slow = 0.0
    while True:
        slow = 0.95 * slow + random.gauss(0, 0.03 * math.sqrt(1 - 0.95**2))
        yield math.exp(slow + random.gauss(0, 0.03))


def uploading(random: Random) -> Iterator[float]:
    """For 40 of 500 steps, other work makes the training a third slower."""
    for step, seconds in enumerate(steady(random)):
        yield seconds * (1.3 if step % 500 >= 460 else 1)


STEPS: dict[str, Series] = {
    "lognormal, 5 %": steady,
    "lognormal, 20 %": lambda r: steady(r, 0.2),
    "every 10th step 3 times as long": lambda r: periodic(r, 10, 3),
    "every 3rd step twice as long": lambda r: periodic(r, 3, 2),
    "every 2nd step twice as long": lambda r: periodic(r, 2, 2),
    "every 200th step 50 times as long": lambda r: periodic(r, 200, 50),
    "spikes": spiky,
    "drifts up 1 % in 1000 steps": lambda r: drifting(r, 0.01),
}
"""What the stated rate holds for: exchangeable within the window, or nearly so."""

HARD: dict[str, Series] = {
    "drifts up 10 % in 1000 steps": lambda r: drifting(r, 0.1),
    "correlated, 3 %": correlated,
    "40 of 500 steps a third slower": uploading,
}
"""Real rises, or similar ones: they may be reported, which the table says."""


def warming_up(random: Random) -> Iterator[float]:
    step = 0
    while True:
        step += 1
        yield 2 + 9 * math.exp(-step / 300) + random.gauss(0, 0.05)


def heavy(random: Random) -> Iterator[float]:
    """Small batches of very different samples."""
    while True:
        yield math.exp(random.gauss(0, 1))


def waves(random: Random) -> Iterator[float]:
    step = 0
    while True:
        step += 1
        yield 2 + 0.5 * math.sin(step / 200) + random.gauss(0, 0.02)


def warm_restarts(random: Random) -> Iterator[float]:
    """The learning rate jumps every 500 steps, and the loss with it."""
    step = 0
    while True:
        step += 1
        yield 2 + 0.3 * math.exp(-(step % 500) / 20) + random.gauss(0, 0.01)


def signed(random: Random) -> Iterator[float]:
    while True:
        yield random.gauss(0, 1)


def wandering(random: Random) -> Iterator[float]:
    """As of reinforcement learning."""
    at = 0.0
    while True:
        at = 0.97 * at + random.gauss(0, 0.3)
        yield at


def rounded(random: Random) -> Iterator[float]:
    """In bfloat16: few different values."""
    while True:
        bits = struct.unpack("<I", struct.pack("<f", 2 + random.gauss(0, 0.01)))[0]
        yield struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def heavy_tailed(random: Random) -> Iterator[float]:
    while True:
        wide = math.sqrt(sum(random.gauss(0, 1) ** 2 for _ in range(3)) / 3)
        yield 2 + 0.05 * random.gauss(0, 1) / wide


LOSSES: dict[str, Series] = {
    "warm-up, then flat": warming_up,
    "lognormal, 100 %": heavy,
    "waves": waves,
    "jumps of 15 % every 500 steps": warm_restarts,
    "around zero": signed,
    "wandering": wandering,
    "rounded to bfloat16": rounded,
    "heavy tails (t, 3 degrees)": heavy_tailed,
}


def norms(random: Random) -> Iterator[float]:
    """Of gradients: one in a hundred is five times as large."""
    while True:
        yield abs(random.gauss(1, 0.2)) * (5 if random.random() < 0.01 else 1)

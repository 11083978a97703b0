"""All ranks of a launch agree on a step at which they save, without a word between them.

The agents are asked how far their ranks are, a step is chosen that none can reach before every agent has passed the
order on, and the answers to the order prove it: a rank that had not reached the step when its node's order stood will
see the order when it does. See docs/architecture.md, "Flush".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from transom_cli.core.launcher import CheckpointPlanned

SPREAD = 1.5  # seconds in which all agents have passed on the order
NOBODY = "no rank has a Checkpointer"
TRIES = 3  # with twice the spread each time

Ask = Callable[[int], Mapping[str, Mapping[str, object]]]  # step (-1: only ask) -> each node's answer


def agree(ask: Ask, launch: int, world: int, step_time: float) -> CheckpointPlanned:
    """The step at which all `world` ranks save, as an event; or -1 and why they cannot.

    step_time: seconds of a step, 0: not known.
    """
    known = ask(-1)
    trouble = _trouble(known, world)
    keeps = any(_numbers(answer, "keeps") for answer in known.values())
    spread = SPREAD
    for _ in range(TRIES):
        if trouble:
            break
        furthest = max(_number(answer, "reached") for answer in known.values())
        step = furthest + 2 + (math.ceil(spread / step_time) if step_time > 0 else 0)
        known, spread = ask(step), 2 * spread
        trouble = _trouble(known, world)
        if not trouble and all(_number(answer, "reached") < step for answer in known.values()):
            return CheckpointPlanned(0.0, launch, step, keeps=keeps)
    words = trouble or "the ranks were faster than the order"
    alone = trouble == NOBODY and all(answer.get("warned") for answer in known.values())
    return CheckpointPlanned(0.0, launch, -1, words, keeps=keeps, again=trouble != NOBODY, alone=alone)


def _trouble(answers: Mapping[str, Mapping[str, object]], world: int) -> str:
    for node, answer in answers.items():
        if not answer.get("ok"):
            return f"{node} gives no answer: {answer.get('error', 'unknown')}"
    listening = sum(len(_numbers(answer, "listening")) for answer in answers.values())
    if not listening:
        return NOBODY
    return "" if listening == world else f"only {listening} of {world} ranks have a Checkpointer"


def _numbers(answer: Mapping[str, object], name: str) -> list[int]:
    found = answer.get(name)
    return [n for n in found if isinstance(n, int)] if isinstance(found, list) else []


def _number(answer: Mapping[str, object], name: str) -> int:
    found = answer.get(name)
    return found if isinstance(found, int) else -1

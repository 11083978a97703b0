"""The last checkpoint of an attempt: agreed among all ranks, or written by the nodes without them.

The ranks agree on a step without communicating. The agents report how far their ranks are, the launcher picks a step
that no rank can reach before every agent has passed the order on, and the answers prove it: a rank that had not reached
the step when its node's order was in place sees the order in time. See "Leaving on purpose" in docs/architecture.md.

If ranks are dead or hang, the nodes write the newest step in their memory to disk. All agents are asked what their
nodes hold; one that holds the newest step is asked to write it, or the next one if it cannot.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from transom_cli.core.launcher import CheckpointPlanned

SPREAD = 1.5  # seconds for all agents to pass on the order
NOBODY = "no rank has a Checkpointer"
TRIES = 3  # with twice the spread each time

Ask = Callable[[int], Mapping[str, Mapping[str, object]]]  # step (-1: only ask) -> each node's answer


def plan_checkpoint(ask: Ask, launch: int, world: int, step_time: float) -> CheckpointPlanned:
    """Agree with all `world` ranks on the step at which they save.

    Args:
        ask: passes a step on to all nodes; with -1 it only asks how far their ranks are.
        step_time: seconds per step; 0 if unknown.

    Returns:
        An event with the step; or with -1 and the reason why the ranks cannot save.
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
            return f"{node} does not answer: {answer.get('error', 'unknown')}"
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


SURVEY = 3.0  # seconds for the agents to report what their nodes hold

Answer = Mapping[str, object]
AskMemory = Callable[[tuple[str, ...], float, dict[str, object]], Mapping[str, Answer]]  # nodes, seconds, arguments


def persist_memory(ask: AskMemory, nodes: tuple[str, ...], checkpoints: Path, launch: int, seconds: float) -> str:
    """Have the nodes write the newest step in their memory to disk.

    Returns:
        What was done, or why it failed, for a person; "" if everything in memory is durable.
    """
    deadline = time.monotonic() + seconds
    results = []
    for directory, offers in _offers(ask(nodes, SURVEY, {})).items():
        step = max(offers)
        if not offers[step]:
            continue  # durable
        where = "" if os.path.realpath(directory) == os.path.realpath(checkpoints) else f" in {directory}"
        results.append(_make_durable(ask, directory, step, offers[step], launch, deadline) + where)
    return "; ".join(results)


def _make_durable(ask: AskMemory, directory: str, step: int, nodes: list[str], launch: int, deadline: float) -> str:
    why = "there is no time for it"
    for node in nodes:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        about: dict[str, object] = {"launch": launch, "directory": directory, "step": step, "seconds": left}
        answer = ask((node,), left + 1.0, about)[node]
        if answer.get("state") == "done":
            return f"step {step} was made durable from memory"
        why = str(answer.get("error") or answer.get("trouble") or f"{answer.get('state')} after {left:.0f} s")
    return f"step {step}, which was held in memory, could not be made durable: {why}"


def _offers(answers: Mapping[str, Answer]) -> dict[str, dict[int, list[str]]]:
    """Return by checkpoint directory and step the nodes that hold it; no nodes if it is durable."""
    found: dict[str, dict[int, list[str]]] = {}
    durable: set[tuple[str, int]] = set()
    for node, answer in answers.items():
        held = answer.get("newest")
        for one in held if isinstance(held, list) else ():
            directory, step = one.get("directory"), one.get("step")
            if isinstance(directory, str) and isinstance(step, int):
                found.setdefault(directory, {}).setdefault(step, []).append(node)
                durable |= {(directory, step)} if one.get("durable") else set()
    for directory, step in durable:
        found[directory][step] = []
    return found

"""The newest step that the nodes hold in memory is made durable by the nodes, without any rank.

All agents are asked what their nodes hold; one of those that hold the newest step is asked to see to it, and the next
one where it cannot. The disk tells what came of it, not the answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SECONDS = 14.0  # for all of it
SURVEY = 3.0  # seconds for the agents to tell what their nodes hold

Answer = Mapping[str, object]
Ask = Callable[[tuple[str, ...], float, dict[str, object]], Mapping[str, Answer]]  # nodes, seconds, arguments


def rescue(ask: Ask, nodes: tuple[str, ...], checkpoints: Path, launch: int, seconds: float = SECONDS) -> str:
    """In words what was done, or why it could not be; "" where all that is in memory is durable."""
    deadline = time.monotonic() + seconds
    told = []
    for directory, offers in _offers(ask(nodes, SURVEY, {})).items():
        step = max(offers)
        if not offers[step]:
            continue  # durable
        where = "" if os.path.realpath(directory) == os.path.realpath(checkpoints) else f" in {directory}"
        told.append(_make_durable(ask, directory, step, offers[step], launch, deadline) + where)
    return "; ".join(told)


def _make_durable(ask: Ask, directory: str, step: int, nodes: list[str], launch: int, deadline: float) -> str:
    why = "no time is left"
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
    """By checkpoints directory, by step, the nodes that hold it; no node where it is durable."""
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

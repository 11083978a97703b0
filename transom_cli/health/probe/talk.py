"""Asking the probe's processes through a crew, and waiting for them no longer than there is time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace

from transom_cli.core.codec import BadRecord
from transom_cli.health.crew import Crew, Message
from transom_cli.health.probe import shapes
from transom_cli.health.probe.reading import Silent
from transom_cli.health.probe.shapes import Answer, Ask, Computed, Gone, Hello, Linked
from transom_cli.health.probe.speeds import Device

SLACK = 1.0  # seconds beyond an ask's deadline that an answer may be on its way
LEAST = 1.5  # seconds that must be left for another phase to begin

# Never the same twice for the same processes: under it they meet at boards that forget nothing.
_NUMBERS = itertools.count(1)


class Talk:
    """Who said hello, who fell silent, and what each phase took. A node with a silent process is asked no more.

    end: by `clock`, when all of it is to be over. other: gets what the crew says of other things.
    """

    def __init__(
        self,
        crew: Crew,
        clock: Callable[[], float],
        end: float,
        other: Callable[[Message], None] = lambda message: None,
    ) -> None:
        self.hellos: dict[Device, Hello] = {}
        self.silent: dict[Device, Silent] = {}
        self.timings: list[tuple[str, float]] = []
        self.untried = ""
        self._crew, self._clock, self._end, self._other = crew, clock, end, other
        self._gone: dict[Device, str] = {}

    def hello(self, patience: float) -> None:
        """Wait for a hello of every process: of the first of each node, and of as many more as that one tells of."""
        begun = self._clock()
        self._crew.send({"do": "probe", "ask": shapes.HELLO})
        waiting = dict.fromkeys((node, 0) for node in self._crew.nodes)
        while waiting and (got := self._next(min(begun + patience, self._end))) is not None:
            device, answer = got
            self._aside(device, answer)
            waiting.pop(device, None)
            if isinstance(answer, Hello):
                others = ((device[0], index) for index in range(1, answer.of))
                waiting.update(dict.fromkeys(one for one in others if one not in self.hellos and one not in self._gone))
        self._over("hello", begun, waiting.keys() | {one for one in self._gone if one not in self.hellos})

    def nodes(self) -> tuple[str, ...]:
        """Those of which every process has said hello, and none fell silent or was unable."""
        out = {node for node, _ in self.silent} | {hello.node for hello in self.hellos.values() if hello.error}
        came = {node for node, _ in self.hellos}
        return tuple(node for node in self._crew.nodes if node in came and node not in out)

    def ask(
        self, phase: str, nodes: Collection[str], deadline: float, make: Callable[[int, float], Ask]
    ) -> list[Answer] | None:
        """What the processes of the nodes answer; who does not is silent from now on. None: there was no time.

        make: the ask, of its number and the seconds that it may take.
        """
        begun = self._clock()
        deadline = min(deadline, self._end - begun - SLACK)
        if deadline < LEAST:
            self.untried = self.untried or f"no time was left for {phase}"
            return None
        number, asked = next(_NUMBERS), set(nodes)
        waiting = {device: None for device in self.hellos if device[0] in asked and device not in self._gone}
        gone = {device for device in self._gone if device[0] in asked}
        self._crew.send({"do": "probe", "ask": shapes.ask_to_json(make(number, deadline))}, tuple(nodes))
        answers: list[Answer] = []
        while waiting and (got := self._next(begun + deadline + SLACK)) is not None:
            device, answer = got
            if device in waiting and isinstance(answer, (Computed, Linked)) and answer.id == number:
                del waiting[device]
                answers.append(answer)
                continue
            self._aside(device, answer)
            if device in waiting and isinstance(answer, Gone):
                del waiting[device]
                gone.add(device)
        self._over(phase, begun, waiting.keys() | gone)
        return answers

    def _over(self, phase: str, begun: float, silent: Collection[Device]) -> None:
        took = self._clock() - begun
        self.timings.append((phase, took))
        for node, index in sorted(silent):
            self.silent[node, index] = Silent(node, index, phase, took, self._gone.get((node, index), ""))

    def _aside(self, device: Device, answer: Answer) -> None:
        """Whatever is not the answer to the last ask: a hello, an end, or one that nobody waits for any more."""
        if isinstance(answer, Hello):
            self.hellos[device] = answer
        elif isinstance(answer, Gone):
            self._gone[device] = answer.error
        elif device in self.silent:
            self.silent[device] = replace(self.silent[device], late=True)

    def _next(self, end: float) -> tuple[Device, Answer] | None:
        """The next answer of a probe process before `end`; None when none came."""
        while (left := end - self._clock()) > 0:
            message = self._crew.receive(left)
            if message is None:
                return None
            if message.get("re") != "probe":
                self._other(message)
                continue
            try:
                answer = shapes.answer_from_json(message["answer"])
                return (str(message["node"]), int(message["index"])), answer
            except (BadRecord, KeyError, TypeError, ValueError, AttributeError):
                continue  # not one of this version's
        return None

"""One crew, on whose line messages of several kinds come mixed: examiners' answers, and those of the probe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transom_cli.health.crew import Crew, Message


@dataclass
class Talk:
    """One crew, whose messages of several kinds come mixed: each is kept for whoever wants its kind."""

    crew: Crew
    now: Callable[[], float]
    kept: dict[str, deque[Message]] = field(default_factory=dict)

    def take(self, kinds: Sequence[str], until: float) -> Message | None:
        while True:
            message = self.kept_of(kinds)
            if message is not None:
                return message
            left = until - self.now()
            message = self.crew.receive(min(left, 1.0)) if left > 0 else None
            if message is None:
                if left <= 0 or self.over:
                    return None
                continue
            self.kept.setdefault(str(message.get("re")), deque()).append({**message, "heard": self.now()})

    def kept_of(self, kinds: Sequence[str]) -> Message | None:
        return next((self.kept[kind].popleft() for kind in kinds if self.kept.get(kind)), None)

    @property
    def over(self) -> bool:
        return bool(getattr(self.crew, "over", False))


class Probing:
    """The crew as `probe.drive` sees it: its own messages alone."""

    def __init__(self, talk: Talk, nodes: tuple[str, ...]) -> None:
        self._talk, self._nodes = talk, nodes

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        self._talk.crew.send(message, to or self.nodes)

    def receive(self, timeout: float) -> Message | None:
        return self._talk.take(("probe",), self._talk.now() + timeout)

    def gone(self) -> tuple[str, ...]:
        return tuple(n for n in self._talk.crew.gone() if n in self._nodes)

    def close(self) -> None:
        """Its owner does that."""

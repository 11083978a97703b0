"""For what steps are kept until that is done: to be made durable, to be protected. Not thread-safe by itself."""

from collections.abc import Iterable

Use = tuple[int, str]  # step, and what for


class Reservations:
    def __init__(self) -> None:
        self._held: set[Use] = set()
        self._early: set[Use] = set()  # released before the commit that reserves them has come

    def commit(self, step: int, uses: Iterable[str]) -> None:
        """Keep the step from now on for these uses, except those that are over already."""
        self._held |= {(step, use) for use in uses} - self._early
        self._early = {early for early in self._early if early[0] > step}

    def add(self, step: int, use: str) -> None:
        self._held.add((step, use))

    def release(self, step: int, use: str, *, committed: bool) -> None:
        """`committed`: here. Who sees to a use may be faster with it than this node's ranks with their commit."""
        if not committed:
            self._early.add((step, use))
        self._held.discard((step, use))

    def release_all(self, step: int, use: str) -> None:
        """Release that step and older ones, including reservations made at a daemon that is gone."""
        self._held = {held for held in self._held if held[0] > step or held[1] != use}

    def rewind(self, step: int | None) -> None:
        """The training resumes from `step`; None: from its start."""
        self._held = {held for held in self._held if step is not None and held[0] <= step}
        self._early.clear()

    def clear(self) -> None:
        self._held.clear()
        self._early.clear()

    def of(self, step: int) -> tuple[str, ...]:
        return tuple(sorted(use for n, use in self._held if n == step))

    def in_use(self) -> dict[int, str]:
        """By step for what it is kept; one use of each."""
        return dict(sorted(self._held))

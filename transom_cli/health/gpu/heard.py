"""What NVML has told of by itself: each GPU's last Xid, and the events that still speak against one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from transom_cli.health.finding import Finding
from transom_cli.health.gpu.events import GpuEvent

HOUR = 3600.0  # seconds for which an event counts, as the Xids of the kernel's log do


class Heard:
    """former: of each device, by UUID, the code of the last Xid that an agent before this one heard, and when.

    xids: the same, with what was heard since; device "" where NVML could not say whose it was. since: from when on all
    GPUs' events have been heard without a gap; None: they are not.
    """

    def __init__(self, former: Mapping[str, tuple[int, float]] | None = None) -> None:
        self.xids = dict(former or {})
        self.since: float | None = None
        self._bad: dict[tuple[str, str], tuple[Finding, GpuEvent]] = {}

    @property
    def fatal(self) -> dict[str, int]:
        """Of each device that a Xid speaks against, its code: one that speaks against nothing may have come since."""
        return {event.device: event.xid for _, event in self._bad.values() if event.xid}

    def listens(self, listens: bool, at: float) -> None:
        self.since = (at if self.since is None else self.since) if listens else None

    def take(self, event: GpuEvent, found: Finding, *, counts: bool = True) -> None:
        """found: what the event means; counts: whether its check is on.

        A driver that asks for nothing any more takes back what spoke against the GPU.
        """
        if event.xid:
            self.xids[event.device] = event.xid, event.wall
        if found.verdict.bad and counts:
            self._bad[found.check, event.device] = found, event
        elif found.check == "gpu_recovery":
            self._bad = {key: value for key, value in self._bad.items() if key[1] != event.device}

    def against(self, now: float) -> tuple[Finding, ...]:
        self._bad = {key: one for key, one in self._bad.items() if now - one[1].wall <= HOUR}
        return tuple(found for found, _ in self._bad.values())

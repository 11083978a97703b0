"""How many messages a target gets: so many an hour, and what waits meanwhile becomes one. Pure."""

from __future__ import annotations

from transom_cli.telling.news import News

HOUR = 3600.0
APART = 3  # news that wait at the same time and are still told one by one
MOST = 200  # that wait for a target; of more the oldest are dropped
FIRST, CAP = 1.0, 300.0  # seconds before the second try, and between two at most
PATIENCE = 3600.0  # seconds after which news are too old to be told


def due(waiting: tuple[News, ...], sent: tuple[float, ...], now: float, per_hour: int) -> tuple[int, float]:
    """How many of those that wait (oldest first) go into the next message; with 0, after how many seconds to ask again.

    sent: when messages went out. What ends a run is told at once, with all that waits.
    """
    if not waiting:
        return 0, HOUR
    recent = sorted(at for at in sent if 0 <= now - at < HOUR)
    free = per_hour - len(recent)
    if free <= 0 and not any(news.final for news in waiting):
        return 0, max(0.0, recent[-per_hour] + HOUR - now)
    apart = len(waiting) <= min(APART, free)
    return (1 if apart else len(waiting)), 0.0


def pause(failures: int, asked: float = 0.0) -> float:
    """Seconds before the next try after so many failures in a row; `asked` for by the other side."""
    return max(min(FIRST * 2.0 ** min(failures - 1, 20), CAP), min(asked, 2 * CAP))

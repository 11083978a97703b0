"""Numbers with their words are right English, for one as for many."""

from __future__ import annotations

from transom_cli.plural import ordinal, several, times, was


def test_one_is_one() -> None:
    assert (several(1, "node"), several(0, "node"), several(12_000, "step")) == ("1 node", "0 nodes", "12,000 steps")
    assert (several(1, "entry", "entries"), several(2, "entry", "entries")) == ("1 entry", "2 entries")
    assert (times(1), times(3), was(1), was(2), was(2, "is", "are")) == ("once", "3 times", "was", "were", "are")


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 9, 10, 11, 12, 13, 21, 22, 103, 111)] == [
        *("first", "second", "third", "ninth", "10th", "11th", "12th", "13th", "21st", "22nd", "103rd", "111th")
    ]

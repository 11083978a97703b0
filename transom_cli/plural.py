"""Numbers with the nouns that they count. Pure, and light enough for the trainer's side."""

from collections.abc import Iterable


def several(number: int, what: str, more: str = "") -> str:
    """Return `1 node`, `3 nodes`, `12,000 steps`. more: the plural if it is not formed with an s."""
    return f"{number:,} {what if number == 1 else more or what + 's'}"


def times(number: int) -> str:
    """Return `once` or `3 times`."""
    return "once" if number == 1 else f"{number:,} times"


def some(names: Iterable[object], most: int = 8, between: str = ", ") -> str:
    """Join the first names, and count the others: `a, b and 3 more`."""
    known = list(map(str, names))
    more = len(known) - most
    return between.join(known[:most]) + (f" and {more} more" if more > 0 else "")


def was(number: int, verb: str = "was", verbs: str = "were") -> str:
    """Return the form of the verb for this number."""
    return verb if number == 1 else verbs


def ordinal(number: int) -> str:
    """Return `first`, `second`, ... `ninth`, `10th`, `21st`."""
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
    if 0 < number <= len(names):
        return names[number - 1]
    end = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{end}"

"""A log line as the words that templates are made of: numbers, paths and addresses look alike in all of them. Pure.

This is the fast mask of mining (some microseconds a line); `core.fingerprint` is the thorough one, for a single line.
Every row of digits becomes "0", so that a "0" in a template always stands for digits.
"""

from __future__ import annotations

import re
from functools import lru_cache

from transom_cli.core.rootline import clean

NUMBER, PATH, ANY = "0", "<path>", "<*>"
WORDS = 64  # of a line that count
_LINE_LIMIT = 2000  # characters of a line that are looked at
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"([\[({\"'<=|]*)[-+]?0(?:[.,:/xeE+-]{1,3}0)*%?([\])}\"'>,;:.|]*)")
_HEX = re.compile(r"([\[({\"'<=]*)(?:0x[0a-f]+|(?=[a-f]*0)[0a-f]{5,})([\])}\"'>,;:.]*)", re.IGNORECASE)
_PATH = re.compile(r"((?:[\w.-]{1,40}=)?[\[({\"']*)(?:[A-Za-z0-9]{2,10}:/)?(?:~|\.{1,2})?/[^\"')\]]{2,}([\])}\"',;:]*)")
_TELLING = re.compile(
    r"error|exception|fail|fatal|abort|kill|panic|traceback|crash|corrupt|denied|refused|cannot|unable|invalid|illegal"
    r"|timeout|timed|overflow|missing|unreachable|unexpected|lost|broken|closed|reset|segfault|core dumped"
    r"|\bnan\b|\binf\b|\boom\b",
    re.IGNORECASE,
)


def masked(line: str) -> str:
    """The line with one "0" for each row of digits: what two lines of a healthy training mostly differ in.

    Of a progress bar what is seen last, and no colours.
    """
    if "\r" in line or "\x1b" in line:
        line = clean(line)
    return _DIGITS.sub(NUMBER, line[:_LINE_LIMIT])


def words_of(line: str) -> tuple[str, ...]:
    """The words of a masked line, each the same for whatever number, address or path stands there; () for a blank."""
    return tuple([_word(word) for word in line.split(None, WORDS)[:WORDS]])


def is_telling(text: str) -> bool:
    """Whether it speaks of something that went wrong."""
    return _TELLING.search(text) is not None


@lru_cache(maxsize=1 << 15)
def _word(word: str) -> str:
    if NUMBER not in word and "/" not in word:
        return word
    found = _NUMBER.fullmatch(word) or _HEX.fullmatch(word)
    if found:
        return found[1] + NUMBER + found[2]
    found = _PATH.fullmatch(word) if "/" in word else None
    return found[1] + PATH + found[2] if found else word

"""Masks of log lines: lines that differ only in what says nothing to a rule have the same mask. Pure.

In a mask, digits are zeros. Where lines also name files, hosts or values, letters are masked too, except in words that
tell: those that may be part of a text or an expression of a rule, or of a label. A mask is as long as its line, so all
lines of a mask have their numbers in the same places.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from transom_cli.diagnose.logs.lazy_re import lazy_re

Search = Callable[[bytes, int, int], "tuple[int, int] | None"]
_ZEROS = bytes.maketrans(b"123456789\t", b"000000000 ")
_LOWER, _UPPER = bytes(range(ord("a"), ord("z") + 1)), bytes(range(ord("A"), ord("Z") + 1))
_SHAPE = bytes.maketrans(_LOWER + _UPPER, b"x" * 26 + b"X" * 26)
_FLAT = bytes.maketrans(_LOWER + _UPPER + b"0", b"x" * 53)
_ADDRESS = lazy_re(rb"0[xX][0-9a-fA-F]+|[0-9a-fA-F]*:(?:[0-9a-fA-F]*:)+[0-9a-fA-F]*")
_LONG_ADDRESS = lazy_re(rb"0x[0-9a-fA-F]{4}|::")
_MASKED = lazy_re(rb"0*[xX][xX0]*")
_LETTERS, _ALNUM = lazy_re(rb"([a-z]+)|([A-Z]+)"), lazy_re(rb"[a-zA-Z0]+")
_CLASSES = b"a-zA-Z0", b"a-z", b"A-Z"  # by the number of the group in one of these
_BREAKS = bytes(one for one in range(ord(" "), 127) if not chr(one).isalnum()) + b"\t"
_PARTS = bytes.maketrans(b"123456789" + _BREAKS, b"000000000" + b"\n" * len(_BREAKS))
_PART = lazy_re(rb"[!-/:-@[-`{-~\t ]+|[^!-/:-@[-`{-~\t ]+")  # of a word, or what is between parts
_NO_LETTERS = bytes(set(range(256)) - set(_LOWER + _UPPER + b"\n"))
_LETTER = lazy_re(r"[a-zA-Z]")
_END = b"\n"
_TELLS = 3  # letters; fewer tell only as a part of their own, and words that have no more are not masked
_MOST = 1 << 14  # words that are remembered
# In an expression: what is no literal character, and (groups 1 and 2) characters that are not optional.
_LITERAL = lazy_re(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|\(\?(?:[a-zA-Z]+\)|[a-zA-Z]*:|<?[=!])|\\[a-zA-Z]|[()|^$.?*+]"
    r"|\{\d*,?\d*\}|(?:\\(\W)|([^\\]))(?![?*{])|\\?.",
    re.DOTALL,
)


def masked(lines: bytes) -> bytes:
    """Return lines with zeros for their digits, and a blank for a tab."""
    return lines.translate(_ZEROS)


def words_of(raw: bytes) -> bytes:
    """Return a line, or its mask, without its addresses; numbers are one zero, and masked words have no length."""
    raw = _ADDRESS.sub(b"", raw) if b"0x" in raw or b"::" in raw else raw
    words = _MASKED.sub(b"x", masked(raw).translate(None, b".+-"))
    return b"0".join(filter(None, (_END + words + _END).split(b"0")))[1:-1]


def literals(expression: str) -> list[str]:
    """Return the fixed texts in an expression's matches."""
    flags, found = expression[:4] == "(?i)", _LITERAL.finditer(expression)
    of = "".join(one[1] or one[2] or "\0" for one in found).split("\0")
    return [one.lower() if flags else one for one in of if one]


def pieces(text: str) -> list[str]:
    """Return what to search for in parts of words, each on its own line, so that none that a text needs is masked."""
    parts = text.encode().translate(_PARTS).decode().replace("\n", "\n \n").split(" ")
    few = (f"\n{part.strip()}\n" for part in parts if 0 < len(_LETTER.findall(part)) < _TELLS)
    return [*few, *(part for part in parts if len(_LETTER.findall(part)) >= _TELLS)]


def words_like(text: bytes, mask: bytes) -> re.Pattern[bytes]:
    """Return an expression for texts of the same form as this one, which has this mask when its words are masked. Its
    groups are what is masked: if one of them tells, the text has another mask."""
    return re.compile(b" ".join(map(_like, text.split(b" "), mask.split(b" "))))


def _like(word: bytes, mask: bytes) -> bytes:
    address = _LONG_ADDRESS.search(word)
    if address is not None and word != mask == word.translate(_FLAT):
        fixed = b"::" if address[0] == b"::" else b"0x[0-9a-fA-F]{4}"
        before, after = word[: address.start()], word[address.end() :]
        return b"(%b%b%b)" % (_varied(_ALNUM, before), fixed, _varied(_ALNUM, after))
    parts = ((one[0], mask[one.start() : one.end()]) for one in _PART.finditer(word))
    return b"".join(re.escape(one) if one == of else b"(%b)" % _varied(_LETTERS, one) for one, of in parts)


def _varied(characters: re.Pattern[bytes], text: bytes) -> bytes:
    """Return an expression for texts with other characters in their places."""
    return characters.sub(lambda run: b"[%b]{%d}" % (_CLASSES[run.lastindex or 0], len(run[0])), re.escape(text))


class WordMasks:
    """Masks words that say nothing. Remembers them."""

    def __init__(self, telling: Search) -> None:
        """telling: finds the first of some `pieces`."""
        self._telling = telling
        self._known = {_END: _END}

    def of(self, lines: bytes) -> bytes:
        """Return masked lines with their words masked too."""
        if len(self._known) > _MOST:
            self._known = {_END: _END}
        words = lines.replace(_END, b" \n ").split(b" ")
        if None in (known := list(map(self._known.get, words))):
            self._learn(list({word for word, mask in zip(words, known, strict=True) if mask is None}))
        return b" ".join(map(self._known.__getitem__, words)).replace(b" \n ", _END)

    def telling(self, words: Iterable[bytes]) -> set[bytes]:
        """Return those that must not be masked."""
        together = _END.join((b"", *words, b""))
        found = self._telling_parts(together)
        return {together[together.rfind(_END, 0, at) + 1 : together.find(_END, at)] for at, _ in found}

    def _telling_parts(self, words: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the parts of words begin and end that must not be masked."""
        parts, at, end = words.translate(_PARTS), 0, len(words)
        while found := self._telling(parts, at, end):
            inside = found[0] + (parts[found[0]] == ord(_END))
            start, at = parts.rfind(_END, 0, inside) + 1, parts.find(_END, inside)
            yield start, at

    def _learn(self, words: list[bytes]) -> None:
        together = _END.join((b"", *words, b""))
        masks = bytearray(together.translate(_SHAPE))
        for start, stop in self._telling_parts(together):
            masks[start:stop] = together[start:stop]
        self._known.update(zip(words, bytes(masks[1:-1]).split(_END), strict=True))
        odd: list[tuple[bytes, bytes]] = []
        if b":" in together or b"0x" in together:
            with_colons = [word for word in words if b"0x" in word or word.count(b":") > 1]
            odd = [(word, _odd(word, self._known[word])) for word in with_colons]
        letters = together.translate(None, _NO_LETTERS)[1:-1].split(_END)
        self._known.update([(word, word) for word, of in zip(words, letters, strict=True) if len(of) <= _TELLS])
        self._known.update(odd)


def _odd(word: bytes, mask: bytes) -> bytes:
    """Mask an address. What else has several colons may be NCCL's label, and hold a host."""
    is_address = _LONG_ADDRESS.search(word) is not None and mask == word.translate(_SHAPE)
    return word.translate(_FLAT) if is_address else word

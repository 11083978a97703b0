"""The #SBATCH lines of a script, read as sbatch reads them. Pure; every rule was tried on Slurm 22.05.

A line counts when it starts with `#SBATCH` in its first column, up to the first line that is neither blank nor a
comment. Quotes of both kinds group; a backslash takes the next character as it is, inside quotes too, but for a blank
outside of them; an unquoted `#` and an empty word end the line. `#PBS` lines count wherever they stand, unless
`--ignore-pbs` is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transom_cli.errors import UsageError
from transom_cli.submit.options import Option, read_options

_BLANKS = " \t\n\v\f\r"  # those of C's isspace: a script may hold others
_HET_WORDS = ("hetjob", "packjob")


@dataclass(frozen=True)
class Directive:
    """One option of a script and the line (from 1) it stands on. ``pbs`` tells a #PBS line's from sbatch's own."""

    line: int
    option: Option
    pbs: bool = False


def read_directives(text: str) -> list[Directive]:
    """Every option of the script's directives, in order. UsageError for a heterogeneous job and unclosed quotes."""
    directives = [Directive(line, option) for line, words in _sbatch_lines(text) for option in read_options(words)]
    if any(d.option.name == "ignore-pbs" for d in directives):
        return directives
    return directives + [
        Directive(line, Option(*pair), pbs=True) for line, words in _pbs_lines(text) for pair in _pbs_options(words)
    ]


def _sbatch_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("#SBATCH"):
            words = _words(line.removeprefix("#SBATCH"), number)
            het = next((word for word in words if word in _HET_WORDS), None)
            if het:
                raise _het(number, f"`{het}`")
            yield number, words
        elif line.strip(_BLANKS) and not line.lstrip(_BLANKS).startswith("#"):
            return


def _pbs_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("#PBS"):
            yield number, line.removeprefix("#PBS").split()


def _pbs_options(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Of PBS's options only those that matter here: both forms of an array."""
    for at, word in enumerate(words):
        if word[:2] in ("-J", "-t"):
            yield "array", word[2:] or (words[at + 1] if at + 1 < len(words) else None)


def _words(text: str, line: int) -> list[str]:
    """One line's words. sbatch's quoting is not the shell's: see the head of this module."""
    words: list[str] = []
    at = 0
    while True:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if text[at : at + 1] == ":":
            raise _het(line, "`:`")
        word, at, quote = _word(text, at)
        if quote:
            raise UsageError(
                f"line {line} of the script has an unclosed quote",
                why=f"sbatch refuses an unmatched {quote} in [{text.strip()}]",
                hint=f"close the quote on line {line}",
            )
        if not word:  # the line's end, a comment, or an empty word, after which sbatch reads no further either
            return words
        words.append(word)


def _word(text: str, at: int) -> tuple[str, int, str]:
    """The word at ``at``, where it ends, and the quote that is still open there."""
    word, quote, escaped = "", "", False
    while at < len(text):
        c = text[at]
        if not quote and c in _BLANKS:  # also after a backslash: outside quotes none protects a blank
            break
        if escaped:
            word, escaped = word + c, False
        elif c == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if c == quote else (word + c, quote)
        elif c in "\"'":
            quote = c
        elif c == "#":
            break
        else:
            word += c
        at += 1
    return word, at, quote


def _het(line: int, mark: str) -> UsageError:
    return UsageError(
        "heterogeneous jobs are not supported",
        why=f"line {line} of the script separates the parts of one with {mark}",
        hint="submit the parts as runs of their own, or ask for one kind of node",
    )

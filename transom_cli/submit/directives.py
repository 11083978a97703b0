"""The #SBATCH lines of a script, read as sbatch reads them. Pure; every rule was tried on Slurm 22.05.

A line counts when it starts with `#SBATCH` in its first column, up to the first line that is neither blank nor a
comment. Quotes of both kinds group, a backslash takes the next character as it is (inside quotes too), an unquoted `#`
ends the line. `#PBS` lines count wherever they stand, unless `--ignore-pbs` is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from transom_cli.errors import UsageError
from transom_cli.submit.options import Option, read_options

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
        elif line.strip() and not line.lstrip().startswith("#"):
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
    word: str | None = None
    quote = ""
    characters = iter(text)
    for c in characters:
        if c == "\\":
            word = (word or "") + next(characters, "")
        elif quote:
            if c == quote:
                quote = ""
            else:
                word = (word or "") + c
        elif c in "\"'":
            quote, word = c, word or ""
        elif c == "#":
            break
        elif c.isspace():
            if word is not None:
                words.append(word)
            word = None
        elif c == ":" and word is None:
            raise _het(line, "`:`")
        else:
            word = (word or "") + c
    if quote:
        raise UsageError(
            f"line {line} of the script has an unclosed quote",
            why=f"sbatch refuses an unmatched {quote} in [{text.strip()}]",
            hint=f"close the quote on line {line}",
        )
    return words if word is None else [*words, word]


def _het(line: int, mark: str) -> UsageError:
    return UsageError(
        "heterogeneous jobs are not supported",
        why=f"line {line} of the script separates the parts of one with {mark}",
        hint="submit the parts as runs of their own, or ask for one kind of node",
    )

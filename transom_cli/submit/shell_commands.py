"""The simple commands of a shell script, with the place of each word. Pure.

Understands quotes, comments, continued lines, here-documents, redirections and command separators, as bash does. What
is inside `$(...)`, backticks or `${...}` stays part of its word.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_RESERVED = re.compile(r"if|then|else|elif|while|until|do|!|\{|\}|time|exec|command")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_HEREDOC = re.compile(r"<<(?!<)(-?)[ \t]*(?:'([^']*)'|\"([^\"]*)\"|\\?([^\s;|&<>()]+))")
_REDIRECTION = re.compile(r"&?[<>]{1,3}[&|]?")
_PAIRS = {"(": ")", "{": "}"}


@dataclass(frozen=True)
class Word:
    """start, end: its place in the script. text: without quotes and continued lines."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Command:
    words: tuple[Word, ...]  # without redirections
    line: int  # of the first word, from 1
    background: bool = False  # it ends with `&`
    redirected: bool = False  # its output goes to a file or a pipe

    @property
    def assignments(self) -> dict[str, Word]:
        """The assignments before the program, by name; each `Word` is the value, without its quotes' place."""
        found = {}
        for word in self.words:
            match = _ASSIGNMENT.fullmatch(word.text)
            if match is None and word.text not in ("export", "declare", "local", "readonly"):
                break
            if match is not None:
                found[match[1]] = Word(word.start + match.start(2), word.end, match[2])
        return found

    @property
    def program(self) -> tuple[Word, ...]:
        """The words from the program on, without assignments and reserved words before it."""
        for at, word in enumerate(self.words):
            if not _RESERVED.fullmatch(word.text) and not _ASSIGNMENT.fullmatch(word.text):
                return self.words[at:]
        return ()


def shell_commands(text: str) -> Iterator[Command]:
    return _Scanner(text).commands()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._heredocs: list[tuple[str, bool]] = []  # the end of each, and whether tabs before it are removed

    def commands(self) -> Iterator[Command]:
        words: list[Word] = []
        target = False  # the next word is the target of a redirection
        redirected = False
        while self._at < len(self._text):
            c = self._text[self._at]
            redirection = _REDIRECTION.match(self._text, self._at)
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif c in " \t":
                self._at += 1
            elif c == "#":
                self._at = self._line_end()
            elif heredoc := _HEREDOC.match(self._text, self._at):
                self._heredocs.append((next(g for g in heredoc.groups()[1:] if g is not None), bool(heredoc[1])))
                self._at = heredoc.end()
            elif redirection and not self._text.startswith(("<(", ">("), self._at):
                self._at, target = redirection.end(), True
                redirected = redirected or (">" in redirection[0] and not redirection[0].endswith("&"))
            elif c in ";&|\n()":
                both = self._text[self._at : self._at + 2]
                piped = c == "|" and both != "||"
                yield from self._command(words, background=c == "&" and both != "&&", redirected=redirected or piped)
                words, target, redirected = [], False, False
                self._at += 2 if both in ("&&", "||", "|&", ";;") else 1
                if c == "\n":
                    self._skip_heredocs()
            else:
                word = self._word()
                number = word.text.isdecimal() and self._text[self._at : self._at + 1] in ("<", ">")  # `2>`
                if not target and not number:
                    words.append(word)
                target = False
        yield from self._command(words, redirected=redirected)

    def _command(self, words: list[Word], *, background: bool = False, redirected: bool) -> Iterator[Command]:
        if words:
            yield Command(tuple(words), self._text.count("\n", 0, words[0].start) + 1, background, redirected)

    def _line_end(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end

    def _skip_heredocs(self) -> None:
        for end, tabs in self._heredocs:
            while self._at < len(self._text):
                stop = self._line_end()
                line = self._text[self._at : stop]
                self._at = min(stop + 1, len(self._text))
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._heredocs.clear()

    def _word(self) -> Word:
        start, parts = self._at, list[str]()
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|<>()":
            parts.append(self._part())
        if self._at == start:  # such as `<(`
            parts.append(self._part())
        return Word(start, self._at, "".join(parts))

    def _part(self) -> str:
        """Take the next part of a word, and return it without its quotes."""
        text, at = self._text, self._at
        c = text[at]
        if c == "\\":
            self._at = at + 2
            return "" if text[at + 1 : at + 2] == "\n" else text[at + 1 : at + 2]
        if c == "'":
            end = text.find("'", at + 1)
            self._at = len(text) if end < 0 else end + 1
            return text[at + 1 : self._at - 1]
        if c == '"':
            self._at += 1
            inside = []
            while self._at < len(text) and text[self._at] != '"':
                inside.append(self._quoted())
            self._at += 1
            return "".join(inside)
        return self._quoted() if c in "`$" else self._plain()

    def _quoted(self) -> str:
        """Take one character inside double quotes, or a whole substitution."""
        text, at = self._text, self._at
        if text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            self._at = at + 2
            return text[at + 1].strip("\n")
        if text[at] == "`":
            end = text.find("`", at + 1)
            self._at = len(text) if end < 0 else end + 1
        elif text[at] == "$" and text[at + 1 : at + 2] in _PAIRS:
            self._balanced(at + 1)
        else:
            self._at = at + 1
        return text[at : self._at]

    def _balanced(self, at: int) -> None:
        """Go behind the bracket that closes the one at `at`. Quotes inside are skipped."""
        opening, closing, depth = self._text[at], _PAIRS[self._text[at]], 0
        self._at = at
        while self._at < len(self._text):
            c = self._text[self._at]
            if c in "'\"\\":
                self._part()
                continue
            depth += (c == opening) - (c == closing)
            self._at += 1
            if depth == 0:
                return

    def _plain(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

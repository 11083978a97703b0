"""Read sbatch options and the #SBATCH lines of a script as sbatch does. Pure; every rule was tested on Slurm 22.05.

Options are read as getopt_long reads them: long ones may be abbreviated, short ones bundled. The table is that of
sbatch 22.05 to 25.11. An unknown option is kept unchanged, for sbatch to judge.

A line counts if it starts with `#SBATCH` in the first column, up to the first line that is neither blank nor a comment.
Both kinds of quotes group. A backslash escapes the next character, even inside quotes, except a blank outside of
quotes. An unquoted `#` or an empty word ends the line. `#PBS` lines count everywhere, unless `--ignore-pbs` is given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transom_cli.errors import UsageError

# entries of an `OptionTable`: short|long, then "=" for a required value or "?" for an optional one
SBATCH_TABLE = """
A|account= acctg-freq= a|array= batch= bb= bbf= b|begin= D|chdir= cluster-constraint= M|clusters= comment=
C|constraint= consolidate-segments container= container-id= contiguous S|core-spec= cores-per-socket= cpu-freq=
cpus-per-gpu= c|cpus-per-task= deadline= delay-boot= d|dependency= m|distribution= e|error= x|exclude= exclusive?
export= export-file= extra= B|extra-node-info= get-user-env? gid= gpu-bind= gpu-freq= G|gpus= gpus-per-node=
gpus-per-socket= gpus-per-task= gres= gres-flags= h|help hint= H|hold ignore-pbs i|input= J|job-name=
kill-on-invalid-dep= L|licenses= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus=
network= nice? k|no-kill? no-requeue F|nodefile= w|nodelist= N|nodes= n|ntasks= ntasks-per-core= ntasks-per-gpu=
ntasks-per-node= ntasks-per-socket= oom-kill-step? open-mode= o|output= O|overcommit s|oversubscribe? parsable
p|partition= power= prefer= priority= profile= propagate? q|qos= Q|quiet reboot requeue? reservation= resv-ports?
segment= share signal= sockets-per-node= spread-job stepmgr switches= test-only thread-spec= threads-per-core= t|time=
time-min= tmp= tres-bind= tres-per-task= uid= u|usage use-min-nodes v|verbose V|version W|wait wait-all-nodes=
wckey= workdir= wrap=
"""


@dataclass(frozen=True)
class Option:
    """One option by its full long name. `value` is None if none was given."""

    name: str
    value: str | None = None

    @property
    def word(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


class OptionTable:
    """The options of a command. Later entries replace earlier ones of the same name."""

    def __init__(self, *tables: str) -> None:
        self.takes: dict[str, str] = {}
        self._short: dict[str, str] = {}
        for entry in " ".join(tables).split():
            short, _, long = entry.rpartition("|")
            name = long.rstrip("=?")
            self.takes[name] = long[len(name) :]
            if short:
                self._short[short] = name

    def full_name(self, name: str) -> str:
        """Return the long option that `name` abbreviates, or `name` itself if none or several match."""
        if name in self.takes:
            return name
        matches = [known for known in self.takes if known.startswith(name)]
        return matches[0] if len(matches) == 1 else name

    def read(self, words: Sequence[str]) -> Iterator[Option]:
        """Yield the options among `words`; other words are skipped. A missing value is None."""
        waiting = iter(words)
        for word in waiting:
            if word.startswith("-") and word not in ("-", "--"):
                yield from self._options(word, waiting)

    def split(self, words: Sequence[str]) -> tuple[list[Option], list[str]]:
        """Return the options before the first other word, and that word with all after it. `--` ends the options."""
        found: list[Option] = []
        waiting = iter(words)
        for word in waiting:
            if word == "--":
                break
            if word == "-" or not word.startswith("-"):
                return found, [word, *waiting]
            found += self._options(word, waiting)
        return found, list(waiting)

    def _options(self, word: str, waiting: Iterator[str]) -> Iterator[Option]:
        if not word.startswith("--"):
            yield from self._bundle(word[1:], waiting)
            return
        name, equals, value = word[2:].partition("=")
        name = self.full_name(name)
        if not equals and self.takes.get(name) == "=":
            yield Option(name, next(waiting, None))
        else:
            yield Option(name, value if equals else None)

    def _bundle(self, letters: str, waiting: Iterator[str]) -> Iterator[Option]:
        """Read `-HN2`: flags, then possibly an option with its value, joined or as the next word."""
        while letters:
            name, letters = self._short.get(letters[0], letters[0]), letters[1:]
            takes = self.takes.get(name, "")
            if takes == "=":
                yield Option(name, letters or next(waiting, None))
                return
            if takes == "?":
                yield Option(name, letters or None)
                return
            yield Option(name)


SBATCH = OptionTable(SBATCH_TABLE)
full_name, read_options = SBATCH.full_name, SBATCH.read


_BLANKS = " \t\n\v\f\r"  # C's isspace
_HET_WORDS = ("hetjob", "packjob")


@dataclass(frozen=True)
class Directive:
    """One option of a script and its line number (from 1). pbs: it comes from a #PBS line."""

    line: int
    option: Option
    pbs: bool = False


def read_directives(text: str) -> list[Directive]:
    """Return the options of all directives in order. Raises UsageError for heterogeneous jobs and unclosed quotes."""
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
    """Yield the PBS options that matter here: both forms of a job array."""
    for at, word in enumerate(words):
        if word[:2] in ("-J", "-t"):
            yield "array", word[2:] or (words[at + 1] if at + 1 < len(words) else None)


def _words(text: str, line: int) -> list[str]:
    """Split one line into words, with sbatch's quoting rules."""
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
        if not word:  # end of line, a comment, or an empty word, at which sbatch stops too
            return words
        words.append(word)


def _word(text: str, at: int) -> tuple[str, int, str]:
    """Return the word at `at`, where it ends, and the quote that is still open there."""
    word, quote, escaped = "", "", False
    while at < len(text):
        c = text[at]
        if not quote and c in _BLANKS:  # even after a backslash: outside quotes it does not escape a blank
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
        why=f"line {line} of the script separates the components of one with {mark}",
        hint="submit each component as its own run, or request one kind of node",
    )

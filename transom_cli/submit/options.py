"""sbatch's options, read as getopt_long reads them: long ones abbreviated, short ones bundled. Pure.

The table is that of sbatch 22.05 to 25.11. An option it does not know is kept as it stands, for sbatch to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# short|long, then "=" for a required value or "?" for an optional one
_TABLE = """
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

TAKES: dict[str, str] = {}
SHORT: dict[str, str] = {}
for _entry in _TABLE.split():
    _short, _, _long = _entry.rpartition("|")
    _name = _long.rstrip("=?")
    TAKES[_name] = _long[len(_name) :]
    if _short:
        SHORT[_short] = _name


@dataclass(frozen=True)
class Option:
    """One option by its full long name; ``value`` is None where none was given."""

    name: str
    value: str | None = None


def full_name(name: str) -> str:
    """The long option that ``name`` abbreviates, or ``name`` itself when none or several do."""
    if name in TAKES:
        return name
    matches = [known for known in TAKES if known.startswith(name)]
    return matches[0] if len(matches) == 1 else name


def read_options(words: Sequence[str]) -> Iterator[Option]:
    """The options among ``words``; what is no option is passed over. A missing value is left None."""
    waiting = iter(words)
    for word in waiting:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = full_name(name)
            if not equals and TAKES.get(name) == "=":
                yield Option(name, next(waiting, None))
            else:
                yield Option(name, value if equals else None)
        elif word.startswith("-") and word != "-" and word != "--":
            yield from _bundle(word[1:], waiting)


def _bundle(letters: str, waiting: Iterator[str]) -> Iterator[Option]:
    """`-HN2`: flags, and at last an option with its value, joined or as the next word."""
    while letters:
        name, letters = SHORT.get(letters[0], letters[0]), letters[1:]
        takes = TAKES.get(name, "")
        if takes == "=":
            yield Option(name, letters or next(waiting, None))
            return
        if takes == "?":
            yield Option(name, letters or None)
            return
        yield Option(name)

"""The output of a run's ranks, merged: `transom logs`."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from transom_cli.errors import printable
from transom_cli.files import read_json
from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.view.model import RunView
from transom_cli.view.text import Line, line

TAIL = 256 << 10  # bytes of each file that are read at first
MOST = 64  # files that are merged
ROOT = ">>"  # marks the root line
_RANK = re.compile(r"rank-(\d+)\.log")
_STACK = "rank-{}.stack.txt"  # of a hung rank, as `agent.evidence` writes it
_EXAMINED = re.compile(r"(rank-\d+(?:\.kernel)?\.log)(?: \((?!its last line)[^)]*\))*: (.*)", re.DOTALL)
_HUNG = re.compile(r"(?:\branks? (\d+).*?)?; (?:its|their) line is [^;]*? \(([^()]+):(\d+)\)")  # `diagnose.hangs`
_TIME = re.compile(rb"(?:(\d{4}-\d\d-\d\d)[T ])?(\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z|[+-]\d\d:?\d\d)?")
_OF_SLURM = re.compile(rb"\s*$|(srun|slurmstepd[-\w.]*): ")
_SHORT = 4096  # bytes: what Slurm itself writes at a cancellation is shorter
_HEAD = 64  # bytes of a line in which its time is
_TONES = ("note", "good", "warn", "strong", "")  # by rank, in turn


@dataclass(frozen=True)
class RootLine:
    """The line that the diagnosis blames."""

    path: Path
    text: str
    number: int = 0  # of the line in the file, from 1; 0: it is not there any more
    source: str = ""  # file and line of the trainer, from the Python traceback above it; "" without one
    hung: int | None = None  # the rank that hung at `source`, which no log says

    @property
    def rank(self) -> int:
        match = _RANK.fullmatch(self.path.name)
        return int(match[1]) if match else self.hung or 0

    @property
    def place(self) -> str:
        return self.source or self._in_log

    @property
    def launch(self) -> str:
        return launch_name(self.path)

    @property
    def _in_log(self) -> str:
        return f"{self.path}:{self.number}" if self.number else str(self.path)


@dataclass(frozen=True)
class LogLine:
    rank: int | None
    text: str
    at: float = 0.0  # Unix time, of the line or of the last line before it that has one; 0: unknown


@dataclass
class LogFile:
    """One file, read from `offset` on."""

    path: Path
    rank: int | None
    offset: int = -1
    rest: bytes = b""
    at: float = 0.0
    written: float = 0.0  # Unix time of its last change
    day: str = ""

    def more(self) -> list[LogLine]:
        """Return the complete lines that were added; the first time, those of the end of the file."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                begin = max(0, size - TAIL) if self.offset < 0 else min(self.offset, size)
                self.written = self.path.stat().st_mtime
                self.day = self.day or time.strftime("%Y-%m-%d", time.localtime(self.written))
                file.seek(begin)
                data = self.rest + file.read(size - begin)
        except OSError:
            return []
        if self.offset < 0 and begin:
            data = data.partition(b"\n")[2]
        self.offset = size
        *lines, self.rest = data.split(b"\n")
        return [self._line(one) for one in lines]

    def _line(self, data: bytes) -> LogLine:
        match = _TIME.search(data[:_HEAD])
        if match is not None:
            self.at = _unix(match, self.day) or self.at
        return LogLine(self.rank, data.rpartition(b"\r")[2].decode(errors="replace"), self.at)


def _unix(match: re.Match[bytes], day: str) -> float | None:
    date, clock, fraction, offset = (one.decode() if one else "" for one in match.groups())
    text = f"{date or day}T{clock}.{fraction:0<6}" + ("+00:00" if offset == "Z" else offset)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def find_root(run: RunDir, view: RunView) -> RootLine | None:
    """Return the root line of the newest incident that has one."""
    roots = (root_of(run, [(what, words) for _, what, words in one.marks], one.category) for one in view.incidents)
    return next((root for root in roots if root is not None), None)


def root_of(run: RunDir, marks: Sequence[tuple[str, str]], category: str = "") -> RootLine | None:
    """Return the root line of an incident; None if a node was lost, which makes every line a consequence.

    A hang's is where the stacks show the rank for which the others wait: what a log says then is a consequence, too.

    Args:
        marks: Kind and message of each thing seen or done.
    """
    if category == "slurm_node_fail":
        return None
    if category == "nccl_hang" and (hung := _line_of_hang(run, marks)) is not None:
        return hung
    matches = [match for what, words in marks if what == "examined" and (match := _EXAMINED.match(words))]
    if not matches:
        return None
    name, text = matches[-1].groups()
    paths = sorted(run.attempts.glob(f"*/logs/*/{name}"), key=_age, reverse=True)
    for path in paths:
        if number := _number(path, text):
            from transom_cli.diagnose.logs.frames import trainer_frame  # only if a run has failed

            return RootLine(path, text, number, trainer_frame(path, number))
    return RootLine(paths[0], text) if paths else None


def _line_of_hang(run: RunDir, marks: Sequence[tuple[str, str]]) -> RootLine | None:
    """Return the line of the training's own code in the verdict on a hang."""
    found = next((match for what, words in marks if what == "evidence" and (match := _HUNG.search(words))), None)
    if found is None:
        return None
    rank, file, number = int(found[1] or 0), found[2], int(found[3])
    stacks = list(run.attempts.glob(f"*/evidence/*/{_STACK.format(rank)}"))
    stack = max(stacks, key=lambda path: path.stat().st_mtime, default=Path(_STACK.format(rank)))
    return RootLine(stack, "", 0, f"{_located(run, stack, file)}:{number}", rank)


def _located(run: RunDir, stack: Path, file: str) -> str:
    """Return the path of a file that py-spy names without its folder; that name if it is not found.

    It is looked for in the job's directory, and beside the scripts of the process's command line.
    """
    base = Path(str(read_json(run.submission).get("chdir", "")))
    try:
        with stack.open(errors="replace") as lines:
            words = next(lines, "").split()
    except OSError:
        words = []
    folders = [base, *((base / word).parent for word in words if word.endswith(".py"))]
    return next((str(folder / file) for folder in folders if folder.is_absolute() and (folder / file).is_file()), file)


def _age(path: Path) -> tuple[tuple[int, int], int]:
    return parse_attempt(path.parents[2].name), int(path.parent.name)


def _number(path: Path, text: str) -> int:
    """Return the number of the last line that contains the text; 0 if there is none."""
    try:
        with path.open("rb") as file:
            found = [n for n, one in enumerate(file, 1) if text in one.decode(errors="replace")]
    except OSError:
        return 0
    return found[-1] if found else 0


def launches(run: RunDir) -> dict[str, Path]:
    """Return the folder of each launch's logs by its name, such as 7.0.1, newest first."""
    every = sorted(run.attempts.glob("*/logs/*"), key=lambda p: (parse_attempt(p.parents[1].name), int(p.name)))
    return {launch_name(path / "-"): path for path in reversed(every)}


def launch_name(file: Path) -> str:
    """Return the name of the launch whose output is in this file, such as 7.0.1."""
    return f"{file.parents[2].name}.{file.parent.name}"


def _printed(path: Path) -> bool:
    """Whether the rank has printed something. The lines that Slurm writes when it cancels the step do not count."""
    try:
        with path.open("rb") as file:
            data = file.read(_SHORT)
    except OSError:
        return False
    return len(data) == _SHORT or not all(map(_OF_SLURM.match, data.split(b"\n")))


def log_files(
    run: RunDir, view: RunView, ranks: Iterable[int] = (), nodes: Iterable[str] = (), launch: str = ""
) -> list[LogFile]:
    """Return the files of the newest launch that has printed something; without rank logs, the output of the job.

    Args:
        ranks, nodes: only of these; empty: of all.
        launch: only this one, such as 7.0.1.
    """
    newest: tuple[Path, dict[int, Path]] | None = None
    for name, folder in launches(run).items():
        found = {int(m[1]): path for path in folder.iterdir() if (m := _RANK.fullmatch(path.name)) is not None}
        if not found or launch not in ("", name):
            continue
        printed = any(map(_printed, found.values()))
        newest = (folder, found) if newest is None or printed else newest
        if printed:
            break
    if newest is None:
        job_log = run.job_log(view.job_id)
        return [LogFile(job_log, None)] if view.job_id and job_log.exists() and not launch else []
    folder, found = newest
    wanted = {*ranks}
    if names := {*nodes}:
        wanted |= ranks_on(AttemptDir(folder.parents[1]), int(folder.name), names)
    kept = sorted(rank for rank in found if rank in wanted or not (wanted or names))
    return [LogFile(found[rank], rank) for rank in kept]


def ranks_on(attempt: AttemptDir, launch: int, nodes: set[str]) -> set[int]:
    """Return the ranks of these nodes, from heartbeats and from what the rank wrappers recorded at their end."""
    from transom_cli.view.read_nodes import NodeReader

    sights, _ = NodeReader().read(attempt)
    found = {r.rank for n, s in sights.items() if n in nodes and s.table is not None for r in s.table.ranks}
    for path in attempt.exits(launch).glob("rank-*.json"):
        exited = read_json(path)
        if exited.get("node") in nodes and isinstance(rank := exited.get("rank"), int):
            found.add(rank)
    return found


def merged(files: Iterable[LogFile], since: float = 0.0) -> list[LogLine]:
    """Return new lines of all files, by time; lines without a time stay behind the line before them.

    Args:
        since: Unix time. A file without times in its lines is as old as its last line.
    """
    lines = [one for file in files for one in file.more() if (one.at or file.written) >= since]
    return sorted(lines, key=lambda one: one.at)


def drawn(one: LogLine, root: RootLine | None, width: int) -> Line:
    """Return the line with its rank in front. width: of the largest rank."""
    if one.rank is None:
        return line(printable(one.text))
    blamed = root is not None and bool(root.text) and one.rank == root.rank and root.text in one.text
    tone = "bad" if blamed else _TONES[one.rank % len(_TONES)]
    mark = ROOT if blamed else "  "
    return line((f"{mark} rank {one.rank:>{width}} ", tone), (printable(one.text), "bad" if blamed else ""))


class Follower:
    """Merges new lines, also of the launches that follow. ranks, nodes, launch: as in `log_files`."""

    def __init__(
        self, run: RunDir, view: RunView, ranks: Iterable[int] = (), nodes: Iterable[str] = (), launch: str = ""
    ) -> None:
        self._run, self._wanted = run, (tuple(ranks), tuple(nodes), launch)
        self.files = log_files(run, view, *self._wanted)

    def more(self, since: float = 0.0) -> list[LogLine]:
        return merged(self.files, since)

    def look_again(self, view: RunView) -> None:
        """Take in the files of a newer launch, from their beginning."""
        known = {file.path for file in self.files}
        new = [file for file in log_files(self._run, view, *self._wanted) if file.path not in known]
        if new:
            self.files = [replace(file, offset=0) for file in new]

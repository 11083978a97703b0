"""Diagnose log files: choose the files, match their lines, and turn the incidents into values and sentences."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.diagnose.clue import Action, Culprit, Root
from transom_cli.diagnose.combine import DiagnosedFailure
from transom_cli.diagnose.logs import grammar, reader
from transom_cli.diagnose.logs.aftermath import Aftermath
from transom_cli.diagnose.logs.cause import Incident, consequences, incidents
from transom_cli.diagnose.logs.context import speaker
from transom_cli.diagnose.logs.culprits import CRIES, without_order
from transom_cli.diagnose.logs.kinds import hit_of
from transom_cli.diagnose.logs.matches import LAUNCH, LEFT, Found, Hit, collect
from transom_cli.diagnose.logs.reader import hits_in_file
from transom_cli.diagnose.logs.rulebook import Blames, Rulebook, Scope
from transom_cli.plural import times


def from_incident(incident: Incident) -> DiagnosedFailure:
    root = incident.root
    return DiagnosedFailure(
        category=incident.category,
        action=action_of(incident),
        scope=root.rule.scope.value,
        confidence=incident.confidence,
        rule=root.rule.name,
        root=Root(root.record.line.strip(), root.file, root.lineno),
        culprits=incident.culprits,
        consequences=consequences(incident),
        evidence=evidence(incident),
    )


def action_of(incident: Incident) -> Action:
    """Return the rule's action. A line that accuses another node isolates nobody if it does not name one."""
    rule = incident.root.rule
    nameless = rule.blames is Blames.NAMED and not any(one.node for one in incident.culprits)
    return Action.REQUEUE if rule.action is Action.ISOLATE and nameless else rule.action


def evidence(incident: Incident) -> tuple[str, ...]:
    """Return sentences for people, the most telling one first."""
    root = incident.root
    said = [f"{root.file}:{root.lineno} matches the rule {root.rule.name} ({incident.category.value})", *incident.why]
    if root.more:
        said.append(f"the same line was printed {times(root.more)} more")
    same = {h.record.rank for h in incident.others if h.rule.name == root.rule.name and h.record.rank is not None}
    if same - {root.record.rank} and (incident.culprits or not incident.why):
        order = "which was first is not known" if without_order(root, incident.others) else "this one was first"
        said.append(f"{len(same | {root.record.rank})} ranks print the same; {order}")
    if root.launch:
        said.append(f"the log contains {root.launch + 1} launches; this one is the last that failed")
    if action_of(incident) is Action.ISOLATE and not any(one.node for one in incident.culprits):
        said.append("these logs do not name the node: name the folder with the logs of all nodes")
    elif not incident.culprits and root.rule.scope is not Scope.USER:
        said.append("these logs do not show which rank or node is to blame")
    if root.rule.note:
        said.append(root.rule.note)
    return tuple(said)


MOST_FILES = 200_000  # in one folder
_LARGEST = 4 << 20  # bytes of a torchelastic error file
_PROBE = 4096  # bytes read to tell a log from a binary file
_BINARY = (
    ".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npy", ".npz", ".arrow", ".parquet", ".pkl", ".so",
)  # fmt: skip
_PACKED = (
    ".tar", ".tgz", ".zip", ".xz", ".zst", ".bz2", ".whl", ".png", ".jpg", ".pdf", ".mp4", ".db", ".sqlite", ".pyc",
)  # fmt: skip
_SOURCE = (
    ".py", ".pyi", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".go", ".js", ".sh", ".sbatch", ".slurm",
)  # fmt: skip
_SETTINGS = (".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".md", ".rst", ".html", ".css", ".xml", ".csv", ".tsv")
_NO_LOG = frozenset((*_BINARY, *_PACKED, *_SOURCE, *_SETTINGS, ".jsonl", ".beats", ".lock", ".pid"))
"""Skipped in a folder, but read if named: a program that contains "ValueError" has not failed with it."""


@dataclass(frozen=True)
class Diagnosed:
    """incidents: the deciding one first. files: those read. unread: those that could not be read, and why."""

    incidents: tuple[Incident, ...]
    files: tuple[str, ...]
    unread: tuple[tuple[str, str], ...] = ()


def diagnose_logs(paths: Iterable[Path], book: Rulebook) -> Diagnosed:
    """Diagnose files and folders as the logs of one job."""
    hits: list[Hit] = []
    read: dict[str, Path] = {}
    unread: list[tuple[str, str]] = []
    for path in logs_in(paths):
        name = str(path)
        try:
            hits += _error_file(path, book, name) if path.suffix == ".json" else hits_in_file(path, book, name)
        except (OSError, EOFError, zlib.error) as error:
            unread.append((name, getattr(error, "strerror", None) or str(error)))
        else:
            read[name] = path
    ranks = {rank for rank, _ in map(grammar.of_file, read) if rank is not None}
    ranks |= {hit.record.rank for hit in hits if hit.record.rank is not None}
    aftermath = Aftermath(text for name in (LAUNCH, LEFT) if name in book.by_name for text in book.by_name[name].any)
    found = incidents(hits, lambda hit: aftermath.continued(hit, read[hit.file]), frozenset(ranks))
    return Diagnosed(tuple(_with_speaker(one, read) for one in found), tuple(read), tuple(unread))


def _with_speaker(incident: Incident, read: dict[str, Path]) -> Incident:
    """Look around a root line that names nobody for the process that printed it."""
    root = incident.root
    silent = root.record.rank is None and not root.record.node and root.rule.blames is Blames.PRINTER
    if incident.culprits or incident.why or not silent or incident.category in CRIES:
        return incident
    who = speaker(read[root.file], root)
    return incident if who == Culprit() else replace(incident, culprits=(who,))


def _error_file(path: Path, book: Rulebook, name: str) -> tuple[Hit, ...]:
    """Return the failure in a torchelastic error file; () for other JSON."""
    if path.stat().st_size > _LARGEST:
        return ()
    from_incident = reader.parse_error_file(path.read_text(encoding="utf-8", errors="replace"))
    if from_incident is None:
        return ()
    line = from_incident.message.encode().replace(b"\n", b" ")
    hits = collect(iter(filter(None, [hit_of(Found(line, 1, 0), book)])), name)
    return tuple(replace(hit, record=replace(hit.record, at=from_incident.at)) for hit in hits)


def logs_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the named files, and all text files of the named folders in order, without following links out of them."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = (one for one in sorted(path.rglob("*")) if one.is_file() and not one.is_symlink())
        for number, one in enumerate(inside):
            if number >= MOST_FILES:
                return
            if one.suffix.lower() not in _NO_LOG and is_text(one):
                yield one


def is_text(path: Path) -> bool:
    if path.suffix == ".gz":
        return True
    try:
        with path.open("rb") as file:
            head = file.read(_PROBE)
    except OSError:
        return True  # reported later as a file that cannot be read
    odd = sum(byte < 9 or 13 < byte < 27 for byte in head)
    return odd * 10 <= len(head)  # a log of a node that went down may contain a run of NULs

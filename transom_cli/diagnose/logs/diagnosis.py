"""Diagnose log files: choose the files, match their lines, and turn the incidents into values and sentences."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.diagnose.clue import Action, Category, Culprit, Root
from transom_cli.diagnose.combine import DiagnosedFailure
from transom_cli.diagnose.logs import grammar, reader
from transom_cli.diagnose.logs.aftermath import Aftermath, relaunches
from transom_cli.diagnose.logs.cause import Incident, consequences, incidents
from transom_cli.diagnose.logs.context import boxed, prompted, speaker
from transom_cli.diagnose.logs.culprits import BOX, CRIES, EXITS, blamed, entry_of, local_ranks, without_order
from transom_cli.diagnose.logs.kinds import hit_of
from transom_cli.diagnose.logs.matches import LAUNCH, LEFT, RAISED, Found, Hit, collect
from transom_cli.diagnose.logs.processes import first_closed, processes
from transom_cli.diagnose.logs.reader import hits_in_file
from transom_cli.diagnose.logs.rulebook import Blames, Level, Rulebook, Scope
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


BOXED = "daemon-lost", "mpi-peer-gone"  # rules for messages of Open MPI that name the node on a line of its own
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


def diagnose_logs(paths: Iterable[Path], book: Rulebook, *, supervised: bool = False) -> Diagnosed:
    """Diagnose files and folders as the logs of one job.

    Args:
        supervised: the supervisor requested the job's requeues, and its end: they are no cause.
    """
    hits: list[Hit] = []
    read: dict[str, Path] = {}
    unread: list[tuple[str, str]] = []
    for path in logs_in(paths):
        name = str(path)
        try:
            is_error_file = path.suffix == ".json"
            hits += _error_file(path, book, name) if is_error_file else _by_launch(hits_in_file(path, book, name), path)
        except (OSError, EOFError, zlib.error) as error:
            unread.append((name, getattr(error, "strerror", None) or str(error)))
        else:
            read[name] = path
    if supervised:
        hits = [hit for hit in hits if hit.rule.category not in (Category.SLURM_CANCELLED, Category.SLURM_PREEMPTED)]
    ranks = {rank for rank, _ in map(grammar.of_file, read) if rank is not None}
    ranks |= {hit.record.rank for hit in hits if hit.record.rank is not None}
    aftermath = Aftermath(text for name in (LAUNCH, LEFT) if name in book.by_name for text in book.by_name[name].any)
    found = incidents(hits, lambda hit: aftermath.continued(hit, read[hit.file]), frozenset(ranks))
    return Diagnosed(tuple(_with_context(one, read, ranks) for one in found), tuple(read), tuple(unread))


def _by_launch(hits: list[Hit], path: Path) -> list[Hit]:
    """Count the launches of a program that was started again after it had failed, as its first lines show."""
    failed = next((h.offset for h in hits if h.level >= Level.ENDING and not h.mild), None)
    counted = any(h.launch for h in hits)
    starts = relaunches(path, failed) if failed is not None and hits[-1].offset > failed and not counted else ()
    if not starts:
        return hits
    return [replace(h, launch=h.launch + sum(at < h.offset for at in starts)) for h in hits]


def _with_context(incident: Incident, read: Mapping[str, Path], ranks: Set[int]) -> Incident:
    """Find out who failed from lines that are no failures: a process's rank, or who printed a line without labels."""
    root, path = incident.root, read[incident.root.file]
    if root.rule.name in BOXED and not incident.culprits and (who := boxed(path, root)) != Culprit():
        return replace(incident, culprits=(who,))
    cries = incident.category in CRIES
    if (cries or incident.category is Category.RENDEZVOUS_PORT) and not incident.culprits:
        criers = {hit.record.rank for hit in (root, *incident.others)} - {None}
        known = frozenset(ranks | processes(path).known) if len(criers) > 1 else frozenset()
        culprits, why = blamed(root, incident.others, known) if len(known) > len(ranks) else ((), ())
        return replace(incident, culprits=culprits, why=why) if culprits else incident
    if root.rule.blames is not Blames.PRINTER or incident.why or len(incident.culprits) > 1:
        return incident
    who = next(iter(incident.culprits), Culprit())
    if who.rank is not None and _all_raise(incident, path):
        return replace(incident, culprits=(), why=("all processes raise the same: it is not one rank's",))
    boxes = [hit for hit in incident.others if hit.rule.name == BOX and "rank" in hit.where]
    failed = {int(hit.where["rank"]) for hit in boxes}
    unnamed = who == Culprit() or who.rank in failed
    if failed and unnamed and root.record.rank is None and not entry_of(root, boxes):
        said = processes(path)
        if said.cut and who.rank == int(boxes[-1].where["rank"]):
            return replace(incident, culprits=(), why=("the log ends before torchrun's root cause",))
    if len(failed) > 1 and unnamed and root.record.rank is None and not entry_of(root, boxes):
        if (first := said.first_failed()) is not None:
            return replace(incident, culprits=(first,))
        if said.alike and root.rule.name not in EXITS and who.rank == int(boxes[-1].where["rank"]):
            return replace(
                incident, culprits=(), why=(f"torchrun reports that {len(failed)} ranks failed alike at once",)
            )
    if who.rank is not None and local_ranks((root, *incident.others)) == [who]:
        rank = processes(path).global_rank(who.rank)
        return replace(incident, culprits=() if rank is None else (Culprit(rank=rank),))
    if who == Culprit() and root.record.rank is None and not root.record.node and not cries:
        who = speaker(path, root)
    if root.rule.scope is Scope.NODE and not who.node:
        who = replace(who, node=prompted(path, root).node)
    if who.rank is None and (who.node or not cries):
        who = replace(who, rank=_rank_of(incident, who, path))
    return incident if who == Culprit() else replace(incident, culprits=(who,))


def _all_raise(incident: Incident, path: Path) -> bool:
    """Whether an exception without labels is printed by as many processes as the log shows."""
    root = incident.root
    labelled = root.record.rank is not None or "rank" in root.where
    if labelled or root.rule.scope is not Scope.USER or not RAISED.match(root.record.text):
        return False
    same = [h for h in incident.others if h.rule is root.rule and h.record.text == root.record.text]
    said = processes(path)
    return 1 + root.more + len(same) >= max(said.children, said.world) > 1


def _rank_of(incident: Incident, who: Culprit, path: Path) -> int | None:
    """Return the rank of a process that only its number, its device or its local rank names."""
    root, of = incident.root, processes(path)
    rank = of.rank_of(root, who)
    again = root.more or any(h.rule is root.rule and h.record.text == root.record.text for h in incident.others)
    if rank is None and who == Culprit() and not again and (closed := first_closed(path, root)) is not None:
        rank = of.global_rank(closed)
    return rank


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

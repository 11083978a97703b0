"""Who prints a line that names nobody, as the lines around it show. For files, which can be read again.

[rank3]:[E ... setup.cpp:44] setup failed!      torch's C++ labels only the first line of a message
Exception raised from prepare at ...
ray::Worker.step() (pid=17, ip=10.0.0.7, ...)   Ray prints where a task ran above its traceback
  File "train.py", line 7, in step
ValueError: bad shard
<w-3> ValueError: bad shard                     a launcher that no label knows: other lines have other numbers
==> logs/rank-3.log <==                         tail, Composer and Ray Train print each rank's output below a heading
-----Begin global rank 3 STDERR-----
[ERROR] ... (PID:17, Device:3, RankID:3) ERR01100   torch_npu's second line
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.aftermath import open_log
from transom_cli.diagnose.logs.grammar import clean, of_file, record
from transom_cli.diagnose.logs.matches import RAISED, Hit
from transom_cli.diagnose.logs.named import is_about_an_end, named

_REACH = 128 << 10  # bytes read before the line, and after it
_MESSAGE = 3  # lines of a message in C++ below its label
_TRACEBACK = 400  # lines
_CHAIN = "During handling of the above", "The above exception was"
_EXCEPTION = re.compile(r"[\w.]*(?:Error|Exception)(?::|$)")
_LOGGED = re.compile(r"(?:^|\]:?)\[?[EF][^\]]{0,80}\.(?:cpp|cc|cu|ts|h):\d{1,6}\]")
_HEADING = re.compile(
    r"(?i)(?P<mark>(?:#+|[-=*>]{2,}) {0,3})?(?:(?:begin|on|logs? of|output of|from|errors? on) )?(?:global |worker )?"
    r"rank[ _#-]{0,2}(?P<rank>\d{1,6})(?: (?:logs?|output|errors?|stderr|stdout|error snippet|failed|traceback))?\]?"
    r"(?P<end>:| {0,3}[-=*<#]{2,})?"
)
_FILE_HEADING = re.compile(r"==> (\S[^<>]{0,400}) <==")
_FILE_HOST = re.compile(r"(?:gpu|node|nid|worker|dgx|cn)[-_]?\d{1,6}(?![0-9])")
_ASCEND = re.compile(r"\(PID:\d{1,10}, Device:(\d{1,4}), RankID:(-1|\d{1,7})\)")
_DESTROYED = re.compile(r"Process Group destroyed on rank (\d{1,7})")
_BELOW = 3  # lines
_BOX = 10  # lines of a message of Open MPI
_BOXED = re.compile(r"(?:hostname|[Rr]emote host|[Pp]eer host|[Nn]ode name|[Tt]arget node) {0,4}: {1,20}([\w.-]{1,80})")
_CPP = re.compile(rb"(?m)^[^\n]{0,60}?\[rank(\d{1,7})\]: ?\[[EF]\d[^\n]*")
_VICTIM = re.compile(rb"(?i)time(?:d )?out|remote|connection|broken pipe|peer|dump signal")
_PROMPT = re.compile(rb"(?m)^[>#| ]{0,8}(?:\([\w.-]{1,40}\) ?)?\[?[\w.-]{1,40}@([\w.-]{1,80})[: ][^\n]{0,80}?[$#%] ")
_HYDRA = re.compile(rb"\[(?:proxy:\d{1,7}:\d{1,7}|mpiexec)@([\w.-]{1,80})\]")
_NUMBERED = re.compile(r"[\[(<{]((?:[A-Za-z][\w ./-]{0,40}?)?)[ :=_#/-]{0,2}(\d{1,5})[\])>}]:? |()(\d{1,5}) ?[|>)] ")
_HOST = re.compile(r"([A-Za-z](?=[\w.-]{0,60}\d)[\w.-]{1,80})(?:: | {0,30}[|>] )")
_COUNTS = re.compile(
    r"(?i)step|iter|epoch|batch|round|stage|trial|fold|layer|level|line|page|test|case|chunk|shard|part|file|seed"
    r"|update|episode|sample|loss"
)  # what a number counts that is no process
_PLACES = re.compile(r"(?i)node|host|machine|pod")
_PROCESSES = re.compile(r"(?i)(?:rank|proc|process|task|gpu|trainer|actor|replica|local)[-_]?\d+")
_ERRORS = "E", "F", "C"  # levels
_SHORT = 200  # bytes of a heading
_FEWEST = 6  # lines with such a label
_COUNTERS = 16  # more different numbers than this, nearly all one above the number before, are a counter


def around(path: Path, hit: Hit) -> tuple[bytes, bytes]:
    """Return what is before a line, and what begins with it. Nothing of a pipe, which cannot be read again."""
    if not path.is_file():
        return b"", b""
    start = max(0, hit.offset - _REACH)
    try:
        with open_log(path) as file:
            file.seek(start)
            return file.read(hit.offset - start), file.read(_REACH)
    except (OSError, EOFError, zlib.error):
        return b"", b""


def boxed(path: Path, hit: Hit) -> Culprit:
    """Return the node that Open MPI's message names below its first line."""
    for line in around(path, hit)[1].split(b"\n", _BOX)[:_BOX]:
        if (node := _BOXED.fullmatch(record(clean(line[:_SHORT])).text)) is not None:
            return Culprit(node[1])
    return Culprit()


def prompted(path: Path, hit: Hit) -> Culprit:
    """Return the node that the last shell prompt above a line names."""
    prompts = _PROMPT.findall(around(path, hit)[0])
    return Culprit(prompts[-1].decode()) if prompts else Culprit()


def speaker(path: Path, hit: Hit) -> Culprit:
    """Return the process that printed a line without labels; nobody if the lines around it do not show it."""
    before, after = around(path, hit)
    if hit.record.text.startswith("= "):  # a report of MPICH's mpiexec
        nodes = set(_HYDRA.findall(after))
        return Culprit(nodes.pop().decode()) if len(nodes) == 1 else Culprit()
    above = [clean(line) for line in re.split(rb"[\r\n]", before)[-_TRACEBACK - 1 : -1]]
    said = _heads_traceback(above, hit.record.indent) if _EXCEPTION.match(hit.record.text) else _begins_message(above)
    for one in (said, _ends_message(after), _headed(before), _fails_too(after)):
        if one != Culprit():
            return one
    return _labelled(hit.record.line, (line for line in re.split(rb"[\r\n]", before + after) if line.strip()))


def _begins_message(above: Sequence[str]) -> Culprit:
    """Return the rank whose message of C++ begins shortly above the line."""
    for line in reversed(above[-_MESSAGE:]):
        of = record(line)
        if of.rank is not None:
            return Culprit(of.node, of.rank) if _LOGGED.search(line[:200]) or _ASCEND.search(line) else Culprit()
        if of.text.startswith(("Traceback", 'File "')) or RAISED.match(of.text):
            break
    return Culprit()


def _heads_traceback(above: Sequence[str], indent: int) -> Culprit:
    """Return where the line above a traceback says that it ran. A line of a logger at the level of errors has the label
    of the rank that logged the exception."""
    chained, frames = False, 0
    for line in reversed(above):
        of = record(line)
        if line[:1].isspace() or of.indent > indent + 1 or not of.text or of.text.startswith("Traceback"):
            frames += 1
        elif of.text.startswith(_CHAIN):
            chained = True
        elif chained and RAISED.match(of.text):
            chained = False
        else:
            if not frames or _LOGGED.search(line[:200]):
                break  # no traceback, or a message of another thread
            tells = of.text.startswith("ray::") or of.level[:1] in _ERRORS or is_about_an_end(of.text)
            if tells and (said := named(of.text)) != Culprit():
                return said
            return Culprit(of.node, of.rank) if of.rank is not None and of.level[:1] in _ERRORS else Culprit()
    return Culprit()


def _ends_message(after: bytes) -> Culprit:
    """Return the rank, or only its device, that the lines below an exception of torch_npu or of C++ name."""
    for line in after.split(b"\n", _BELOW + 1)[:-1]:
        text = clean(line[:_SHORT])
        if (destroyed := _DESTROYED.match(text)) is not None:
            return Culprit(rank=int(destroyed[1]))
        if (said := _ASCEND.search(text)) is not None:
            return Culprit(rank=int(said[2])) if said[2] != "-1" else Culprit(device=said[1])
    return Culprit()


def _fails_too(after: bytes) -> Culprit:
    """Return the only rank for which torch's C++ logs errors below an exception, and not those of a lost peer."""
    lines = list(_CPP.finditer(after))
    ranks = {line[1] for line in lines}
    victims = any(_VICTIM.search(line[0]) for line in lines)
    return Culprit(rank=int(ranks.pop())) if len(ranks) == 1 and not victims else Culprit()


def _headed(before: bytes) -> Culprit:
    """Return the rank or the node that the last heading above the line names."""
    for line in reversed(before.split(b"\n")):
        if not 5 < len(line) < _SHORT or (b"ank" not in line.lower() and b"==>" not in line):
            continue
        text = clean(line).strip()
        if (file := _FILE_HEADING.fullmatch(text)) is not None:
            rank, node = of_file(file[1])
            host = _FILE_HOST.search(file[1].rpartition("/")[2])
            return Culprit(node or (host[0] if host else ""), rank)
        rank_of = _HEADING.fullmatch(text)
        if rank_of is not None and (rank_of["mark"] or rank_of["end"]):
            return Culprit(rank=int(rank_of["rank"]))
    return Culprit()


def _labelled(own: str, lines: Iterable[bytes]) -> Culprit:
    """Return the process that the beginning of the line names, if most lines begin alike, with other numbers, and the
    numbers neither grow nor count something."""
    label = _label(own)
    if label is None or _COUNTS.search(label[0]):
        return Culprit()
    numbers: list[int] = []
    total = 0
    for line in lines:
        total += 1
        other = _label(clean(line[:200]))
        if other is not None and other[0] == label[0]:
            numbers.append(other[1])
    distinct = set(numbers)
    pairs = list(pairwise(numbers))
    falls = sum(after < before for before, after in pairs)
    grows = sum(after == before + 1 for before, after in pairs)
    if len(numbers) < max(_FEWEST, total / 2) or len(distinct) < 2 or falls < 2:
        return Culprit()
    if len(distinct) > _COUNTERS and grows > 0.8 * len(pairs):
        return Culprit()
    if label[2] and not _PROCESSES.fullmatch(label[2]):
        return Culprit(label[2])
    return Culprit(rank=label[1]) if max(distinct) < 4 * (len(distinct) + 1) else Culprit()


def _label(line: str) -> tuple[str, int, str] | None:
    """Return the shape of a line's beginning, its number, and the name of a place; None without such a beginning."""
    found = _NUMBERED.match(line)
    if found is not None:
        number = int(found[2] or found[4])
        shape = re.sub(r"\d+", "0", found[0])
        return shape, number, found[0].strip(" :[](){}<>") if _PLACES.search(found[0]) else ""
    host = _HOST.match(line)
    if host is None:
        return None
    last = re.findall(r"\d+", host[1])[-1]
    return re.sub(r"\d+", "0", host[0]), int(last[:9]), host[1]

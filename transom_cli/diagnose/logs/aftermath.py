"""What follows a log line: whether the training continued, in which case the line was noise or was handled.

A file is read in blocks. What a block shows is remembered, since many lines of a storm ask for the same blocks.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from transom_cli.diagnose.clue import DEVICES, Category
from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.lazy_re import lazy_re
from transom_cli.diagnose.logs.matches import ENDINGS, Hit
from transom_cli.diagnose.logs.rulebook import Level

LOOKED_AT = 1 << 20  # bytes read after the line, and before it
ENOUGH = 5  # further progress lines: other ranks' progress bars run on for a moment
_BLOCK = 64 << 10
_COMPRESSED_BLOCK = 1 << 20  # each read decompresses all that is before it
_REMEMBERED = 128  # answers about blocks
_LINE = 2000  # bytes of a line
_LABELS = 64  # bytes that contain its labels
_NUMBER = r"[-+]?\d"
_PROGRESS = lazy_re(
    rf"(?i)(?:\d ?(?:it|img|images|samples|tokens)/s|\ds/it|\d%\||\bglobal_step\b|\bloss\b\W{{0,6}}{_NUMBER}"
    rf"|\b(?:step|iter|iteration|epoch|batch|episode|timestep|trial|round|generation)s?\b\W{{0,4}}{_NUMBER}"
    rf"|\d/\d+\] +eta:)".encode()
)
_FINITE = lazy_re(rf"(?i)\b\w*(?:loss|ppl|bpb|perplexity)\w*\b\W{{0,6}}{_NUMBER}".encode())
_NOT_FINITE = lazy_re(rb"(?i)\b(?:nan|inf)\b")
_DONE = (  # messages of libraries: a script may print its own after any outcome
    r"exits successfully|'train_runtime'|`Trainer.fit` stopped: `max_|Out of bounds values : 0 OK"
    r"|\[after training is done\]"
)
_RESUMED = (  # a launch that continues an earlier one; a job that is ended saves its state, but loads none
    r"(?i)\b(?:resum(?:ed|ing)|recovered|restor(?:ed|ing)|loaded|loading) (?:(?:the|a|last|latest|from|training|model"
    r"|optimizer) ){0,4}(?:checkpoint|state|snapshot)s?\b|\bresum(?:ed|ing) (?:training |run )?(?:from|at)\b"
)
_SAYS_DONE = r"(?i)\btraining (?:is )?(?:complete|finished)|\bsaving (?:the )?final model"  # counts after progress only
_LAST_STEP = r"(?i)\b(?:step|iter|iteration)s?\b\W{0,4}(\d{2,9}) ?/ ?\1\b"  # of all steps
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_STARTS = 4 << 20  # bytes that are searched for a launch's first lines
_TRIED = 8  # first lines: some may contain a name or a date
_BACKTRACE = lazy_re(rb"frame #|recent call (?:first|last)|\b0x[0-9a-f]")
_QUOTES = rb"(?:[>#] {1,4}|\x1b\[[\d;]{0,8}m|\[std(?:err|out)\] ?)?"
_TWO_LINES = lazy_re(
    rb"(?m)^(?=(" + _QUOTES + rb"(?!\d{1,7}: |[^\n]{0,60}(?:Traceback|[Rr]ank))[A-Za-z0-9/(<][^\n]{8,999}\n"
    rb"(?![^\n]{0,20}Traceback)[^\n]{8,999}\n))"
)
_BETWEEN = (Category.NETWORK_FABRIC, Category.RENDEZVOUS_PORT, Category.NCCL_HANG, Category.EXTERNAL_SERVICE)
_LINES, _LOSSES = "lines", "losses"  # kinds of progress

Places = tuple[tuple[int, bytes], ...]  # offset in the file and, of a progress line, its beginning


def open_log(path: Path) -> BinaryIO:
    """Open a log, also one compressed by log rotation. Raises OSError like `open`."""
    if path.suffix == ".gz":
        import gzip

        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def relaunches(path: Path, failed: int) -> tuple[int, ...]:
    """Return where a log's first lines come again after a failure, as of a program that was started again.

    Args:
        failed: the offset of the failure. Lines that come again before it are printed by each process, or are progress.
    """
    if not path.is_file():
        return ()  # a pipe cannot be read again
    with open_log(path) as file:
        data = file.read(_STARTS).translate(_DIGITS)
    for one in islice(_TWO_LINES.finditer(data, 0, failed), _TRIED):
        if _BACKTRACE.search(one[1]):
            continue  # several processes print the same one
        again = [other.start() for other in re.finditer(re.escape(one[1]), data)]
        if len(again) > 1 and again[1] > failed:
            return tuple(again[1:])
    return ()


class Aftermath:
    """Answers for any number of files, which must not change meanwhile."""

    def __init__(self, banners: Iterable[str] = ()) -> None:
        """banners: texts that the first process of a launch prints, or the last one of the launch before."""
        self._banner = "|".join(map(re.escape, banners))
        self._known: OrderedDict[tuple[Path, int, str], Places] = OrderedDict()

    def continued(self, hit: Hit, path: Path) -> bool:
        """Whether the line was noise: the training continues after it, or a connection breaks when all is done."""
        at, end = hit.offset, hit.offset + LOOKED_AT
        try:
            if not hit.rule.lasts:
                ended = hit.rule.category in ENDINGS
                return hit.rule.category not in DEVICES and self._trains_again(path, at, end, ended)
            if any(next(self._in(path, one, at, end), None) for one in hit.rule.over):
                return True
            kind = _LOSSES if hit.rule.category is Category.NUMERIC_DIVERGENCE else _LINES
            lines = set()
            own = hit.record.rank
            speaks = None if own is None else self._prints(path, kind, hit, own)
            for _, line in self._in(path, kind, at + 1, end):
                if speaks and _rank_of(line) not in (None, own):
                    continue  # another process: this rank printed its progress, and no longer does
                lines.add(line)
                if len(lines) >= ENOUGH:
                    return True
            closing = hit.level is Level.SIGN and hit.rule.category in _BETWEEN
            return closing and (self._done(path, at) or self._has_run(hit, path))
        except (OSError, EOFError):
            return False

    def _trains_again(self, path: Path, at: int, end: int, ended: bool) -> bool:
        """Whether another launch follows, and trains. It replaces what ended this one, but mends no device.

        ended: the job was ended from outside, so that what loads a checkpoint later is another job's launch.
        """
        banner = next(self._in(path, self._banner, at, end), None) if self._banner else None
        resumed = next(self._in(path, _RESUMED, at, end), None) if ended else None
        for begins in filter(None, (banner, resumed)):
            lines = len({line for _, line in self._in(path, _LINES, begins[0], end)})
            if lines >= ENOUGH or (lines and next(self._in(path, _SAYS_DONE, begins[0], end), None) is not None):
                return True
        return False

    def _done(self, path: Path, at: int) -> bool:
        """Whether the training was complete before this offset."""
        start = max(0, at - LOOKED_AT)
        if next(self._in(path, _DONE, start, at), None) is not None:
            return True
        said = next(self._in(path, _SAYS_DONE, start, at), None)
        return said is not None and len({line for _, line in self._in(path, _LINES, start, said[0])}) >= ENOUGH

    def _has_run(self, hit: Hit, path: Path) -> bool:
        """Whether all steps were done before a connection broke. A hang is one also after the last step."""
        steps = self._in(path, _LAST_STEP, max(0, hit.offset - LOOKED_AT), hit.offset)
        return hit.rule.category is Category.NETWORK_FABRIC and next(steps, None) is not None

    def _prints(self, path: Path, kind: str, hit: Hit, rank: int) -> bool:
        """Whether this rank printed progress of its own before the line."""
        before = self._in(path, kind, max(0, hit.offset - LOOKED_AT), hit.offset)
        return any(_rank_of(line) == rank for _, line in before)

    def _in(self, path: Path, what: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield where the file shows it between two offsets, in order."""
        size = _COMPRESSED_BLOCK if path.suffix == ".gz" else _BLOCK
        for number in range(start // size, end // size + 1):
            key = path, number, what
            if key not in self._known:
                self._known[key] = self._read(path, number * size, size, what)
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            yield from (place for place in self._known[key] if start <= place[0] < end)

    def _read(self, path: Path, start: int, size: int, what: str) -> Places:
        with open_log(path) as file:
            file.seek(max(0, start - 1))
            data = file.read(size + _LINE + (start > 0))
        before, data = (data[:1], data[1:]) if start else (b"\n", data)
        if what not in (_LINES, _LOSSES):
            found = re.finditer(what.encode(), data)
            return tuple((start + one.start(), b"") for one in found if one.start() < size)
        places, at = [], 0
        alike: dict[bytes, bool] = {}  # lines that differ in digits are progress, or none of them is
        begins = before in (b"\n", b"\r")
        for line in data.replace(b"\r", b"\n").split(b"\n"):
            if at >= size:
                break
            short = line[:_LINE]
            masked = short.translate(_DIGITS)
            if masked not in alike:
                alike[masked] = _is_progress(masked, what)
            if begins and alike[masked]:
                places.append((start + at, short))
            begins, at = True, at + len(line) + 1
        return tuple(places)


def _rank_of(line: bytes) -> int | None:
    labels = line[:_LABELS]
    return grammar.rank_of(grammar.clean(labels)) if _names_rank(labels.translate(_DIGITS)) else None


@lru_cache(maxsize=4096)
def _names_rank(masked: bytes) -> bool:
    """Whether labels name a rank. Where they do depends on no digit."""
    return grammar.rank_of(grammar.clean(masked)) is not None


@lru_cache(maxsize=4096)
def _is_progress(line: bytes, kind: str) -> bool:
    """Whether this is a progress line; for losses, a line with a finite loss."""
    if kind == _LOSSES:
        return _FINITE.search(line) is not None and _NOT_FINITE.search(line) is None
    return _PROGRESS.search(line) is not None

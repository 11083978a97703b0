"""Checkpoints in object storage as candidates of a restore: listed by rank 0, fetched by all ranks together.

A fetched checkpoint becomes an ordinary one in the main directory, with every byte verified, and is restored there.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.failures import describe, one_line
from transom_cli.ckpt.inventory import Candidate, verify
from transom_cli.ckpt.manifest import Manifest, decode
from transom_cli.ckpt.names import MANIFEST, step_name, tmp_name
from transom_cli.ckpt.progress import OnBytes
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.tiers import marks
from transom_cli.ckpt.tiers.objects import Marker, ObjectStore, StorageError
from transom_cli.errors import TransomError
from transom_cli.files import make_private

LISTING = 60.0  # seconds for all questions to one place before a restore
OLDER = 3  # checkpoints that are listed though a newer one is on disk
SILENCE = 300.0  # seconds in which a fetch that moves no byte is given up

T = TypeVar("T")


@dataclass(frozen=True)
class MirrorCandidate:
    """A complete checkpoint in object storage."""

    url: str
    marker: Marker

    @property
    def step(self) -> int:
        return self.marker.step

    @property
    def name(self) -> str:
        return f"{step_name(self.step)} in {self.url}"


def mirror_candidates(
    urls: Iterable[str], main: Path, undone: Callable[[int, str], bool], above: int
) -> tuple[list[MirrorCandidate], list[str]]:
    """List what is in object storage. A checkpoint that a rollback has undone is deleted there.

    Args:
        above: of the steps below it, only the newest few are listed: there is a newer one on disk.

    Returns:
        The candidates, newest first, and why a place could not be read.
    """
    found: list[MirrorCandidate] = []
    unknown: list[str] = []
    for url in urls:
        try:
            found += bounded(lambda url=url: _candidates(url, main, undone, above), lambda: 0, LISTING)  # type: ignore[misc]
        except TransomError as error:
            why = f" ({error.why})" if error.why else ""
            unknown.append(f"the checkpoints in {url} are not known: {error.what}{why}")
    return sorted(found, key=lambda one: one.step, reverse=True), unknown


def _candidates(url: str, main: Path, undone: Callable[[int, str], bool], above: int) -> list[MirrorCandidate]:
    store = ObjectStore(url)
    steps = store.steps()
    if steps:
        store.claim(main)
    found: list[MirrorCandidate] = []
    for step in steps:
        if sum(one.step < above for one in found) >= OLDER:
            break
        marker = store.marker(step)
        if marker is None:
            continue
        if undone(step, marker.attempt):
            store.remove(step)
        else:
            found.append(MirrorCandidate(url, marker))
    return found


def fetch_together(found: MirrorCandidate, directory: Path, attempt: str, ranks: Ranks, on_bytes: OnBytes) -> str:
    """Bring a checkpoint into the main directory. A collective. Returns "", or why that failed.

    The directory is the same on all nodes, and each rank fetches some of the files.
    """
    work, data, trouble = directory, b"", ""
    if ranks.first:
        try:
            data = bounded(lambda: ObjectStore(found.url).manifest(found.marker), lambda: 0, LISTING)
            decode(data)
            work = directory / tmp_name(found.step, attempt, secrets.token_hex(4))
            make_private(work)
        except (OSError, TransomError) as error:
            trouble = one_line(error)
    work, data, trouble = ranks.from_first((work, data, trouble))
    if trouble:
        return trouble
    manifest = decode(data)
    trouble = _first(ranks.gather(_fetch_share(found, manifest, work, ranks, on_bytes)))
    if ranks.first:
        try:
            if not trouble:
                _publish(work, data, found, directory, attempt)
        except (OSError, TransomError) as error:
            trouble = one_line(error)
        if trouble:
            files.delete_tree(work)
    return str(ranks.from_first(trouble))


def _fetch_share(found: MirrorCandidate, manifest: Manifest, work: Path, ranks: Ranks, on_bytes: OnBytes) -> str:
    by_size = sorted(manifest.files, key=lambda entry: entry.size, reverse=True)
    mine = by_size[ranks.rank :: ranks.size]
    moved = 0

    def count(size: int) -> None:
        nonlocal moved
        moved += size
        on_bytes(size)

    def fetch() -> str:
        store = ObjectStore(found.url)
        for entry in mine:
            if store.fetch(found.marker, entry.name, work / entry.name, count) != entry:
                return f"{entry.name} in {found.url} is damaged (its checksum differs)"
        return ""

    try:
        return bounded(fetch, lambda: moved, SILENCE)
    except (OSError, TransomError) as error:
        return f"{error.what} ({error.why})" if isinstance(error, TransomError) and error.why else one_line(error)


def _publish(work: Path, data: bytes, found: MirrorCandidate, directory: Path, attempt: str) -> None:
    with contextlib.suppress(OSError):
        marks.write_metrics(work, found.marker.metrics)
    files.write_new(work / MANIFEST, data)
    final = directory / step_name(found.step)
    fence.check(directory, attempt)
    if final.exists():
        if verify(Candidate(found.step, final)).good:
            files.delete_tree(work)
            return
        files.set_aside(final)
    files.publish(work, final)


def bounded(work: Callable[[], T], moved: Callable[[], int], silence: float) -> T:
    """Run `work` in a thread, and give it up when `moved()` does not change for that many seconds.

    A storage client may hang for ever, and the trainer must not. Raises StorageError then, and what `work` raises.
    """
    answer: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="transom-object", daemon=True)
    thread.start()
    known, since = moved(), time.monotonic()
    while thread.is_alive():
        thread.join(0.05)
        now = time.monotonic()
        if moved() != known:
            known, since = moved(), now
        elif now - since >= silence:
            raise StorageError(f"object storage does not answer: no byte in {silence:g} s")
    if failed:
        error = failed[0]
        raise error if isinstance(error, (OSError, TransomError)) else StorageError(describe(error))
    return answer[0]


def _first(troubles: Collection[str]) -> str:
    return next((trouble for trouble in troubles if trouble), "")

"""Which checkpoints to keep: the newest good ones, and every so many steps one for ever. Others are never touched.

What did not verify is not counted and not deleted: a bad checkpoint may be all that is left of a step, and a person
may want to look at it. A checkpoint is read in full at most once by this object; later calls only `stat` its files.
Those that stay for ever are not read at all, but for the newest: there may be a thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.inventory import Candidate, candidates, check_shape, read_manifest, verify
from transom_cli.ckpt.manifest import Manifest
from transom_cli.ckpt.names import trash_name
from transom_cli.errors import UsageError


@dataclass(frozen=True)
class Keep:
    """The newest `newest` good ones, at least 1, and those at multiples of `every` steps (None: no others)."""

    newest: int = 2
    every: int | None = None

    def doomed(self, steps: Iterable[int], good: Callable[[int], bool]) -> list[int]:
        """Those of `steps`, each there once, that are to go, newest first. `good` is asked only where that decides."""
        found, gone = 0, []
        for step in sorted(steps, reverse=True):
            stays = self.every is not None and step % self.every == 0
            if found < self.newest:
                found += good(step)
            elif not stays and good(step):
                gone.append(step)
        return gone


def check(keep: object, keep_every: object) -> Keep:
    """Raises UsageError for what cannot be asked for."""
    if not _count(keep):
        raise UsageError(
            f"keep={keep!r} must be at least 1",
            "it is how many of the newest good checkpoints stay: without one there would be nothing to go on from",
            "keep=2, the default, leaves one to fall back on",
        )
    if keep_every is not None and not _count(keep_every):
        raise UsageError(
            f"keep_every={keep_every!r} must be a number of steps, at least 1, or None",
            "every good checkpoint at a multiple of it stays for ever",
            "keep_every=10000 keeps those of steps 10000, 20000, ...; they are to be steps that are saved",
        )
    assert isinstance(keep, int)
    return Keep(keep, keep_every if isinstance(keep_every, int) else None)


class Retention:
    def __init__(self, directory: Path, keep: Keep, attempt: str) -> None:
        self._directory = directory
        self._keep = keep
        self._attempt = attempt
        self._known: dict[int, Manifest] = {}  # read in full and found good

    def work_for(self, attempt: str, keep: Keep) -> None:
        """From now on, in the name of that attempt."""
        self._attempt, self._keep = attempt, keep

    def trust(self, manifest: Manifest) -> None:
        """`manifest`'s checkpoint has just been read in full, or written, and is good."""
        self._known[manifest.step] = manifest

    def apply(self, published: int, nonce: str) -> list[int]:
        """Delete what need not be kept, never `published` itself. Returns the deleted steps.

        Raises OSError. A crash at any moment leaves the kept ones whole: a deleted one first loses its name.
        """
        there = {candidate.step: candidate for candidate in candidates(self._directory)}
        if len(there) <= self._keep.newest:
            return []  # and none of them need be read
        doomed = self._keep.doomed(there, lambda step: self._is_good(there[step]))
        doomed = [step for step in doomed if step != published]
        for step in doomed:
            trash = self._directory / trash_name(step, self._attempt, nonce)
            there[step].path.rename(trash)
            files.sync_directory(self._directory)
            files.delete_tree(trash)
            self._known.pop(step, None)
        return doomed

    def _is_good(self, candidate: Candidate) -> bool:
        try:
            manifest = read_manifest(candidate)
        except BadManifest:
            return False
        if self._known.get(candidate.step) == manifest:
            return not check_shape(candidate.path, manifest.files)
        good = verify(candidate).good
        if good:
            self.trust(manifest)
        return good


def _count(value: object) -> bool:
    return type(value) is int and value >= 1

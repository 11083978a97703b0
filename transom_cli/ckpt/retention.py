"""Which checkpoints to keep: the newest `keep` that are known to be good. Others are never touched.

What did not verify is not counted and not deleted: a bad checkpoint may be all that is left of a step, and a person
may want to look at it. A checkpoint is read in full at most once by this object; later calls only `stat` its files.
"""

from __future__ import annotations

from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.inventory import Candidate, candidates, check_shape, read_manifest, verify
from transom_cli.ckpt.manifest import Manifest
from transom_cli.ckpt.names import trash_name


class Retention:
    def __init__(self, directory: Path, keep: int, attempt: str) -> None:
        self._directory = directory
        self._keep = max(1, keep)
        self._attempt = attempt
        self._known: dict[int, Manifest] = {}  # read in full and found good

    def work_for(self, attempt: str, keep: int) -> None:
        """From now on, in the name of that attempt."""
        self._attempt, self._keep = attempt, max(1, keep)

    def trust(self, manifest: Manifest) -> None:
        """`manifest`'s checkpoint has just been read in full, or written, and is good."""
        self._known[manifest.step] = manifest

    def apply(self, published: int, nonce: str) -> list[int]:
        """Delete what is beyond the newest `keep` good ones, never `published` itself. Returns the deleted steps.

        Raises OSError. A crash at any moment leaves the kept ones whole: a deleted one first loses its name.
        """
        found = candidates(self._directory)
        if len(found) <= self._keep:
            return []  # and none of them need be read
        good = [candidate for candidate in found if self._is_good(candidate)]
        doomed = [candidate for candidate in good[self._keep :] if candidate.step != published]
        for candidate in doomed:
            trash = self._directory / trash_name(candidate.step, self._attempt, nonce)
            candidate.path.rename(trash)
            files.sync_directory(self._directory)
            files.delete_tree(trash)
            self._known.pop(candidate.step, None)
        return [candidate.step for candidate in doomed]

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

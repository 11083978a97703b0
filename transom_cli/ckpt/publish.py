"""Publish a written checkpoint, and delete old ones. No torch.

Order on disk: data files, fsync, manifest, fsync, rename, fsync of the parent. A crash at any point leaves the earlier
checkpoints untouched, and a working directory that no reader looks at. A writer whose attempt was replaced cannot harm
its successor: it writes under its own name, a good published step is never replaced, and once a newer launch has
started, the old one publishes nothing more (`ckpt.fence`).

Retention keeps the newest good checkpoints, those that a person has marked (`transom ckpt keep`), and optionally the
best by a metric and one forever every so many steps. A checkpoint that does not verify is neither counted nor deleted:
it may be the only one of its step, and a person may want to look at it. A
`Retention` reads each checkpoint in full at most once; later calls only `stat` its files. Those that stay forever are
not read at all, except the newest: there may be a thousand of them.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.failures import BadManifest, TakenOver, one_line
from transom_cli.ckpt.inventory import Candidate, candidates, check_shape, read_manifest, verify
from transom_cli.ckpt.manifest import Manifest, encode
from transom_cli.ckpt.names import MANIFEST, step_name, trash_name
from transom_cli.ckpt.tiers import marks
from transom_cli.errors import UsageError


@dataclass(frozen=True)
class Keep:
    """Keep the newest `newest` good checkpoints (at least 1), those at multiples of `every` steps, and the `best` good
    ones by the metric `monitor`, whose best value is the least ("min") or the greatest ("max")."""

    newest: int = 2
    every: int | None = None
    best: int = 0
    monitor: str = "loss"
    mode: str = "min"

    def doomed(
        self, steps: Iterable[int], good: Callable[[int], bool],
        metric: Callable[[int], float | None] = lambda _: None,
    ) -> list[int]:  # fmt: skip
        """The steps to delete, newest first. `good` is called only where it decides.

        Args:
            metric: of a step's checkpoint; None if it has none.
        """
        found, gone = 0, []
        steps = sorted(steps, reverse=True)
        best = self._best(steps, good, metric)
        for step in steps:
            stays = step in best or (self.every is not None and step % self.every == 0)
            if found < self.newest:
                found += good(step)
            elif not stays and good(step):
                gone.append(step)
        return gone

    def _best(self, steps: list[int], good: Callable[[int], bool], metric: Callable[[int], float | None]) -> set[int]:
        """The best good steps; of equal ones the newest."""
        if not self.best:
            return set()
        sign = -1.0 if self.mode == "max" else 1.0
        ranked = sorted((sign * value, -step) for step in steps if (value := metric(step)) is not None)
        found: set[int] = set()
        for _, negative in ranked:
            if len(found) == self.best:
                break
            if good(-negative):
                found.add(-negative)
        return found


def check_keep(
    keep: object, keep_every: object, keep_best: object = None, monitor: object = "loss", mode: object = "min"
) -> Keep:
    """Raise UsageError for values out of range."""
    if not _count(keep):
        raise UsageError(
            f"keep={keep!r} must be at least 1",
            "it is how many of the newest good checkpoints stay: without one there would be nothing to resume from",
            "keep=2, the default, leaves one to fall back on",
        )
    if keep_every is not None and not _count(keep_every):
        raise UsageError(
            f"keep_every={keep_every!r} must be a number of steps, at least 1, or None",
            "every good checkpoint at a multiple of it is kept forever",
            "keep_every=10000 keeps those of steps 10000, 20000, ...; those steps must be saved",
        )
    if keep_best is not None and not _count(keep_best):
        raise UsageError(
            f"keep_best={keep_best!r} must be a number of checkpoints, at least 1, or None",
            "the best ones by a metric stay",
            'keep_best=3, monitor="val_loss", mode="min", and save(step, metrics={"val_loss": value})',
        )
    if mode not in ("min", "max"):
        raise UsageError(f'mode={mode!r} must be "min" or "max"', "it says which value of the metric is the best")
    if not isinstance(monitor, str) or not monitor:
        raise UsageError(f"monitor={monitor!r} must be the name of a metric", "", 'monitor="val_loss"')
    assert isinstance(keep, int)
    return Keep(
        keep,
        keep_every if isinstance(keep_every, int) else None,
        keep_best if isinstance(keep_best, int) else 0,
        monitor,
        str(mode),
    )


def _before_bad_loss(there: Mapping[int, Candidate], published: int) -> list[int]:
    """Return the newest two checkpoints with a finite loss, if that of `published` is not finite.

    The loss of a step shows the state before the step's update, so only the older one is known to be good.
    """
    if published not in there or marks.BAD_LOSS not in marks.read_metrics(there[published].path):
        return []
    good = (step for step in sorted(there, reverse=True) if "loss" in marks.read_metrics(there[step].path))
    return list(islice(good, 2))


class Retention:
    def __init__(self, directory: Path, keep: Keep, attempt: str) -> None:
        self._directory = directory
        self._keep = keep
        self._attempt = attempt
        self._known: dict[int, Manifest] = {}  # read in full and found good

    def work_for(self, attempt: str, keep: Keep) -> None:
        """Delete under the name of that attempt from now on."""
        self._attempt, self._keep = attempt, keep

    def trust(self, manifest: Manifest) -> None:
        """The manifest's checkpoint was just read in full, or written, and is good."""
        self._known[manifest.step] = manifest

    def apply(self, published: int, nonce: str, used: Collection[int] = ()) -> list[int]:
        """Delete checkpoints that need not be kept, never `published` itself. Returns their steps. Raises OSError.

        A crash at any moment leaves the kept ones intact: a deleted one first loses its name.

        Args:
            used: steps that are being read, and stay for now.
        """
        there = {candidate.step: candidate for candidate in candidates(self._directory)}
        if len(there) <= self._keep.newest:
            return []  # and none of them has to be read
        doomed = self._keep.doomed(
            there,
            lambda step: self._is_good(there[step]),
            lambda step: marks.read_metrics(there[step].path).get(self._keep.monitor),
        )
        stays = {published, *used, *_before_bad_loss(there, published)}
        doomed = [s for s in doomed if s not in stays and not marks.is_kept(there[s].path)]
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


def publish(directory: Path, work: Path, manifest: Manifest, attempt: str, retention: Retention) -> None:
    """Publish `work`, which holds the manifest's files, all durable. Raises OSError and TakenOver."""
    files.write_new(work / MANIFEST, encode(manifest))
    final = directory / step_name(manifest.step)
    taken = final.exists()
    if taken and verify(Candidate(manifest.step, final)).good:
        files.delete_tree(work)  # an earlier attempt published this very step
        return
    fence.check(directory, attempt)
    if taken:
        files.set_aside(final)
    files.publish(work, final)
    retention.trust(manifest)


def tidy(
    directory: Path, published: int, attempt: str, retention: Retention, say: Callable[[str], None],
    used: Collection[int] = (),
) -> None:  # fmt: skip
    """Delete old checkpoints. The file system takes tenths of a second for a GiB."""
    try:
        fence.check(directory, attempt)
        retention.apply(published, secrets.token_hex(4), used)
    except (OSError, TakenOver) as error:  # the new checkpoint is published anyway
        say(f"old checkpoints could not be removed: {one_line(error)}")

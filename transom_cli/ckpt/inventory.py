"""Which checkpoints exist, and whether their bytes are good. No torch."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadManifest, StateMismatch
from transom_cli.ckpt.manifest import ORIGIN_SCHEMA, FileEntry, Manifest, Origin, decode
from transom_cli.ckpt.names import IMPORTED, MANIFEST, parse_step
from transom_cli.ckpt.progress import OnBytes, ignore_bytes

_MANIFEST_LIMIT = 256 << 20  # bytes: a million files; more is damage, and is not read into memory


@dataclass(frozen=True)
class Candidate:
    """A directory with the name of a published checkpoint. Its manifest decides whether it is one."""

    step: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class Verdict:
    candidate: Candidate
    manifest: Manifest | None  # None when there is no good one
    reasons: tuple[str, ...] = ()  # what is wrong, one clause each; empty if good
    origin: Origin | None = None  # set if it was imported and a restore has verified it

    @property
    def good(self) -> bool:
        return not self.reasons

    @property
    def reason(self) -> str:
        more = len(self.reasons) - 1
        return (self.reasons[0] if self.reasons else "") + (f" (and {more} more)" if more > 0 else "")


def candidates(directory: Path) -> list[Candidate]:
    """Return the candidates, newest first; none if the directory does not exist."""
    try:
        children = list(directory.iterdir())
    except FileNotFoundError:
        return []
    found = [(parse_step(child.name), child) for child in children]
    steps = [Candidate(step, child) for step, child in found if step is not None and child.is_dir()]
    return sorted(steps, key=lambda candidate: candidate.step, reverse=True)


def read_manifest(candidate: Candidate) -> Manifest:
    """Read the candidate's manifest. Raises BadManifest if it is missing, damaged, or of another step."""
    path = candidate.path / MANIFEST
    try:
        if path.stat().st_size > _MANIFEST_LIMIT:
            raise BadManifest(f"{MANIFEST} is damaged", "it is too large to be one")
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadManifest(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise BadManifest(f"{MANIFEST} cannot be read", error.strerror or str(error)) from None
    manifest = decode(data)
    if manifest.step != candidate.step:
        raise BadManifest(f"{MANIFEST} is of another checkpoint", f"it says step {manifest.step}")
    return manifest


def check_shape(path: Path, entries: Iterable[FileEntry]) -> list[str]:
    """Return files that are missing or of another size. Cheap: uses `stat` only."""
    return [reason for entry in entries if (reason := _shape(path, entry))]


def check_bytes(path: Path, entries: Iterable[FileEntry], on_bytes: OnBytes = ignore_bytes) -> list[str]:
    """Read every byte and return what is wrong. Costs the reading (the checksum runs at about 17 GB/s)."""
    reasons = []
    for entry in entries:
        reason = _shape(path, entry)
        if not reason:
            try:
                if (
                    replace(files.measure(path / entry.name, on_bytes), name=entry.name) != entry
                ):  # it may be in a folder below
                    reason = f"{entry.name} is damaged (its checksum differs)"
            except OSError as error:
                reason = f"{entry.name} cannot be read ({error.strerror or error})"
        if reason:
            reasons.append(reason)
    return reasons


def survey(candidate: Candidate) -> Verdict:
    """Check the manifest and the files' sizes only; no data is read."""
    return _judge(candidate, check_shape)


def verify(candidate: Candidate, on_bytes: OnBytes = ignore_bytes) -> Verdict:
    """Verify a candidate in full, in this process."""
    return _judge(candidate, lambda path, entries: check_bytes(path, entries, on_bytes))


def _judge(candidate: Candidate, check: Callable[[Path, Iterable[FileEntry]], list[str]]) -> Verdict:
    try:
        manifest = read_manifest(candidate)
    except BadManifest as error:
        return Verdict(candidate, None, (manifest_reason(error),))
    return Verdict(candidate, manifest, tuple(check(candidate.path, manifest.files)))


def manifest_reason(error: BadManifest) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


def _shape(path: Path, entry: FileEntry) -> str:
    try:
        size = (path / entry.name).stat().st_size
    except FileNotFoundError:
        return f"{entry.name} is missing"
    except OSError as error:
        return f"{entry.name} cannot be read ({error.strerror or error})"
    return "" if size == entry.size else f"{entry.name} has {size} bytes, not {entry.size}"


def read_origin(checkpoint: Path, manifest: Manifest) -> Origin | None:
    """Read where an imported checkpoint is from; None if a training wrote it. Raises StateMismatch if unreadable."""
    if all(entry.name != IMPORTED for entry in manifest.files):
        return None
    try:
        data = json.loads((checkpoint / IMPORTED).read_text("ascii"))
        if data["schema"] != ORIGIN_SCHEMA:
            raise StateMismatch(f"{IMPORTED} has schema {data['schema']}, and this transom knows {ORIGIN_SCHEMA}")
        return Origin(str(data["source"]), data["per_rank"] is True, tuple(map(str, data["afresh"])))
    except OSError as error:
        raise StateMismatch(f"{IMPORTED} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError):
        raise StateMismatch(f"{IMPORTED} is incomplete") from None

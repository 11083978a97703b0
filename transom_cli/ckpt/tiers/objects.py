"""Checkpoints in object storage, through fsspec. No torch.

    <url>/.copies-of                      the main directory whose copies are here
    <url>/step-<n>.json                   the commit marker: this checkpoint is complete
    <url>/data/step-<n>-<hash>/<file>     its files, and its manifest

A checkpoint exists when its marker does. The marker is written last and deleted first, and it names the folder of its
data, which has the manifest's hash in its name. So the files of two checkpoints of one step are never mixed, and an
upload that was interrupted finds what it has already stored. A marker is sealed: half of one counts as none.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import xxhash

from transom_cli.ckpt.failures import BadManifest, describe
from transom_cli.ckpt.manifest import FileEntry, Manifest, decode
from transom_cli.ckpt.names import COPIES_OF, MANIFEST
from transom_cli.ckpt.progress import OnBytes, ignore_bytes
from transom_cli.ckpt.tiers.marks import read_metrics
from transom_cli.errors import TransomError, UsageError
from transom_cli.rpc.throttle import Throttle

SCHEMA = 1
PIECE = 4 << 20  # bytes read and written at a time
_MARKER = re.compile(r"step-(0|[1-9][0-9]*)\.json")
_DATA = re.compile(r"step-(?:0|[1-9][0-9]*)-[0-9a-f]{32}")


class StorageError(TransomError):
    """Object storage cannot be used, or what it holds is damaged."""

    kind = "storage_error"
    advice = "check the address, the credentials and the network; checkpoints on disk are not affected"


@dataclass(frozen=True)
class Marker:
    """hash: xxh3_128 of the manifest. size: bytes of all files. metrics: of the step, by name."""

    step: int
    hash: str
    world_size: int
    attempt: str
    created: str
    size: int
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        return f"data/step-{self.step}-{self.hash}"


def is_url(place: object) -> bool:
    """Whether a place of copies is object storage, and not a directory."""
    return isinstance(place, str) and "://" in place


def marker_of(manifest: Manifest, data: bytes, metrics: dict[str, float]) -> Marker:
    """data: the manifest's bytes."""
    about = manifest.world_size, manifest.attempt, manifest.created, manifest.size
    return Marker(manifest.step, xxhash.xxh3_128_hexdigest(data), *about, metrics)


class ObjectStore:
    """One prefix of an object store. Every method raises StorageError and nothing else."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with _reported(self.url):
            try:
                import fsspec
            except ModuleNotFoundError as error:
                raise StorageError(
                    f"Copies in {self.url} need fsspec, which is not installed here",
                    str(error),
                    "in the clone of transom: pip install '.[object]'",
                ) from None
            # a listing that is remembered would show what another process has deleted
            self._fs, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)

    def claim(self, main: Path) -> None:
        """Claim the prefix for the copies of `main`. Raises UsageError if it belongs to another training."""
        with _reported(self.url):
            owner = self._read(COPIES_OF).decode("utf-8", "surrogateescape").strip()
            if owner == str(main):
                return
            if owner or self.steps():
                whose = f"it has the copies of {owner}" if owner else f"checkpoints are there, and no {COPIES_OF}"
                raise UsageError(
                    f"{self.url} is not for copies of {main}",
                    f"{whose}; two trainings in one place would delete and restore each other's",
                    f"give each training a place of its own; if these are this one's, write {main} to "
                    f"{self.url}/{COPIES_OF}",
                )
            self._write(COPIES_OF, f"{main}\n".encode("utf-8", "surrogateescape"))

    def steps(self) -> list[int]:
        """The steps that have a marker, newest first. Whether it is whole is known when it is read."""
        found = (_MARKER.fullmatch(name) for name in self._names(""))
        return sorted((int(one[1]) for one in found if one), reverse=True)

    def marker(self, step: int) -> Marker | None:
        """The marker of a step; None if there is none, or only half of one."""
        try:
            body = json.loads(self._read(f"step-{step}.json"))
            if body.pop("schema") != SCHEMA or body.pop("seal") != _seal(body):
                return None
            marker = Marker(**{one.name: body[one.name] for one in fields(Marker)})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return marker if marker.step == step and re.fullmatch("[0-9a-f]{32}", marker.hash) else None

    def upload(
        self, checkpoint: Path, on_bytes: OnBytes = ignore_bytes, before_commit: Callable[[], None] = lambda: None,
        rate: float | None = None,
    ) -> Marker:  # fmt: skip
        """Copy a published checkpoint here. What an interrupted upload of it has stored is not sent again.

        Args:
            before_commit: called before the marker is written; it may raise.
            rate: bytes per second.

        Raises:
            StorageError: also if a file is not the one that was saved.
        """
        with _reported(self.url):
            data = (checkpoint / MANIFEST).read_bytes()
            manifest = decode(data)
            marker = marker_of(manifest, data, read_metrics(checkpoint))
            stored = self._sizes(marker.folder)
            throttle = Throttle(rate) if rate is not None else None
            for entry in sorted(manifest.files, key=lambda one: one.name):
                if stored.get(entry.name) != entry.size or not entry.size:
                    self._send(checkpoint / entry.name, f"{marker.folder}/{entry.name}", entry, on_bytes, throttle)
            self._write(f"{marker.folder}/{MANIFEST}", data)
            stored = self._sizes(marker.folder)
            for entry in manifest.files:
                if stored.get(entry.name) != entry.size:
                    what = f"{entry.name} has {stored.get(entry.name)} bytes in {self.url}, not {entry.size}"
                    raise StorageError(what, "the upload is not complete")
            before_commit()
            former = self.marker(marker.step)
            body = asdict(marker)
            sealed = {"schema": SCHEMA, **body, "seal": _seal(body)}
            self._write(f"step-{marker.step}.json", (json.dumps(sealed, sort_keys=True) + "\n").encode("ascii"))
            if former is not None and former.folder != marker.folder:
                self._remove(former.folder)
            return marker

    def fetch(self, marker: Marker, name: str, into: Path, on_bytes: OnBytes = ignore_bytes) -> FileEntry:
        """Copy a file of a checkpoint to a new local file, durably. Returns what arrived."""
        with _reported(self.url):
            hasher, size = xxhash.xxh3_128(), 0
            fd = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as local, self._fs.open(self._path(f"{marker.folder}/{name}"), "rb") as remote:
                while piece := remote.read(PIECE):
                    local.write(piece)
                    hasher.update(piece)
                    size += len(piece)
                    on_bytes(len(piece))
                local.flush()
                os.fsync(local.fileno())
            return FileEntry(name, size, hasher.hexdigest())

    def manifest(self, marker: Marker) -> bytes:
        """The manifest of a checkpoint, which is the one that the marker names."""
        data = self._read(f"{marker.folder}/{MANIFEST}")
        if xxhash.xxh3_128_hexdigest(data) != marker.hash:
            raise StorageError(f"{MANIFEST} of step {marker.step} in {self.url} is damaged or missing")
        return data

    def remove(self, step: int) -> None:
        """Delete a checkpoint, its marker first. A deletion that is interrupted leaves data, for `sweep`."""
        marker = self.marker(step)
        self._remove(f"step-{step}.json")
        if marker is not None:
            self._remove(marker.folder)

    def sweep(self, spared: Collection[str] = ()) -> list[str]:
        """Delete data without a marker: of uploads and deletions that were interrupted. spared: folders that stay."""
        used = {marker.folder for step in self.steps() if (marker := self.marker(step)) is not None}
        gone = [f"data/{name}" for name in self._names("data") if _DATA.fullmatch(name)]
        gone = [folder for folder in gone if folder not in used and folder not in spared]
        for folder in gone:
            self._remove(folder)
        return gone

    def _send(self, file: Path, name: str, entry: FileEntry, on_bytes: OnBytes, throttle: Throttle | None) -> None:
        hasher = xxhash.xxh3_128()
        with file.open("rb") as local, self._new(name) as remote:
            while piece := local.read(PIECE):
                hasher.update(piece)
                if throttle is not None:
                    time.sleep(throttle.take(len(piece)))
                remote.write(piece)
                on_bytes(len(piece))
        if hasher.hexdigest() != entry.xxh3_128:
            self._remove(name)
            raise StorageError(f"{file} is damaged (its checksum differs)", "it was not uploaded")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _names(self, folder: str) -> list[str]:
        with _reported(self.url):
            try:
                found = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return [str(one).rstrip("/").rpartition("/")[2] for one in found]

    def _sizes(self, folder: str) -> dict[str, int]:
        try:
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {str(one["name"]).rpartition("/")[2]: int(one["size"] or 0) for one in found}

    def _read(self, name: str) -> bytes:
        """The bytes of a small object; b"" if there is none."""
        with _reported(self.url):
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return b""

    def _write(self, name: str, data: bytes) -> None:
        with self._new(name) as remote:
            remote.write(data)

    def _new(self, name: str) -> Any:
        """Open a new object. Only file systems with folders need one made; a bucket is never made."""
        path = self._path(name)
        try:
            return self._fs.open(path, "wb")
        except FileNotFoundError:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._fs.open(path, "wb")

    def _remove(self, name: str) -> None:
        with _reported(self.url):
            try:
                self._fs.rm(self._path(name), recursive=True)
            except FileNotFoundError:
                return


@contextlib.contextmanager
def _reported(url: str) -> Iterator[None]:
    """Turn what a file system raises into StorageError. fsspec's backends raise errors of many libraries."""
    try:
        yield
    except BadManifest as error:
        raise StorageError(error.what, error.why) from error
    except TransomError:
        raise
    except Exception as error:
        raise StorageError(f"{url} cannot be used: {describe(error)}") from error


def _seal(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return str(xxhash.xxh3_128_hexdigest(text.encode("ascii")))


def markers(store: ObjectStore) -> Iterator[Marker]:
    """The complete checkpoints, newest first."""
    for step in store.steps():
        marker = store.marker(step)
        if marker is not None:
            yield marker

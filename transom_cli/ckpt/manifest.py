"""The manifest: the exact content of a checkpoint. And the origin of an imported one. Pure.

The manifest is written last, so a directory without a good manifest is not a checkpoint. Readers trust only the
manifest: a file that it does not name does not exist, and a file that differs from it makes the checkpoint bad. It
carries a checksum of itself, and its encoding is unique (`decode` accepts only the bytes that `encode` makes), so every
flipped bit is found.

An imported checkpoint, which no training wrote, has `imported.json`. The manifest names that file too.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from json.encoder import encode_basestring_ascii
from typing import Any

import xxhash

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST

SCHEMA = 2
BARE = 1  # the schema of a manifest without a proof, which older versions read
ORIGIN_SCHEMA = 1
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KEYS = ("attempt", "created", "files", "schema", "seal", "step", "torch", "world_size")


@dataclass(frozen=True)
class FileEntry:
    name: str  # a plain name inside the checkpoint's directory
    size: int  # bytes
    xxh3_128: str  # 32 lower-case hex digits

    @classmethod
    def of(cls, name: str, data: bytes) -> FileEntry:
        return cls(name, len(data), xxhash.xxh3_128_hexdigest(data))


@dataclass(frozen=True)
class Manifest:
    step: int  # finished training steps
    world_size: int  # ranks that wrote it
    attempt: str  # who wrote it
    torch: str  # torch's version
    created: str  # UTC, ISO 8601; for people, nothing is decided by it
    files: tuple[FileEntry, ...]  # sorted by name
    proof: str = ""  # digests of the state (`ckpt.proof`); "" if it has none

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(entry.size for entry in self.files)


def shares(manifest: Manifest) -> tuple[FileEntry, ...]:
    """The ranks' data files."""
    return tuple(entry for entry in manifest.files if entry.name != DCP_METADATA)


def of_one_save(a: bytes, b: bytes) -> bool:
    """Whether two manifests are of the same save, if perhaps in other files. Raises BadManifest."""
    if a == b:
        return True
    one, two = (replace(decode(data), files=()) for data in (a, b))
    return one == two


def encode(manifest: Manifest) -> bytes:
    body: dict[str, Any] = {"schema": SCHEMA if manifest.proof else BARE, **vars(manifest)}
    if not manifest.proof:
        del body["proof"]
    body["files"] = [dict(vars(entry)) for entry in sorted(manifest.files, key=lambda entry: entry.name)]
    body["seal"] = _seal(body)
    return (_indented(body) + "\n").encode("ascii")


def _indented(body: dict[str, Any]) -> str:
    """As `json.dumps(body, indent=1, sort_keys=True)`, which takes a second for a hundred thousand files."""
    files = body["files"]
    text = json.dumps({**body, "files": []}, indent=1, sort_keys=True)
    if not files:
        return text
    form = '  {{\n   "name": {},\n   "size": {},\n   "xxh3_128": "{}"\n  }}'
    entries = [form.format(encode_basestring_ascii(one["name"]), one["size"], one["xxh3_128"]) for one in files]
    return text.replace('"files": []', '"files": [\n' + ",\n".join(entries) + "\n ]", 1)


def decode(data: bytes) -> Manifest:
    """The manifest in `data`. Raises BadManifest, and nothing else, for bytes that `encode` did not make."""
    try:
        body = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{MANIFEST} is damaged", str(error)) from None
    if not isinstance(body, dict):
        raise BadManifest(f"{MANIFEST} is damaged", "it is not a JSON object")
    schema = body.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise BadManifest(
            f"{MANIFEST} has schema {schema}, and this transom knows {SCHEMA}",
            hint="use the transom that wrote it, or a newer one",
        )
    keys = {BARE: _KEYS, SCHEMA: tuple(sorted((*_KEYS, "proof")))}
    if type(schema) is not int or tuple(sorted(body)) != keys.get(schema):
        raise BadManifest(f"{MANIFEST} is damaged", "its keys are not those of a manifest")
    manifest = Manifest(
        step=_count(body, "step"),
        world_size=_count(body, "world_size", least=1),
        attempt=_text(body, "attempt"),
        torch=_text(body, "torch"),
        created=_text(body, "created"),
        files=_files(body["files"]),
        proof=_text(body, "proof") if schema == SCHEMA else "",
    )
    if encode(manifest) != data:
        raise BadManifest(f"{MANIFEST} is damaged", "its seal does not match its content")
    return manifest


def _seal(body: dict[str, Any]) -> str:
    bare = {key: value for key, value in body.items() if key != "seal"}
    return str(xxhash.xxh3_128_hexdigest(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode("ascii")))


def _count(body: dict[str, Any], key: str, least: int = 0) -> int:
    value = body.get(key)
    if type(value) is not int or value < least:
        raise BadManifest(f"{MANIFEST} is damaged", f"`{key}` is not a number of at least {least}")
    return value


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise BadManifest(f"{MANIFEST} is damaged", f"`{key}` is not a text")
    return value


def _files(value: object) -> tuple[FileEntry, ...]:
    if not isinstance(value, list):
        raise BadManifest(f"{MANIFEST} is damaged", "`files` is not a list")
    entries = []
    for item in value:
        if not isinstance(item, dict) or sorted(item) != ["name", "size", "xxh3_128"]:
            raise BadManifest(f"{MANIFEST} is damaged", "an entry of `files` is not a name, a size and a checksum")
        name, digest = _text(item, "name"), _text(item, "xxh3_128")
        if not name or "/" in name or "\0" in name or name in (".", "..", MANIFEST):
            raise BadManifest(f"{MANIFEST} is damaged", "an entry of `files` is not a plain file name")
        if not _DIGEST.fullmatch(digest):
            raise BadManifest(f"{MANIFEST} is damaged", "an entry of `files` has no checksum")
        entries.append(FileEntry(name, _count(item, "size"), digest))
    names = [entry.name for entry in entries]
    if len(set(names)) != len(names) or DCP_METADATA not in names:
        raise BadManifest(f"{MANIFEST} is damaged", "`files` repeats a name or lacks torch's own metadata")
    return tuple(entries)


@dataclass(frozen=True)
class Origin:
    source: str  # the imported file's name, for people
    per_rank: bool  # whether it has per-rank entries (random numbers, data positions); otherwise they start afresh
    afresh: tuple[str, ...]  # entries of the trainer that it omits on purpose; they keep their initial state

    @property
    def text(self) -> str:
        """Where it is from, and which entries of the trainer's state start afresh."""
        rest = [*self.afresh, *([] if self.per_rank else ["random numbers and per-rank objects"])]
        return f"imported from {self.source}" + (f"; afresh start: {', '.join(rest)}" if rest else "")


def encode_origin(origin: Origin) -> bytes:
    return (json.dumps({"schema": ORIGIN_SCHEMA, **asdict(origin)}, indent=1, sort_keys=True) + "\n").encode("ascii")

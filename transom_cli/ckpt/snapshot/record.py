"""What identifies a snapshot: the launch that made it, and the record that commits it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import xxhash

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import Manifest, decode
from transom_cli.ckpt.names import DCP_METADATA, age


@dataclass(frozen=True)
class Launch:
    """One start of all ranks. ``attempt``: as in the names of checkpoints. ``token``: unique to this start.

    Slurm's numbers order the launches. If a launch has none, the latest to arrive counts: a clock could be set back.
    """

    attempt: str
    token: str

    def older_than(self, other: Launch) -> bool:
        """Compare by the numbers of both."""
        mine, theirs = age(self.attempt), age(other.attempt)
        return mine is not None and theirs is not None and mine < theirs

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Record:
    """The commit of a step: the same bytes on every node that takes part."""

    manifest: bytes
    metadata: bytes  # torch's own file, which the manifest lists with the others

    @cached_property
    def read(self) -> Manifest:
        """Return the decoded manifest. Raises BadManifest, also if torch's own file does not match it."""
        manifest = decode(self.manifest)
        named = next(entry for entry in manifest.files if entry.name == DCP_METADATA)
        if (named.size, named.xxh3_128) != (len(self.metadata), xxhash.xxh3_128_hexdigest(self.metadata)):
            raise BadManifest(f"the record's {DCP_METADATA} is damaged")
        return manifest

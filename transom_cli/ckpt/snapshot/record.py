"""What makes a step one that counts: the same few bytes on every node that takes part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import xxhash

from transom_cli.ckpt.failures import BadManifest
from transom_cli.ckpt.manifest import Manifest, decode
from transom_cli.ckpt.names import DCP_METADATA


@dataclass(frozen=True)
class Record:
    """A commit: every node that takes part has the same bytes."""

    manifest: bytes
    metadata: bytes  # torch's own file, which the manifest names with the rest

    @cached_property
    def read(self) -> Manifest:
        """Raises BadManifest, also where torch's own file is not the one that the manifest names."""
        manifest = decode(self.manifest)
        named = next(entry for entry in manifest.files if entry.name == DCP_METADATA)
        if (named.size, named.xxh3_128) != (len(self.metadata), xxhash.xxh3_128_hexdigest(self.metadata)):
            raise BadManifest(f"the record's {DCP_METADATA} is damaged")
        return manifest

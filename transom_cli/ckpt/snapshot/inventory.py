"""The steps that a training could resume from, given what the daemons of a job hold. Pure.

A step is available if some daemon has its record, and every share that the record names is held with the recorded
checksum or can be rebuilt from parity (`protected`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transom_cli.ckpt.manifest import FileEntry, Manifest
from transom_cli.ckpt.names import DCP_METADATA, age


@dataclass(frozen=True)
class Known:
    """One step that some nodes have a record of. `at`: by file the nodes that hold it, by their own word."""

    manifest: Manifest
    nodes: tuple[str, ...]  # with the record
    at: Mapping[str, tuple[str, ...]]

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def missing(self) -> tuple[str, ...]:
        """Shares that no node holds."""
        return tuple(entry.name for entry in shares(self.manifest) if not self.at.get(entry.name))


def shares(manifest: Manifest) -> tuple[FileEntry, ...]:
    """The ranks' data files."""
    return tuple(entry for entry in manifest.files if entry.name != DCP_METADATA)


def known(manifests: Iterable[tuple[str, Manifest]], held: Mapping[str, Any]) -> list[Known]:
    """Newest first; of one step the one that was made last. `manifests`: pairs with the node that has the record.

    `held`: by node its list of [step, file, sum].
    """
    by_record: dict[Manifest, list[str]] = {}
    for node, manifest in manifests:
        by_record.setdefault(manifest, []).append(node)
    places: dict[tuple[int, str, str], list[str]] = {}
    for node, rows in held.items():
        for step, file, total in rows:
            places.setdefault((step, file, total), []).append(node)
    found = [
        Known(
            manifest,
            tuple(sorted(nodes)),
            {e.name: tuple(places.get((manifest.step, e.name, e.xxh3_128), ())) for e in shares(manifest)},
        )
        for manifest, nodes in by_record.items()
    ]
    return sorted(found, key=_order, reverse=True)


def _order(known: Known) -> tuple[int, tuple[int, int, int], str]:
    return known.step, age(known.manifest.attempt) or (0, 0, 0), known.manifest.created

"""Directories that torch.distributed.checkpoint (DCP) wrote itself, without a manifest.

Nothing says which bytes they should have, except for the CRC-32 that each tensor's archive may carry: torch.save writes
it, unless `torch.serialization.set_crc32_options(False)` was called. The archives that carry one are verified.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.manifest import Origin
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST, parse_step
from transom_cli.ckpt.progress import OnBytes, ignore_bytes
from transom_cli.errors import UsageError, printable


def is_plain_dcp(path: Path) -> bool:
    return (path / DCP_METADATA).is_file() and not (path / MANIFEST).exists()


def step_of(path: Path, step: int | None) -> int:
    """Raises UsageError if nothing says how many steps are finished."""
    found = parse_step(path.name) if step is None else step
    if found is None:
        raise UsageError(
            f"Nothing says how many steps the training of {path} had finished",
            "a directory of torch.distributed.checkpoint does not record it, and the name is not step-<n>",
            "restore(path, step=n)",
        )
    return found


@dataclass(frozen=True)
class Checked:
    """What the checksums of archives said. with_sum, archives: numbers of archives."""

    with_sum: int = 0
    archives: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        if self.with_sum == self.archives:
            return "verified by the CRC-32 of its archives"
        if not self.with_sum:
            return "not verified: it carries no checksums"
        return f"{self.archives - self.with_sum} of {self.archives} archives carry no checksum, and are not verified"


def together(parts: Iterable[Checked]) -> Checked:
    found = list(parts)
    reasons = tuple(reason for one in found for reason in one.reasons)
    return Checked(sum(one.with_sum for one in found), sum(one.archives for one in found), reasons)


def check(path: Path, metadata: Metadata, share: int = 0, of: int = 1, on_bytes: OnBytes = ignore_bytes) -> Checked:
    """Verify the archives of this share of the files, as far as they carry checksums."""
    by_file: dict[str, list[tuple[int, int, str]]] = {}
    stored: Any = metadata.storage_data
    for index, info in stored.items():
        by_file.setdefault(info.relative_path, []).append((info.offset, info.length, index.fqn))
    found = []
    for name in sorted(by_file)[share::of]:
        try:
            with (path / name).open("rb") as file:
                for start, length, key in sorted(by_file[name]):
                    file.seek(start)
                    found.append(_check_archive(name, key, file.read(length), length))
                    on_bytes(length)
        except OSError as error:
            found.append(Checked(0, 1, (f"{name} cannot be read ({describe(error)})",)))
    return together(found)


def _check_archive(name: str, key: str, data: bytes, length: int) -> Checked:
    if len(data) < length:
        return Checked(0, 1, (f"{name} is too short: it lacks bytes of {key}",))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [one for one in archive.infolist() if one.file_size]
            summed = [one for one in members if one.CRC]
            for one in summed:
                archive.read(one)  # raises BadZipFile for another checksum
    except zipfile.BadZipFile:
        return Checked(0, 1, (f"{name} is damaged: {key} differs from its checksum",))
    return Checked(int(len(summed) == len(members)), 1)


def origin(path: Path, checked: Checked) -> Origin:
    return Origin(f"{printable(str(path))} ({checked.text})", per_rank=False, afresh=())

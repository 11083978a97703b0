"""What the ranks tell each other about their shares in a save, and the record that rank 0 makes of it.

Where each part lies in a file, and torch's metadata made of all these places, stay the same while no rank's state
changes shape. So they are sent and made once. After that a save exchanges a few bytes for each rank: the size and the
checksum of its share, and checksums of the places and the metadata that it knows. If those differ from what rank 0 has,
they are sent again, or the save fails and the next one sends everything.
"""

import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path

import xxhash
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import DCP_METADATA, data_name
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.layout import Place

_NEWS = struct.Struct("<??Q16sQQ")  # trouble, new places, size, checksum, checksums of the places and of the metadata
_OUT_OF_STEP = "the ranks' plans are out of step; the next save makes them again"


class Shares:
    """For the background thread of a save. All ranks call `exchange` and `spread` together."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._last: tuple[list[Place], int] = [], 0  # the places of the last save, and their checksum
        self._sent = 0  # the checksum of the places that rank 0 has got from this rank
        self._metadata, self._metadata_sum = b"", 0  # torch's metadata as all ranks have it
        self._entry: tuple[bytes, FileEntry] | None = None  # the metadata and its entry in the manifest
        self._everyone_has: set[int] = set()  # checksums of the metadata that ranks have, as of this save
        self._places: list[list[Place]] = [[] for _ in range(ranks.size)] if ranks.first else []
        self._sums = [0] * ranks.size

    def forget(self) -> None:
        """The shares are planned again: send all places again."""
        self._sent = 0
        self._sums = [0] * self._ranks.size
        self._metadata, self._metadata_sum = b"", 0

    def exchange(self, trouble: str, entry: FileEntry | None, places: list[Place]) -> tuple[str, list[FileEntry]]:
        """Tell what this rank holds. Return the first trouble, the same on all ranks, and all shares. A collective."""
        now = self._sum_of(places)
        size, checksum = (entry.size, bytes.fromhex(entry.xxh3_128)) if entry is not None else (0, bytes(16))
        fresh = entry is not None and now != self._sent
        mine = _NEWS.pack(bool(trouble), fresh, size, checksum, now, self._metadata_sum)
        news = list(_NEWS.iter_unpack(b"".join(self._ranks.gather_bytes(mine))))
        self._everyone_has = {one[5] for one in news}
        if any(one[0] or one[1] for one in news):
            trouble = self._details(trouble, places if fresh else None, [one[4] for one in news])
        elif self._ranks.first and self._sums != [one[4] for one in news]:
            trouble = _OUT_OF_STEP
        entries = [FileEntry(data_name(rank), one[2], one[3].hex()) for rank, one in enumerate(news)]
        return trouble, entries

    def _details(self, trouble: str, places: list[Place] | None, sums: list[int]) -> str:
        answers = self._ranks.to_first((trouble, places))
        if answers is None:
            return trouble
        for rank, (_, new) in enumerate(answers):
            if new is not None:
                self._places[rank], self._sums[rank] = new, sums[rank]
                self._metadata = b""
        found = next((answer[0] for answer in answers if answer[0]), "")
        return found or (_OUT_OF_STEP if self._sums != sums else "")

    def metadata(self, planned: Metadata) -> bytes:
        """Return the bytes of torch's own metadata file, as DCP writes it. Called by rank 0 after `exchange`."""
        if not self._metadata:
            self._metadata = written(planned, self._places)
            self._metadata_sum = xxhash.xxh3_64_intdigest(self._metadata)
        return self._metadata

    def metadata_entry(self, planned: Metadata) -> FileEntry:
        data = self.metadata(planned)
        if self._entry is None or self._entry[0] is not data:
            self._entry = data, FileEntry.of(DCP_METADATA, data)
        return self._entry[1]

    def spread(self, manifest: bytes | None) -> bytes | None:
        """Give rank 0's metadata to all ranks, unless they have it, and return it. manifest: None after a trouble.
        A collective."""
        send = self._ranks.first and manifest is not None and self._everyone_has != {self._metadata_sum}
        new: bytes | None = self._ranks.from_first(self._metadata if send else None)
        if manifest is None:
            self._sent = 0  # send everything again
            return None
        if new is not None:
            self._metadata, self._metadata_sum = new, xxhash.xxh3_64_intdigest(new)
        self._sent = self._last[1]
        return self._metadata

    def _sum_of(self, places: list[Place]) -> int:
        if places is not self._last[0]:
            words = "\n".join(f"{i.fqn} {i.offset} {start} {length}" for i, start, length in places)
            self._last = places, xxhash.xxh3_64_intdigest(words.encode("utf-8", "surrogateescape")) | 1
        return self._last[1]


def written(metadata: Metadata, places: list[list[Place]]) -> bytes:
    """Return the bytes of torch's own metadata file."""
    return written_in(
        metadata, [(i, data_name(rank), start, size) for rank, one in enumerate(places) for i, start, size in one]
    )


def written_in(metadata: Metadata, places: Iterable[tuple[MetadataIndex, str, int, int]]) -> bytes:
    """The same for parts in any files: part, file, where it begins, bytes."""
    results = [[WriteResult(index, size, _StorageInfo(name, start, size)) for index, name, start, size in places]]
    with tempfile.TemporaryDirectory(prefix="transom-") as folder:
        FileSystemWriter(folder, sync_files=False).finish(metadata, results)
        return (Path(folder) / DCP_METADATA).read_bytes()

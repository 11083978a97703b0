"""Load a checkpoint from its files, and verify them on the way.

A rank reads each file that it needs most of in full, once: the bytes go to its tensors while they are verified
(`restore.stream`). The ranks divide the other files, and verify them before anything is loaded; parts of these are then
mapped. Nothing is unpickled, or parsed in another way, before its file is verified.
"""

from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from transom_cli.ckpt.inventory import check_bytes
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import DCP_METADATA, IMPORTED, rank_of_data
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restore import stream
from transom_cli.ckpt.restore.read_plan import Piece, Wanted, parts, plan
from transom_cli.ckpt.restore.reader import MappedReader, OnDisk, RestoreProgress
from transom_cli.ckpt.restore.stream import InPlace, Kept, Segment, Staged
from transom_cli.ckpt.save.layout import Envelope, envelope
from transom_cli.ckpt.tree import Flat, is_plain


class DiskReader(MappedReader):
    def __init__(
        self, source: OnDisk, metadata: Metadata, progress: RestoreProgress, *, allow_code: bool = False
    ) -> None:
        super().__init__(source, metadata, progress, allow_code=allow_code)
        self._disk = source
        self._data = [entry for name, entry in source.files.items() if name not in (DCP_METADATA, IMPORTED)]
        self._shared: set[str] = set()  # files that several ranks load in full

    def plan(self, targets: Flat, ranks: Ranks) -> int:
        self._far = plan(self._metadata, targets)  # also of files that no manifest names, which `open` refuses
        bits = 0
        for index, entry in enumerate(self._data):
            some = self._far.get(entry.name, Wanted())
            whole = Wanted([tensor for tensor in some.tensors if tensor.box is None], some.objects)
            size = sum(length for *_, length in parts(entry.name, whole))
            if size and (ranks.size == 1 or 2 * size >= entry.size):
                self._near[entry.name] = whole
                self._far[entry.name] = Wanted([tensor for tensor in some.tensors if tensor.box is not None])
                bits |= 1 << index
        return bits

    def prepare(self, verified: list[int], ranks: Ranks) -> str:
        seen = several = 0
        for bits in verified:
            several |= seen & bits
            seen |= bits
        self._shared = {entry.name for index, entry in enumerate(self._data) if several >> index & 1}
        rest = [entry for index, entry in enumerate(self._data) if not seen >> index & 1]
        if not rest:
            return ""
        rest.sort(key=lambda entry: entry.size, reverse=True)
        mine = rest[ranks.rank :: ranks.size]
        self._progress.checking(sum(entry.size for entry in mine), sum(entry.size for entry in rest))
        reasons = [one for of_rank in ranks.gather(self._check(mine)) for one in of_rank]
        return (reasons[0] if reasons else "") + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")

    def _check(self, mine: list[FileEntry]) -> list[str]:
        return check_bytes(self._disk.path, mine, self._progress.add)

    def place(self, targets: Flat, ranks: Ranks) -> None:
        self._progress.loading(sum(self._disk.files[name].size for name in self._near))
        own = [name for name in self._near if rank_of_data(name) == ranks.rank]
        for name in dict.fromkeys([*own, *self._near]):  # so that ranks begin with different files
            self._load(name, self._near[name], targets)

    def finish(self, targets: Flat) -> None:
        for name, wanted in self._far.items():
            if not wanted.tensors and not wanted.objects:
                continue
            opened = self._disk.open(name)
            for tensor in wanted.tensors:
                self._fill(tensor, opened.data, tensor.start)
            for one in wanted.objects:
                targets[one.key] = self._object(one.key, opened.data[one.start : one.start + one.length])

    def _load(self, name: str, wanted: Wanted, targets: Flat) -> None:
        """Raises BadFile and OSError: then tensors have bytes that are not verified, and the load has failed."""
        segments: list[Segment] = []
        around: list[tuple[Piece, Envelope, Kept, Kept]] = []
        kept: list[tuple[Piece, Kept]] = []
        for tensor in wanted.tensors:
            target = tensor.target.detach()
            expected = envelope(target.shape, target.dtype)
            if tensor.length != expected.length:  # as another torch writes it
                kept.append((tensor, _keep(tensor.start, tensor.length, segments)))
                continue
            payload = tensor.start + len(expected.head)
            head = _keep(tensor.start, len(expected.head), segments)
            if expected.nbytes:
                sink: Any = InPlace(target.data_ptr()) if is_plain(target) else Staged(target, expected.nbytes)
                segments.append(Segment(payload, expected.nbytes, sink))
            around.append((tensor, expected, head, _keep(payload + expected.nbytes, len(expected.tail), segments)))
        objects = [(one, _keep(one.start, one.length, segments)) for one in wanted.objects]
        self._read_file(name, segments, self._progress.add)
        odd = [
            tensor for tensor, expected, head, tail in around
            if (head.data, tail.data) != (expected.head, expected.tail)
        ]  # fmt: skip
        if odd:
            segments = []
            kept += [(tensor, _keep(tensor.start, tensor.length, segments)) for tensor in odd]
            self._read_file(name, segments, lambda _: None)
        for tensor, found in kept:
            self._fill(tensor, found.data, 0)
        for one, found in objects:
            targets[one.key] = self._object(one.key, bytes(found.data))

    def _read_file(self, name: str, segments: list[Segment], on_bytes: Any) -> None:
        entry = self._disk.files[name]
        stream.read(self._disk.path / name, entry, segments, on_bytes, shared=name in self._shared)


def _keep(start: int, length: int, segments: list[Segment]) -> Kept:
    kept = Kept(length)
    segments.append(Segment(start, length, kept))
    return kept

"""Read checkpoints value by value: compare one with its digests, or two with each other.

Any directory that torch.distributed.checkpoint (DCP) has written can be read, also one without a manifest. Nothing in
it is run. One tensor of each checkpoint is in memory at a time.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transom_cli.ckpt.convert.exporter import Whole
from transom_cli.ckpt.digest import Part, digest, value_digest
from transom_cli.ckpt.failures import BadManifest, NeedsCode, StateMismatch
from transom_cli.ckpt.inventory import candidates, manifest_reason
from transom_cli.ckpt.manifest import decode as decode_manifest
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST
from transom_cli.ckpt.progress import OnBytes, ignore_bytes
from transom_cli.ckpt.proof import Proof, Undecodable, decode, digest_of
from transom_cli.errors import NoCheckpoint

_CHUNK = 1 << 22  # elements compared at a time


@dataclass(frozen=True)
class DeepVerdict:
    """wrong: values that are not what was saved. compared: values with a digest. total: values in the checkpoint."""

    wrong: tuple[str, ...]
    compared: int
    total: int

    @property
    def text(self) -> str:
        if self.wrong:
            more = f" and {len(self.wrong) - 1} more" if len(self.wrong) > 1 else ""
            return f"bad: {self.wrong[0]}{more}"
        if not self.compared:
            return "not proven: it carries no digests"
        return f"proven: {self.compared} of {self.total} values"


@dataclass(frozen=True)
class Change:
    """How a value of A differs from that of B. The figures are 0 where nothing can be subtracted."""

    name: str
    kind: str  # "only in A", "only in B", "dtype", "shape", "value" or "elements"
    detail: str
    count: int = 0  # elements that differ, of `total`
    total: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0  # of the larger of both


def verify_deep(checkpoint: Path, on_bytes: OnBytes = ignore_bytes) -> DeepVerdict:
    """Read every value of a checkpoint, and compare it with the digest that its manifest carries.

    It finds what checksums of files cannot: a file that was wrong when its checksum was made. A checkpoint without
    digests is read all the same, so that shards that are missing or cannot be read are found.

    Raises StateMismatch: torch cannot read it; NoCheckpoint: it is no checkpoint.
    """
    proof = _proof(checkpoint)
    whole = _opened(checkpoint)
    wrong: list[str] = []
    compared = 0
    for name in whole.paths:
        expected: Any = None
        try:
            if whole.is_tensor(name):
                tensor = whole.tensor(name)
                on_bytes(tensor.nbytes)
                one = proof.tensors.get(name)
                found: Any = (_dtype(tensor), tuple(tensor.shape), _digest(tensor)) if one is not None else None
                expected = (one.dtype, one.shape, one.digest) if one is not None else None
            else:
                expected = proof.values.get(name)
                found = digest_of(name, whole.value(name)[0]) if expected is not None else None
        except NeedsCode:
            continue
        except StateMismatch as error:
            wrong.append(error.what)
            continue
        if expected is not None:
            compared += 1
            if found != expected:
                wrong.append(f"`{name}` is not what was saved")
    names = set(whole.paths)
    wrong += [f"`{n}` is missing" for n in (*proof.tensors, *proof.values) if n not in names and _is_stored(n)]
    return DeepVerdict(tuple(wrong), compared, len(whole.paths))


def diff(a: Path, b: Path, on_bytes: OnBytes = ignore_bytes) -> Iterator[Change]:
    """Compare two checkpoints bit for bit, in any layouts. Yields what differs, by name.

    NaNs with the same bits are equal, and so are two infinities. 0.0 and -0.0 differ, by 0.

    Raises what `verify_deep` raises.
    """
    one, two = _opened(a), _opened(b)
    for name in sorted({*one.paths, *two.paths}):
        if name not in two.paths or name not in one.paths:
            kind = "only in A" if name in one.paths else "only in B"
            yield Change(name, kind, _about(one if name in one.paths else two, name))
        elif one.is_tensor(name) and two.is_tensor(name):
            change = _tensors(name, one, two, on_bytes)
            if change is not None:
                yield change
        elif one.is_tensor(name) or two.is_tensor(name):
            yield Change(name, "value", f"{_about(one, name)} in A, {_about(two, name)} in B")
        else:
            values = [_value(whole, name) for whole in (one, two)]
            digests = [value_digest(value) for value in values]
            if digests[0] != digests[1] or (None in digests and repr(values[0]) != repr(values[1])):
                yield Change(name, "value", f"{_short(values[0])} in A, {_short(values[1])} in B")


def find(path: Path) -> Path:
    """The checkpoint at `path`: itself, or the newest one in a directory of checkpoints. Raises NoCheckpoint."""
    if (path / DCP_METADATA).is_file():
        return path
    for directory in (path, path / "checkpoints"):
        for candidate in candidates(directory):
            if (candidate.path / DCP_METADATA).is_file():
                return candidate.path
    raise NoCheckpoint(f"{path} is not a checkpoint", f"neither it nor a step-<n> in it has torch's {DCP_METADATA}")


def _tensors(name: str, one: Whole, two: Whole, on_bytes: OnBytes) -> Change | None:
    a, b = one.placeholder(name), two.placeholder(name)
    if a.dtype != b.dtype or a.shape != b.shape:
        return Change(
            name, "shape" if a.shape != b.shape else "dtype", f"{_about(one, name)} in A, {_about(two, name)} in B"
        )
    a, b = one.tensor(name), two.tensor(name)
    on_bytes(a.nbytes + b.nbytes)
    width = a.element_size()
    bits = [t.contiguous().reshape(-1).view(torch.uint8).view(-1, width) for t in (a, b)]
    if not a.numel() or torch.equal(*bits):
        return None
    count, max_abs, max_rel = 0, 0.0, 0.0
    flat = [t.contiguous().reshape(-1) for t in (a, b)]
    for start in range(0, a.numel(), _CHUNK):
        differ = (bits[0][start : start + _CHUNK] != bits[1][start : start + _CHUNK]).any(1)
        count += int(differ.sum())
        x, y = (_numbers(t[start : start + _CHUNK])[differ] for t in flat)
        if x.numel():
            apart = (x - y).abs()
            relative = apart / torch.maximum(x.abs(), y.abs()).clamp_min(1e-300)
            max_abs, max_rel = (max(m, _largest(t)) for m, t in ((max_abs, apart), (max_rel, relative)))
    detail = f"{count} of {a.numel()} elements, max abs {max_abs:.3g}, max rel {max_rel:.3g}"
    return Change(name, "elements", detail, count, a.numel(), max_abs, max_rel)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest(tensor: torch.Tensor) -> float:
    """The largest number; infinite if one is not a number."""
    return math.inf if bool(tensor.isnan().any()) else float(tensor.max())


def _proof(checkpoint: Path) -> Proof:
    """The proof in the manifest; an empty one if there is none. Raises NoCheckpoint for a damaged one."""
    with contextlib.suppress(FileNotFoundError):
        try:
            return decode(decode_manifest((checkpoint / MANIFEST).read_bytes()).proof) or Proof({}, {})
        except BadManifest as error:
            raise NoCheckpoint(f"{checkpoint} is damaged", manifest_reason(error)) from None
        except Undecodable as error:
            raise NoCheckpoint(f"{checkpoint} cannot be compared with its digests", str(error)) from None
    return Proof({}, {})


def _opened(checkpoint: Path) -> Whole:
    try:
        return Whole(checkpoint)
    except FileNotFoundError:
        raise NoCheckpoint(f"{checkpoint} is not a checkpoint", f"it has no {DCP_METADATA}") from None


def _is_stored(name: str) -> bool:
    return ".param_groups.param-" not in name  # live only: see `State.unstored`


def _digest(tensor: torch.Tensor) -> int:
    return digest(Part(tensor, tuple(tensor.shape), (0,) * tensor.ndim))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _value(whole: Whole, name: str) -> Any:
    try:
        return whole.value(name)[0]
    except NeedsCode as error:
        return f"<a value that names {error.name}>"


def _about(whole: Whole, name: str) -> str:
    if not whole.is_tensor(name):
        return _short(_value(whole, name))
    tensor = whole.placeholder(name)
    return f"{_dtype(tensor)}{list(tensor.shape)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

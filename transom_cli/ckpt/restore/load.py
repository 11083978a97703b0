"""Verify a checkpoint and load it into the live state. All ranks together, all with the same result.

Bytes are verified as they are loaded, and damaged bytes fail the load: what they have overwritten is no state to train
from. They are never unpickled. But checksums are no signature: `.metadata`
and values that are not tensors are read without running code (`restore.safe_unpickle`), unless the trainer allows it.
Then anyone who can write to the checkpoints directory, or knows the key of the job's snapshot daemons, can run code in
the trainer.
"""

import functools
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.failures import BadManifest, NeedsCode, StateMismatch, describe
from transom_cli.ckpt.inventory import (
    Candidate,
    Verdict,
    check_bytes,
    check_shape,
    manifest_reason,
    read_manifest,
    read_origin,
)  # fmt: skip
from transom_cli.ckpt.manifest import Origin
from transom_cli.ckpt.names import IMPORTED
from transom_cli.ckpt.ranks import FAILURES, Ranks
from transom_cli.ckpt.restore.disk import DiskReader
from transom_cli.ckpt.restore.reader import MappedReader, OnDisk, RestoreProgress, Source
from transom_cli.ckpt.state import RANKS, State, undisturbed, within
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.ckpt.tree import Path as TreePath
from transom_cli.plural import some

NAMED = 10  # values in an error


def examine_together(candidate: Candidate, ranks: Ranks) -> Verdict:
    """Check the manifest, the sizes of the files, and the origin. The load verifies the data. A collective."""
    manifest, origin = None, None
    reasons: list[str] = []
    if ranks.first:
        try:
            manifest = read_manifest(candidate)
            about = [entry for entry in manifest.files if entry.name == IMPORTED]
            reasons = check_bytes(candidate.path, about)
            origin = read_origin(candidate.path, manifest) if not reasons else None
        except BadManifest as error:
            reasons = [manifest_reason(error)]
        except StateMismatch as error:
            reasons = [error.what]
    manifest, reasons, origin = ranks.from_first((manifest, reasons, origin))
    if manifest is None:
        return Verdict(candidate, None, tuple(reasons))
    shapes = ranks.gather(check_shape(candidate.path, manifest.files[ranks.rank :: ranks.size]))
    return Verdict(candidate, manifest, (*reasons, *(one for of_rank in shapes for one in of_rank)), origin)


def load(
    source: Source, state: State, ranks: Ranks, progress: RestoreProgress, *,
    per_rank: bool, origin: Origin | None = None, allow_code: bool = False,
) -> str:  # fmt: skip
    """Load a checkpoint into the live state. A collective.

    Its bytes are verified on the way. After a failure the live state may be partly overwritten:
    another load must succeed before training continues. `source.touched` says so.

    Args:
        per_rank: also load per-rank values.
        origin: of an imported checkpoint; entries that it lists start afresh and are not touched.

    Returns:
        "" or, the same on all ranks, why the load failed.
    """
    metadata = None
    targets: Flat = {}
    request = Request()
    trouble = ""
    try:
        metadata = source.metadata(allow_code=allow_code)
        targets, request = _targets(metadata, state, ranks.rank, origin, per_rank=per_rank)
    except Exception as error:
        trouble = _reason(error)
    reader: MappedReader | None = None
    verified = 0
    if metadata is not None and not trouble:
        kind = DiskReader if isinstance(source, OnDisk) else MappedReader
        reader = kind(source, metadata, progress, allow_code=allow_code)  # type: ignore[arg-type]
    try:
        if reader is not None:
            verified = reader.plan(targets, ranks)
    except Exception as error:
        trouble = _reason(error)
    answers = ranks.gather((trouble, request, verified))
    trouble = next((answer[0] for answer in answers if answer[0]), "")
    if metadata is None or reader is None or trouble:
        return trouble
    try:
        if unknown := _asked_by_none([answer[1] for answer in answers], metadata):
            return f"no rank has {unknown}" if ranks.size > 1 else f"the trainer has no {unknown}"
        if trouble := reader.prepare([answer[2] for answer in answers], ranks):
            return trouble
        source.touched = True
        try:
            reader.place(targets, ranks)
        except Exception as error:
            trouble = _reason(error)
        if trouble := _agree(trouble, ranks):  # no rank maps a file before all are verified
            return trouble
        reader.finish(targets)
        state.write(targets, paths_of(metadata), origin.afresh if origin else (), per_rank=per_rank)
    except FAILURES as error:
        trouble = _reason(error)
    finally:
        reader.close()
    return _agree(trouble, ranks)


def paths_of(metadata: Metadata) -> Paths:
    paths: Paths = metadata.planner_data
    return paths


class Request(NamedTuple):
    """Which keys of a checkpoint a rank asks for, and which it refuses: it has the entry, but no such value.

    Each is a number with a bit for each key, in the order of the metadata.
    """

    asked: int = 0
    refused: int = 0


def _asked_by_none(requests: list[Request], metadata: Metadata) -> str:
    """Return the keys that ranks refuse and no rank asks for, in words. With pipeline stages each rank asks for its
    own."""
    asked, refused = (functools.reduce(int.__or__, bits) for bits in zip(*requests, strict=True))
    odd = refused & ~asked
    if not odd:
        return ""
    keys = [key for key, bit in zip(paths_of(metadata), reversed(f"{odd:b}"), strict=False) if bit == "1"]
    return some(keys, NAMED)


def _bits(chosen: Collection[str], keys: Iterable[str]) -> int:
    return int("0" + "".join("01"[key in chosen] for key in keys)[::-1], 2)


def _targets(
    metadata: Metadata, state: State, rank: int, origin: Origin | None, *, per_rank: bool
) -> tuple[Flat, Request]:
    """Where each value that this rank wants is loaded to: live tensors, new tensors, or None for a plain value.

    The checkpoint says whether an entry is stored once or per rank: an object's content may change with its first step.
    A rank asks for what it has in modules and tensors, for the state of its own parameters, and for all other values.

    Raises StateMismatch, before anything is touched, if the state and the checkpoint do not match.
    """
    stored = metadata.state_dict_metadata
    with undisturbed():
        flat, live_paths = state.read()
    live = {within(path): flat[key] for key, path in live_paths.items()}
    modules = {path[:2] for path in live}
    own = {within(path) for path in live_paths.values() if path[0] == RANKS}
    afresh = origin.afresh if origin is not None else ()
    wanted = {name for name in state.names() if name not in afresh}
    targets: Flat = {}
    parameters = {name: state.parameters(name) for name in wanted}
    seen: set[TreePath] = set()
    there: set[str | int] = set()
    refused: set[str] = set()
    paths = state.translated(paths_of(metadata))
    for key, path in paths.items():
        inner = within(path)
        if inner[0] not in wanted or (path[0] == RANKS and (not per_rank or path[1] != str(rank))):
            continue
        if path[0] != RANKS and inner in own and origin is None and not state.is_object(str(inner[0])):
            raise StateMismatch(f"{key} is declared per rank, and the checkpoint has it once for all ranks")
        there.add(inner[0])
        held = parameters[str(inner[0])]
        extra = state.is_extra_state(inner)
        if (extra and inner[:2] not in modules) or (state.loads_in_place(inner) and inner not in live):
            if len(inner) > 1 or isinstance(stored[key], TensorStorageMetadata):  # otherwise a stage without parameters
                refused.add(key)
            continue
        if held is not None and len(inner) > 3 and inner[1] == "state" and inner[2] not in held:
            refused.add(key)
            continue
        seen.add(inner)
        targets[key] = _target(key, inner, stored[key], live.get(inner), state, held)
    asked = _bits(targets, paths_of(metadata))
    inside = {path[:depth] for path in seen for depth in range(1, len(path))}
    for key in [key for key in targets if within(paths[key]) in inside]:
        del targets[key]  # an empty container on the rank that saved it
    lacking = {name for name in wanted - there if per_rank or not _starts_afresh(name, live_paths)}
    if lacking:
        mine = {str(within(path)[0]) for path in live_paths.values() if path[0] == RANKS}
        missing = ", ".join(sorted(f"{RANKS}.{rank}.{name}" if name in mine else name for name in lacking))
        how = "" if origin is None else " (name entries that start afresh when you import: --afresh NAME)"
        raise StateMismatch(f"the checkpoint has no {missing}{how}")
    for key, path in live_paths.items():
        inner = within(path)
        if inner[0] in wanted and state.loads_in_place(inner) and inner not in seen:
            raise StateMismatch(f"the checkpoint has no {key}")
    return targets, Request(asked, _bits(refused, paths_of(metadata)))


def _starts_afresh(name: str, live_paths: Paths) -> bool:
    """Whether the whole entry is per rank, so that nothing of it is carried over."""
    return all(path[0] == RANKS for path in live_paths.values() if within(path)[0] == name)


def _target(
    key: str, path: TreePath, stored: Any, live: Any, state: State, held: dict[str, torch.Tensor] | None
) -> Any:
    """path: in this rank's state. held: the parameters of this optimizer."""
    if not isinstance(stored, TensorStorageMetadata):
        return None
    size, dtype = stored.size, stored.properties.dtype
    if state.loads_in_place(path):
        if not isinstance(live, torch.Tensor):
            raise StateMismatch(f"the trainer has no {key}")
        if live.shape != size or live.dtype != dtype:
            raise StateMismatch(
                f"{key} is {_shape(dtype, size)} in the checkpoint and {_shape(live.dtype, live.shape)} here"
            )
        return live
    like = live if isinstance(live, DTensor) else None
    if like is None and held is not None and len(path) == 4 and path[1] == "state":
        parameter = held[str(path[2])]
        like = parameter if isinstance(parameter, DTensor) else None
    if like is not None and like.shape == size:
        return torch.empty_like(like, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)


def kept_per_rank(metadata: Metadata, state: State) -> list[str]:
    """Values of the training itself that are kept per rank: another number of ranks cannot restore them."""
    known, found = set(state.names()), set()
    paths = paths_of(metadata)
    once = {path[0] for path in paths.values() if path[0] != RANKS}
    for path in paths.values():
        name = within(path)[0]
        if path[0] == RANKS and name in known and (name in once or not state.is_object(str(name))):
            found.add(".".join(map(str, within(path))))
    return sorted(found)


def _shape(dtype: torch.dtype, size: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(size)}"


def _reason(error: BaseException) -> str:
    if isinstance(error, NeedsCode):
        return f"{error.what}; if you trust who wrote the checkpoint, pass allow_code=True to the Checkpointer"
    return error.what if isinstance(error, StateMismatch) else describe(error)


def _agree(trouble: str, ranks: Ranks) -> str:
    return next((answer for answer in ranks.gather(trouble) if answer), "")

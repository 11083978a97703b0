"""Verify a checkpoint and load it into the live state. All ranks together, all with the same result.

All ranks read and check a checkpoint's files, each a part, before anything is loaded; the snapshot daemon checks a
snapshot's shares as each is opened. So damaged bytes are never unpickled. But checksums are no signature: `.metadata`
and values that are not tensors are read without running code (`restore.safe_unpickle`), unless the trainer allows it.
Then anyone who can write to the checkpoints directory, or knows the key of the job's snapshot daemons, can run code in
the trainer.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.failures import BadManifest, NeedsCode, StateMismatch, describe
from transom_cli.ckpt.inventory import Candidate, Verdict, check_bytes, manifest_reason, read_manifest, read_origin
from transom_cli.ckpt.manifest import Origin
from transom_cli.ckpt.ranks import FAILURES, Ranks
from transom_cli.ckpt.restore.reader import MappedReader, RestoreProgress, Source
from transom_cli.ckpt.save.fast_copy import COMPILE_FROM, compiled_copy
from transom_cli.ckpt.state import RANKS, State, undisturbed, within
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.ckpt.tree import Path as TreePath


def verify_together(candidate: Candidate, ranks: Ranks, progress: RestoreProgress) -> Verdict:
    """Verify like `inventory.verify`, with the files divided among the ranks. A collective."""
    manifest, reasons = None, []
    if ranks.first:
        try:
            manifest = read_manifest(candidate)
        except BadManifest as error:
            reasons = [manifest_reason(error)]
    manifest, reasons = ranks.from_first((manifest, reasons))
    if manifest is None:
        return Verdict(candidate, None, tuple(reasons))
    if manifest.size >= COMPILE_FROM * ranks.size:
        threading.Thread(target=compiled_copy, name="transom-compile", daemon=True).start()  # while reading
    by_size = sorted(manifest.files, key=lambda entry: entry.size, reverse=True)
    mine = by_size[ranks.rank :: ranks.size]
    progress.checking(sum(entry.size for entry in mine), manifest.size)
    found = ranks.gather(check_bytes(candidate.path, mine, progress.add))
    reasons = [reason for share in found for reason in share]
    origin = None
    if ranks.first and not reasons:
        try:
            origin = read_origin(candidate.path, manifest)
        except StateMismatch as error:
            reasons = [error.what]
    origin, reasons = ranks.from_first((origin, reasons))
    return Verdict(candidate, manifest, tuple(reasons), origin)


def load(
    source: Source, state: State, ranks: Ranks, progress: RestoreProgress, *,
    per_rank: bool, origin: Origin | None = None, allow_code: bool = False,
) -> str:  # fmt: skip
    """Load a checkpoint into the live state. A collective.

    Its bytes are verified, or will be as they are opened. After a failure the live state may be partly overwritten:
    another load must succeed before training continues.

    Args:
        per_rank: also load per-rank values.
        origin: of an imported checkpoint; entries that it lists start afresh and are not touched.

    Returns:
        "" or, the same on all ranks, why the load failed.
    """
    metadata = targets = None
    trouble = ""
    try:
        metadata = source.metadata(allow_code=allow_code)
        targets = _targets(metadata, state, ranks.rank, origin, per_rank=per_rank)
    except Exception as error:
        trouble = _reason(error)
    trouble = _agree(trouble, ranks)
    if trouble or metadata is None or targets is None:
        return trouble
    reader = MappedReader(source, metadata, progress, allow_code=allow_code)
    try:
        rest: Flat = {}
        try:
            rest = reader.place(targets, ranks)
        except Exception as error:
            trouble = _reason(error)
        answers = ranks.gather((trouble, bool(rest)))
        if trouble := next((answer[0] for answer in answers if answer[0]), ""):
            return trouble
        if any(answer[1] for answer in answers):
            dcp_load(
                rest,
                storage_reader=reader,
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
        state.write(targets, paths_of(metadata), origin.afresh if origin else (), per_rank=per_rank)
    except FAILURES as error:
        trouble = _reason(error)
    finally:
        reader.close()
    return _agree(trouble, ranks)


def paths_of(metadata: Metadata) -> Paths:
    paths: Paths = metadata.planner_data
    return paths


def _targets(metadata: Metadata, state: State, rank: int, origin: Origin | None, *, per_rank: bool) -> Flat:
    """Where each value that this rank wants is loaded to: live tensors, new tensors, or None for a plain value.

    The checkpoint says whether an entry is stored once or per rank: an object's content may change with its first step.

    Raises StateMismatch, before anything is touched, if the state and the checkpoint do not match.
    """
    stored = metadata.state_dict_metadata
    with undisturbed():
        flat, live_paths = state.read()
    live = {within(path): flat[key] for key, path in live_paths.items()}
    own = {within(path) for path in live_paths.values() if path[0] == RANKS}
    afresh = origin.afresh if origin is not None else ()
    wanted = {name for name in state.names() if name not in afresh}
    targets: Flat = {}
    seen: set[TreePath] = set()
    for key, path in state.translated(paths_of(metadata)).items():
        inner = within(path)
        if inner[0] not in wanted or (path[0] == RANKS and (not per_rank or path[1] != str(rank))):
            continue
        if path[0] != RANKS and inner in own and origin is None and not state.is_object(str(inner[0])):
            raise StateMismatch(f"{key} is declared per rank, and the checkpoint has it once for all ranks")
        seen.add(inner)
        targets[key] = _target(key, inner, stored[key], live.get(inner), state)
    there = {path[0] for path in seen}
    lacking = {name for name in wanted - there if per_rank or not _starts_afresh(name, live_paths)}
    if lacking:
        mine = {str(within(path)[0]) for path in live_paths.values() if path[0] == RANKS}
        missing = ", ".join(sorted(f"{RANKS}.{rank}.{name}" if name in mine else name for name in lacking))
        how = "" if origin is None else " (name entries that start afresh when you import: --afresh NAME)"
        raise StateMismatch(f"the checkpoint has no {missing}{how}")
    for key, path in live_paths.items():
        inner = within(path)
        if inner[0] in wanted and state.loads_in_place(str(inner[0])) and inner not in seen:
            raise StateMismatch(f"the checkpoint has no {key}")
    return targets


def _starts_afresh(name: str, live_paths: Paths) -> bool:
    """Whether the whole entry is per rank, so that nothing of it is carried over."""
    return all(path[0] == RANKS for path in live_paths.values() if within(path)[0] == name)


def _target(key: str, path: TreePath, stored: Any, live: Any, state: State) -> Any:
    """path: in this rank's state."""
    if not isinstance(stored, TensorStorageMetadata):
        return None
    size, dtype = stored.size, stored.properties.dtype
    if state.loads_in_place(str(path[0])):
        if not isinstance(live, torch.Tensor):
            raise StateMismatch(f"the trainer has no {key}")
        if live.shape != size or live.dtype != dtype:
            raise StateMismatch(
                f"{key} is {_shape(dtype, size)} in the checkpoint and {_shape(live.dtype, live.shape)} here"
            )
        return live
    like = live if isinstance(live, DTensor) else None
    if like is None and len(path) == 4 and path[1] == "state":
        like = state.sharded_like(str(path[0]), str(path[2]))
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

"""Choosing the checkpoint to resume from, and loading it. All ranks together, all with the same result.

A checkpoint's files are read and checked by all ranks, each a share, before anything is loaded; a snapshot's by the
node's memory holder, as each is opened. DCP then reads `.metadata` and plain values with pickle, as it always does:
whoever can write into the checkpoints directory, or knows the key of the job's memory holders, can run code in the
trainer. The checksums come first, so damaged bytes are never unpickled, but they are no signature.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.convert import imported
from transom_cli.ckpt.failures import BadManifest, StateMismatch
from transom_cli.ckpt.inventory import Candidate, Verdict, check_bytes, manifest_reason, read_manifest
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.restoring.progress import Progress
from transom_cli.ckpt.restoring.reading import MappedReader, Source
from transom_cli.ckpt.saving.engine import FAILURES, describe
from transom_cli.ckpt.saving.streaming import WORTH, streaming
from transom_cli.ckpt.state import RANKS, State
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.ckpt.tree import Path as TreePath


def verify_together(candidate: Candidate, ranks: Ranks, progress: Progress) -> Verdict:
    """`inventory.verify`, with the files shared out among the ranks."""
    manifest, reasons = None, []
    if ranks.first:
        try:
            manifest = read_manifest(candidate)
        except BadManifest as error:
            reasons = [manifest_reason(error)]
    manifest, reasons = ranks.from_first((manifest, reasons))
    if manifest is None:
        return Verdict(candidate, None, tuple(reasons))
    if manifest.size >= WORTH * ranks.size:
        threading.Thread(target=streaming, name="transom-compile", daemon=True).start()  # beside the reading
    by_size = sorted(manifest.files, key=lambda entry: entry.size, reverse=True)
    mine = by_size[ranks.rank :: ranks.size]
    progress.checking(sum(entry.size for entry in mine), manifest.size)
    found = ranks.gather(check_bytes(candidate.path, mine, progress.add))
    reasons = [reason for share in found for reason in share]
    origin = None
    if ranks.first and not reasons:
        try:
            origin = imported.read(candidate.path, manifest)
        except StateMismatch as error:
            reasons = [error.what]
    origin, reasons = ranks.from_first((origin, reasons))
    return Verdict(candidate, manifest, tuple(reasons), origin)


def load(
    source: Source, state: State, ranks: Ranks, progress: Progress, *,
    per_rank: bool, origin: imported.Origin | None = None,
) -> str:  # fmt: skip
    """Load a checkpoint into the live state. Returns "" or, on all ranks alike, why that failed.

    Its bytes are verified, or will be as they are opened.

    What its `origin` names as such starts afresh: those entries are neither asked for nor touched.

    After a failure the live state may be partly overwritten: another load must succeed before training goes on.
    """
    metadata = targets = None
    trouble = ""
    try:
        metadata = source.metadata()
        targets = _targets(metadata, state, ranks.rank, origin, per_rank=per_rank)
    except Exception as error:
        trouble = _told(error)
    trouble = _agree(trouble, ranks)
    if trouble or metadata is None or targets is None:
        return trouble
    reader = MappedReader(source, metadata, progress)
    try:
        rest: Flat = {}
        try:
            rest = reader.place(targets, ranks)
        except Exception as error:
            trouble = _told(error)
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
        trouble = _told(error)
    finally:
        reader.close()
    return _agree(trouble, ranks)


def paths_of(metadata: Metadata) -> Paths:
    paths: Paths = metadata.planner_data
    return paths


def _targets(metadata: Metadata, state: State, rank: int, origin: imported.Origin | None, *, per_rank: bool) -> Flat:
    """Where DCP is to put each value that this rank wants: live tensors, fresh tensors, or None for a plain value.

    Raises StateMismatch, before anything is touched, when the state and the checkpoint do not fit.
    """
    stored = metadata.state_dict_metadata
    live, live_paths = state.read()
    afresh = origin.afresh if origin is not None else ()
    shared = {name for name in state.shared_names if name not in afresh}
    wanted: set[TreePath] = {(name,) for name in shared}
    if per_rank:
        wanted |= {(RANKS, str(rank), name) for name in state.per_rank_names if name not in afresh}
    targets: Flat = {}
    seen = set()
    for key, path in paths_of(metadata).items():
        owner = path[:3] if path[0] == RANKS else path[:1]
        if owner in wanted:
            seen.add(owner)
            targets[key] = _target(key, path, stored[key], live.get(key), state)
    if wanted - seen:
        missing = ", ".join(sorted(".".join(map(str, owner)) for owner in wanted - seen))
        how = "" if origin is None else " (what is to start afresh is named when it is imported: --afresh NAME)"
        raise StateMismatch(f"the checkpoint has no {missing}{how}")
    for key, path in live_paths.items():
        if path[0] in shared and state.loads_in_place(str(path[0])) and key not in targets:
            raise StateMismatch(f"the checkpoint has no {key}")
    return targets


def _target(key: str, path: TreePath, stored: Any, live: Any, state: State) -> Any:
    if not isinstance(stored, TensorStorageMetadata):
        return None
    size, dtype = stored.size, stored.properties.dtype
    if path[0] != RANKS and state.loads_in_place(str(path[0])):
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


def _shape(dtype: torch.dtype, size: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(size)}"


def _told(error: BaseException) -> str:
    return error.what if isinstance(error, StateMismatch) else describe(error)


def _agree(trouble: str, ranks: Ranks) -> str:
    return next((answer for answer in ranks.gather(trouble) if answer), "")

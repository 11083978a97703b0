"""From one file to a checkpoint that a Checkpointer restores, published as saves are: manifest last, then the name."""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from transom_cli.ckpt import files
from transom_cli.ckpt.convert import imported, torch_file
from transom_cli.ckpt.convert.incoming import check, ranks_in
from transom_cli.ckpt.failures import BadFile, SaveFailed
from transom_cli.ckpt.manifest import Manifest, encode
from transom_cli.ckpt.names import DCP_METADATA, IMPORTED, MANIFEST, local_attempt, step_name, tmp_name
from transom_cli.ckpt.save.engine import FAILURES, describe
from transom_cli.ckpt.tree import Flat, Paths, flatten, unflatten
from transom_cli.ckpt.underway import Told, nobody
from transom_cli.errors import UsageError, printable

ATTEMPT = "imported"  # in the manifest, where a training's attempt would stand


@dataclass(frozen=True)
class Imported:
    path: Path
    size: int  # bytes of its files
    ranks: int  # whose per-rank state it has
    tensors: int
    values: int
    entries: tuple[str, ...]  # top-level names


def import_file(
    source: Path, form: str, directory: Path, step: int,
    *, under: str | None = None, only: Sequence[str] = (), afresh: Sequence[str] = (),
    expect: Told = nobody, told: Told = nobody,
) -> Imported:  # fmt: skip
    """Make `step-<step>` in `directory` from a file in `form`, "torch" or "safetensors".

    `under`: the entry that the whole file is; otherwise its top-level names are the entries. `only`: these of them.
    `afresh`: entries of the trainer that are not in the file, and that a restore shall leave as they are. One tensor at
    a time is held in memory. `expect` is called with how many bytes there are to be written and read.
    Raises UsageError (also when the step is there), BadFile, SaveFailed and OSError; then there is no new checkpoint.
    """
    final = directory / step_name(step)
    _refuse(final)
    flat, paths = _contents(source, form, under, only)
    entries = tuple(dict.fromkeys(str(path[0]) for path in paths.values()))
    both = [name for name in afresh if name in entries]
    if both:
        raise UsageError(f"{source} has {', '.join(both)}, which was to start afresh", hint="choose with --only NAME")
    ranks = ranks_in(source, paths)
    origin = imported.Origin(printable(source.name), ranks > 0, tuple(afresh))
    work = directory / tmp_name(step, local_attempt(socket.gethostname(), os.getpid()), secrets.token_hex(4))
    work.mkdir(mode=0o700)
    try:
        size = sum(value.nbytes for value in flat.values() if isinstance(value, torch.Tensor))
        expect(2 * size)  # it is written, and read again for its checksums
        _write(work, flat, paths, told)
        files.write_new(work / IMPORTED, imported.encode(origin))
        manifest = _manifest(work, step, max(1, ranks), told)
        files.write_new(work / MANIFEST, encode(manifest))
        _refuse(final)
        files.publish(work, final)
    finally:
        files.delete_tree(work)
    tensors = sum(isinstance(value, torch.Tensor) for value in flat.values())
    return Imported(final, manifest.size, ranks, tensors, len(flat) - tensors, entries)


def _refuse(final: Path) -> None:
    if final.exists():
        raise UsageError(
            f"{final} exists already",
            "a checkpoint is never replaced",
            f"give another --step, or move that one away: mv {final} {final}.old",
        )


def _contents(source: Path, form: str, under: str | None, only: Sequence[str]) -> tuple[Flat, Paths]:
    partial: tuple[str, ...] = ()
    if under == "":
        raise UsageError("An entry has a name", hint="--as model")
    try:
        if form == "torch":
            flat, paths = _flattened(source, torch_file.read(source), under)
        else:
            flat, paths, partial = _from_safetensors(source, under)
    except OSError as error:
        raise BadFile(f"{source} cannot be read", error.strerror or str(error), f"ls -la {source}") from None
    names = dict.fromkeys(str(path[0]) for path in paths.values())
    odd = [name for name in only if name not in names]
    if odd:
        raise UsageError(f"{source} has no {', '.join(odd)}", f"it has {', '.join(names)}")
    if only:
        paths = {key: path for key, path in paths.items() if path[0] in only}
        flat = {key: flat[key] for key in paths}
    check(source, flat, paths, partial)
    return flat, paths


def _flattened(source: Path, tree: Any, under: str | None) -> tuple[Flat, Paths]:
    if under is not None:
        if isinstance(tree, dict) and list(tree) == [under] and isinstance(tree[under], dict):
            raise _nested(source, under)
        tree = {under: tree}
    if not isinstance(tree, dict) or not tree or not all(type(name) is str and name for name in tree):
        raise UsageError(
            f"{source} holds no dict with names",
            f"but a {type(tree).__name__}",
            "say which entry of the training it is: --as NAME",
        )
    if (
        under is None
        and all(isinstance(value, torch.Tensor) for value in tree.values())
        and any("." in n for n in tree)
    ):
        raise UsageError(
            f"{source} looks like one module's own state_dict",
            f"its names are {', '.join(list(tree)[:3])}, ...",
            "say which entry of the training it is: --as model",
        )
    try:
        return flatten(tree)
    except RecursionError:
        raise BadFile(f"{source} holds a value that contains itself") from None


def _from_safetensors(source: Path, under: str | None) -> tuple[Flat, Paths, tuple[str, ...]]:
    from transom_cli.ckpt.convert import safetensors_file  # an extra of its own

    tensors, told = safetensors_file.read(source)
    if told is None and under is None:
        raise UsageError(
            f"{source} does not say which entries of a training its tensors belong to",
            "it is no export of transom",
            "say which one it is: --as model",
        )
    if told is not None and {path[0] for path in told.paths.values()} == {under}:
        raise _nested(source, str(under))
    above = () if under is None else (under,)
    paths: Paths = {}
    flat: Flat = {}
    for name, tensor in tensors.items():
        path = (*above, *(told.paths[name] if told is not None else (name,)))
        key = ".".join(map(str, path))
        if key in flat:
            raise BadFile(f"{source} has two tensors called `{key}`")
        flat[key], paths[key] = tensor, path
    if told is not None and not _is_a_tree(paths):
        raise BadFile(f"{source} does not say where its tensors belong", "their places contradict each other")
    partial = told.partial if told is not None else ()
    return flat, paths, partial if under is None else ((under,) if partial else ())


def _is_a_tree(paths: Paths) -> bool:
    """Whether no place is inside another: then a tree of them has them all again."""
    try:
        return flatten(unflatten({key: {} for key in paths}, paths))[1] == paths
    except (TypeError, LookupError):
        return False


def _nested(source: Path, under: str) -> UsageError:
    return UsageError(f"{source} says itself that it is `{under}`", hint=f"leave out --as {under}")


def _write(work: Path, flat: Flat, paths: Paths, told: Told) -> None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
            dcp_save(
                {},  # our planner has the state
                storage_writer=FileSystemWriter(work, sync_files=False, per_thread_copy_ahead=0),
                planner=_Planner(flat, paths, told),
                no_dist=True,
            )
    except FAILURES as error:
        raise SaveFailed(
            f"{work.parent / work.name.split('-local-')[0].removeprefix('.tmp-')} was not written",
            describe(error),
            f"df -h {work.parent}",
        ) from None


def _manifest(work: Path, step: int, ranks: int, told: Told) -> Manifest:
    names = sorted([DCP_METADATA, IMPORTED, *(path.name for path in work.glob("__*"))])
    return Manifest(
        step=step,
        world_size=ranks,
        attempt=ATTEMPT,
        torch=str(torch.__version__),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        files=tuple(files.seal(work / name, told) for name in names),
    )


class _Planner(DefaultSavePlanner):
    """DCP's planner, with our flattening."""

    def __init__(self, flat: Flat, paths: Paths, told: Told) -> None:
        super().__init__(flatten_state_dict=True, flatten_sharded_tensors=False)
        self._flat, self._paths, self._told = flat, paths, told

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self.state_dict, self.mappings, self.is_coordinator = self._flat, self._paths, is_coordinator

    def resolve_data(self, write_item: WriteItem) -> Any:
        found = super().resolve_data(write_item)
        if isinstance(found, torch.Tensor):
            self._told(found.nbytes)
        return found

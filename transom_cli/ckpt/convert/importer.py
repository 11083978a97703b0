"""Import one file, or a directory of DCP, as a checkpoint that a Checkpointer restores. It is published like a save:
manifest, then rename.

Content that would fail at a restore is refused before it is written.
"""

import codecs
import datetime
import os
import pickle
import re
import secrets
import socket
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadFile, SaveFailed, describe
from transom_cli.ckpt.manifest import FileEntry, Manifest, Origin, encode, encode_origin
from transom_cli.ckpt.names import DCP_METADATA, IMPORTED, MANIFEST, data_name, local_attempt, step_name, tmp_name
from transom_cli.ckpt.progress import OnBytes, ignore_bytes
from transom_cli.ckpt.ranks import FAILURES
from transom_cli.ckpt.restore.plain_dcp import Stock
from transom_cli.ckpt.save.layout import data_file, global_plan, lay_out, local_plan, places_of
from transom_cli.ckpt.save.serialize import Serializer
from transom_cli.ckpt.save.shares import written
from transom_cli.ckpt.state import RANKS, RNG
from transom_cli.ckpt.tree import Flat, Paths, flatten, unflatten
from transom_cli.errors import UsageError, printable

ATTEMPT = "imported"  # in the manifest, instead of a training's attempt
_GLOBAL = re.compile(r"GLOBAL (\S+)")
_PIECE = 4 << 20  # bytes


@dataclass(frozen=True)
class Imported:
    path: Path
    size: int  # bytes of its files
    ranks: int  # whose per-rank state it has
    tensors: int
    values: int
    entries: tuple[str, ...]  # top-level names
    verified: str = ""  # of a directory of DCP: what its checksums said


def import_file(
    source: Path, form: str, directory: Path, step: int,
    *, under: str | None = None, only: Sequence[str] = (), afresh: Sequence[str] = (),
    expect: OnBytes = ignore_bytes, on_bytes: OnBytes = ignore_bytes,
) -> Imported:  # fmt: skip
    """Make `step-<step>` in `directory` from a file or a directory of DCP. One tensor at a time is held in memory.

    Args:
        form: the format, "torch", "safetensors" or "dcp".
        under: the entry that the whole file becomes. Default: the file's top-level names are the entries.
        only: import only these entries.
        afresh: entries of the trainer that the file lacks, and that a restore leaves as they are.
        expect: called with the bytes that will be written and read.
        on_bytes: called with the bytes that were just written or read.

    Raises:
        UsageError: an argument does not match the file, or the step exists.
        BadFile: the file is damaged or holds something unsupported.
        SaveFailed: the checkpoint could not be written.
        OSError: likewise. After any error there is no new checkpoint.
    """
    final = directory / step_name(step)
    _refuse(final)
    stock = Stock(source) if form == "dcp" else None
    flat, paths = _contents(source, stock or form, under, only)
    entries = tuple(dict.fromkeys(str(path[0]) for path in paths.values()))
    both = [name for name in afresh if name in entries]
    if both:
        raise UsageError(f"{source} has {', '.join(both)}, which was to start afresh", hint="choose with --only NAME")
    ranks = ranks_in(source, paths)
    work = directory / tmp_name(step, local_attempt(socket.gethostname(), os.getpid()), secrets.token_hex(4))
    work.mkdir(mode=0o700)
    try:
        size = sum(value.nbytes for value in flat.values() if isinstance(value, torch.Tensor))
        name, verified = printable(source.name), ""
        expect((1 if stock is None else 2) * size)  # a copy is also verified
        if stock is not None:
            entries_of_files, checked = stock.copy(work, flat, paths, on_bytes)
            verified = checked.text
            name += f" ({verified})"
        else:
            entries_of_files = _write(work, flat, paths, on_bytes)
        origin = files.write_new(work / IMPORTED, encode_origin(Origin(name, ranks > 0, tuple(afresh))))
        manifest = _manifest([*entries_of_files, origin], step, max(1, ranks))
        files.write_new(work / MANIFEST, encode(manifest))
        _refuse(final)
        files.publish(work, final)
    finally:
        files.delete_tree(work)
    tensors = sum(isinstance(value, torch.Tensor) for value in flat.values())
    return Imported(final, manifest.size, ranks, tensors, len(flat) - tensors, entries, verified)


def _refuse(final: Path) -> None:
    if final.exists():
        raise UsageError(
            f"{final} already exists",
            "a checkpoint is never replaced",
            f"give another --step, or move that one away: mv {final} {final}.old",
        )


def _contents(source: Path, form: str | Stock, under: str | None, only: Sequence[str]) -> tuple[Flat, Paths]:
    partial: tuple[str, ...] = ()
    if under == "":
        raise UsageError("An entry has a name", hint="--as model")
    try:
        if isinstance(form, Stock):
            flat, paths = form.contents(under)
        elif form == "torch":
            flat, paths = _flattened(source, _read_torch_file(source), under)
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
    from transom_cli.ckpt.convert import safetensors_file  # an optional dependency

    tensors, record = safetensors_file.read(source)
    if record is None and under is None:
        raise UsageError(
            f"{source} does not say which entries of a training its tensors belong to",
            "it is no export of transom",
            "say which one it is: --as model",
        )
    if record is not None and {path[0] for path in record.paths.values()} == {under}:
        raise _nested(source, str(under))
    above = () if under is None else (under,)
    paths: Paths = {}
    flat: Flat = {}
    for name, tensor in tensors.items():
        path = (*above, *(record.paths[name] if record is not None else (name,)))
        key = ".".join(map(str, path))
        if key in flat:
            raise BadFile(f"{source} has two tensors called `{key}`")
        flat[key], paths[key] = tensor, path
    if record is not None and not _is_a_tree(paths):
        raise BadFile(f"{source} does not say where its tensors belong", "their places contradict each other")
    partial = record.partial if record is not None else ()
    return flat, paths, partial if under is None else ((under,) if partial else ())


def _is_a_tree(paths: Paths) -> bool:
    """Whether no path is inside another, so that the paths form a tree."""
    try:
        return flatten(unflatten({key: {} for key in paths}, paths))[1] == paths
    except (TypeError, LookupError):
        return False


def _nested(source: Path, under: str) -> UsageError:
    return UsageError(f"{source} says itself that it is `{under}`", hint=f"leave out --as {under}")


def _write(work: Path, flat: Flat, paths: Paths, on_bytes: OnBytes) -> list[FileEntry]:
    try:
        plan = local_plan(flat, paths, first=True)
        layout, serializer = lay_out((), plan, None), Serializer()
        objects = [(index, serializer.serialize(index.fqn, flat[index.fqn])) for index in layout.objects]
        pieces = data_file(layout, flat, [data for _, data in objects])
        entry = files.write_pieces(work / data_name(0), pieces, on_bytes)
        metadata = written(global_plan([plan])[1], [places_of(layout, objects)])
        return [entry, files.write_new(work / DCP_METADATA, metadata)]
    except FAILURES as error:
        raise SaveFailed(
            f"{work.parent / work.name.split('-local-')[0].removeprefix('.tmp-')} was not written",
            describe(error),
            f"df -h {work.parent}",
        ) from None


def _manifest(entries: Sequence[FileEntry], step: int, ranks: int) -> Manifest:
    return Manifest(
        step=step,
        world_size=ranks,
        attempt=ATTEMPT,
        torch=str(torch.__version__),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        files=tuple(sorted(entries, key=lambda entry: entry.name)),
    )


def check(source: Path, flat: Flat, paths: Paths, partial: tuple[str, ...]) -> None:
    """Raise UsageError for content that would not restore. partial: entries whose values the export left out."""
    if not flat:
        raise UsageError(f"{source} is empty")
    halves = [name for name in partial if any(path[0] == name for path in paths.values())]
    if halves:
        raise UsageError(
            f"{source} has only the tensors of {', '.join(halves)}",
            "safetensors keeps no other values, and an entry is restored whole or not at all",
            "leave it out (--only NAME for each of the others, --afresh for this one), or export a torch file",
        )
    odd = [key for key, value in flat.items() if isinstance(value, torch.Tensor) and not _plain(value)]
    if odd:
        raise UsageError(
            f"{source} has tensors that are not plain ones in memory (sharded, sparse, quantized or meta)",
            ", ".join(odd),
            "save them as full, dense tensors",
        )
    for key, path in paths.items():
        if _numbered(flat[key], path):
            raise UsageError(
                f"`{path[0]}` is an optimizer's state with numbered parameters (`{key}`)",
                "transom keeps it under the parameters' names, for which the file has no key",
                "save what get_optimizer_state_dict of torch.distributed.checkpoint.state_dict gives,\n"
                f"or leave it out (--only) and start it afresh: --afresh {path[0]}",
            )


def ranks_in(source: Path, paths: Paths) -> int:
    """The number of ranks with per-rank entries. Raises BadFile if they are not ranks 0 to n-1."""
    found = {path[1:3] for path in paths.values() if path[0] == RANKS}
    ranks = {path[0] for path in found if path}
    count = len(ranks)
    if any((str(rank), RNG) not in found for rank in range(count)):
        raise BadFile(
            f"The per-rank state in {source} (`{RANKS}`) is not whole",
            f"it has {', '.join(sorted('.'.join(map(str, path)) for path in found))}",
            "leave it out: --only NAME for each of the other entries",
        )
    return count


def _plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.device.type == "cpu"
    )


def _numbered(value: object, path: tuple[str | int, ...]) -> bool:
    """Whether these are a group's parameters as in torch's Optimizer.state_dict()."""
    groups = len(path) == 4 and path[1] == "param_groups" and path[3] == "params"
    return groups and isinstance(value, list) and any(type(item) is int for item in value)


def _read_torch_file(path: Path) -> Any:
    """What is in a torch file, and only data: its tensors are on the CPU, and their bytes are read when they are used.

    The archive's checksums are compared first (those that torch left out are zero). Raises BadFile and OSError.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    try:
        if zipped:
            _compare_checksums(path)
        with warnings.catch_warnings(), torch.serialization.safe_globals(_numpy_data()):
            warnings.simplefilter("ignore")  # torch warns about how it reads old files
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except OSError:
        raise
    except Exception as error:  # torch and zipfile raise many types for damaged bytes
        found = _GLOBAL.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if found:
            raise BadFile(
                f"{path} holds more than data",
                f"it needs code to be loaded ({found[1]}), and transom runs none from a file",
                "save tensors, numbers, texts, lists and dicts only, as state_dict() gives them",
            ) from None
        raise BadFile(f"{path} is not a torch file, or is damaged", str(error).strip().partition("\n")[0]) from None


def _numpy_data() -> list[Any]:
    """The names that numpy pickles arrays of numbers with, such as its random state. Empty without numpy."""
    try:
        import numpy as np
    except ImportError:
        return []
    numbers = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    return [np.ndarray, np.dtype, np.empty(0).__reduce__()[0], codecs.encode, *numbers]


def _compare_checksums(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.CRC:
                with archive.open(entry) as record:
                    while record.read(_PIECE):
                        pass

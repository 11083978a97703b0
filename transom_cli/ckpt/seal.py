"""Seals: proof that a checkpoint in a framework's own format is whole. No torch.

A framework's checkpoint that was interrupted looks like a complete one: Hugging Face's `get_last_checkpoint` takes the
highest number, whatever is in the folder. So one process seals each finished checkpoint. The seal lists every file with
its size and checksum. It is written last and published by rename, and nothing in the checkpoint is changed:

    <folder>/transom-seal.json              of a checkpoint that is a folder
    <parent>/.transom-seals/<name>.json     of a checkpoint that is a file

`latest` gives the newest sealed checkpoint whose bytes verify. Under transom, rank 0 decides once per launch, and the
other ranks read its answer. A newer checkpoint that is damaged, or that nobody sealed, is renamed, never deleted.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import xxhash

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import NoCheckpointRestores
from transom_cli.ckpt.fence import newer_than
from transom_cli.ckpt.inventory import check_bytes
from transom_cli.ckpt.manifest import FileEntry
from transom_cli.ckpt.names import SEAL, SEALED, SEALS, step_of
from transom_cli.files import make_private, publish_text, refresh_directory
from transom_cli.heartbeat import paths
from transom_cli.layout import AttemptDir, RunDir

SCHEMA = 1
TRACKERS = ("latest", "latest_checkpointed_iteration.txt")  # DeepSpeed's and Megatron's: they name the newest one
_LIMIT = 64 << 20  # bytes of a seal that are read
_READERS = 4  # threads that read a checkpoint's files
_PATIENCE = 1800.0  # seconds for rank 0 to verify


@dataclass(frozen=True)
class Seal:
    """path: the checkpoint. step: finished training steps. sealed: Unix time. files: names relative to `base`."""

    path: Path
    step: int
    sealed: float
    files: tuple[FileEntry, ...]

    @property
    def base(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent


def seal_path(checkpoint: Path) -> Path:
    return checkpoint / SEAL if checkpoint.is_dir() else checkpoint.parent / SEALS / f"{checkpoint.name}.json"


def seal(checkpoint: str | Path, step: int) -> Seal:
    """Make a finished checkpoint durable, and seal it.

    Call it in one process, once all ranks have written their part. The seal also becomes the newest durable step of the
    run that this process belongs to.

    Args:
        checkpoint: a folder or a file.
        step: finished training steps.

    Raises:
        OSError: a file cannot be read or synced, or the seal cannot be written. The checkpoint has no seal then.
    """
    path = Path(os.path.abspath(checkpoint))  # noqa: PTH100 - without following links: the user knows it by this name
    folder = path.is_dir()
    base = path if folder else path.parent
    names = sorted(_names(path)) if folder else [path.name]
    if not names:
        raise FileNotFoundError(f"{path} has no files")
    with ThreadPoolExecutor(_READERS, thread_name_prefix="transom-seal") as readers:
        entries = tuple(readers.map(lambda name: replace(files.seal(base / name, private=False), name=name), names))
    for inner in {(base / name).parent for name in names} | {path.parent}:
        files.sync_directory(inner)
    made = Seal(path, step, time.time(), entries)
    if not folder:
        make_private(path.parent / SEALS)
        for old in (path.parent / SEALS).glob("*.json"):  # of checkpoints that the framework has deleted
            if not (path.parent / old.stem).exists():
                old.unlink(missing_ok=True)
    publish_text(seal_path(path), _encode(made))
    _record(made)
    return made


def _names(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != SEAL:
            yield path.relative_to(folder).as_posix()


def _encode(seal: Seal) -> str:
    body: dict[str, Any] = {"schema": SCHEMA, "step": seal.step, "sealed": seal.sealed}
    body["files"] = [vars(entry) for entry in seal.files]
    return json.dumps({**body, "seal": _digest(body)}, indent=1) + "\n"


def _digest(body: dict[str, Any]) -> str:
    return str(xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode()))


def read_seal(checkpoint: Path) -> Seal | None:
    """Read the seal of a checkpoint; None if it has none, or a damaged one."""
    try:
        with seal_path(checkpoint).open("rb") as file:
            body = json.loads(file.read(_LIMIT))
        if body["schema"] != SCHEMA or body.pop("seal") != _digest(body):
            return None
        entries = tuple(FileEntry(str(e["name"]), int(e["size"]), str(e["xxh3_128"])) for e in body["files"])
        if any(entry.name.startswith("/") or ".." in entry.name.split("/") for entry in entries):
            return None
        return Seal(checkpoint, int(body["step"]), float(body["sealed"]), entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def sealed(folder: Path) -> list[Seal]:
    """Return the sealed checkpoints in a folder, newest first. Their files are not looked at."""
    found = [read_seal(path) for path in _children(folder) if (path / SEAL).is_file()]
    found += [read_seal(folder / path.stem) for path in _children(folder / SEALS) if path.suffix == ".json"]
    return sorted((one for one in found if one), key=lambda one: (one.step, one.sealed), reverse=True)


def unsealed(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of what has the name of a checkpoint and no seal, newest first."""
    found = [(step, path) for path in _children(folder) if (step := step_of(path.name)) is not None]
    return sorted(((step, path) for step, path in found if read_seal(path) is None), reverse=True)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


# --- what to resume from ---


def latest(output_dir: str | Path) -> str | None:
    """Return the newest sealed checkpoint whose bytes verify, or None if training begins.

    Under transom, the answer is the same on all ranks and for the whole launch. Rank 0 verifies, and renames newer
    checkpoints that are damaged or that nobody sealed to `<name>.bad-<k>` and `<name>.unsealed-<k>`.

    Args:
        output_dir: the folder in which the framework keeps its checkpoints.

    Raises:
        NoCheckpointRestores: there are checkpoints, and none is sealed and whole (exit code 15).
    """
    folder = Path(os.path.abspath(output_dir))  # noqa: PTH100
    attempt = os.environ.get(paths.ATTEMPT_DIR)
    if not attempt:
        return _text(choose(folder))  # other processes may be reading: rename nothing
    answer = AttemptDir(Path(attempt)).resume(paths.own_launch(), crc32(os.fsencode(folder)))
    if paths.own_rank() == 0 and not answer.exists():
        _decide(folder, answer, Path(attempt))
    return _answered(answer)


def _decide(folder: Path, answer: Path, attempt: Path) -> None:
    try:
        began = RunDir(attempt.parent.parent).settings.stat().st_mtime
        told: dict[str, object] = {"path": _text(choose(folder, aside=_set_aside, since=began))}
    except NoCheckpointRestores as error:
        sys.stderr.write(f"error: {error}\n")
        told = {"error": [error.what, error.why, error.hint]}
    make_private(answer.parent)
    publish_text(answer, json.dumps(told) + "\n")


def _answered(answer: Path) -> str | None:
    """Wait for rank 0's answer."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            told = json.loads(answer.read_text())
            break
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 has not chosen a checkpoint within {_PATIENCE:.0f} s") from None
        refresh_directory(answer.parent.parent)
        refresh_directory(answer.parent)
        time.sleep(0.1)
    if "error" in told:
        raise NoCheckpointRestores(*told["error"])
    return None if told["path"] is None else str(told["path"])


def _text(chosen: Seal | None) -> str | None:
    return None if chosen is None else str(chosen.path)


SetAside = Callable[[Path, str, str], Path]  # checkpoint, "bad" or "unsealed", the reason for a person


def choose(folder: Path, *, aside: SetAside | None = None, since: float = float("inf")) -> Seal | None:
    """Return the newest sealed checkpoint that verifies; None if training begins.

    Args:
        aside: renames a newer checkpoint that is not used. None: leave it.
        since: checkpoints that were written after this Unix time are this run's. If the run was interrupted in its very
            first checkpoint, training begins again.

    Raises:
        NoCheckpointRestores: there are checkpoints, and none is sealed and whole.
    """
    good, passed = None, list[tuple[Path, str, str]]()
    for one in sealed(folder):
        reasons = check_bytes(one.base, one.files)
        if not reasons:
            good = one
            break
        passed.append((one.path, "bad", reasons[0]))
    newer = [path for step, path in unsealed(folder) if good is None or step > good.step]
    first = good is None and not passed and all(path.stat().st_mtime > since for path in newer)
    passed += [(path, "unsealed", "it has no seal, so it may be half-written") for path in newer]
    if good is None and passed and not first:
        raise NoCheckpointRestores(
            f"No checkpoint in {folder} is sealed and whole",
            "\n".join(f"{path.name}: {why}" for path, _, why in passed),
            f"to use one that you trust, seal it: transom ckpt seal {passed[-1][0]}\n"
            "to start from the beginning, move them to another folder",
        )
    if aside is not None:
        for path, kind, why in passed:
            aside(path, kind, why)
        if passed and good is not None:
            _correct_trackers(folder, {path.name for path, _, _ in passed}, good)
    return good


def _set_aside(path: Path, kind: str, why: str) -> Path:
    moved = files.set_aside(path, kind)
    print(f"transom: {path} is not used ({why}); it was renamed to {moved.name}", file=sys.stderr, flush=True)
    return moved


def _correct_trackers(folder: Path, gone: set[str], good: Seal) -> None:
    """Let DeepSpeed's and Megatron's own record of the newest checkpoint name the one that is used."""
    for name in TRACKERS:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = (folder / name).read_text().strip()
            if text in gone or f"iter_{text:0>7}" in gone:
                publish_text(folder / name, str(good.step) if text.isdecimal() else good.path.name)


def _record(seal: Seal) -> None:
    """Make this the newest durable step of the run, unless a newer launch has taken over (`ckpt.fence`)."""
    directory, launch = os.environ.get(paths.CHECKPOINT_DIR), f"{os.environ.get(paths.ATTEMPT)}.{paths.own_launch()}"
    if directory and not newer_than(Path(directory), launch):
        told = {"step": seal.step, "path": str(seal.path), "seal": str(seal_path(seal.path))}
        with contextlib.suppress(OSError):
            make_private(Path(directory))
            publish_text(Path(directory) / SEALED, json.dumps(told) + "\n")

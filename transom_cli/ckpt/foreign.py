"""Checkpoints of a trainer that is not changed: `checkpoint.foreign.pattern` names them. No torch.

    python -m transom_cli.ckpt.foreign PATTERN -- COMMAND      set aside what is not whole, then become COMMAND

While a launch trains, its launcher seals each checkpoint once it is complete (`ForeignSealer`): written during this
launch, unchanged for a while, open in no process of this host, and whole as far as its format shows (torch.save's
archive, safetensors, DCP's and Hugging Face's last file). What a killed rank left behind is never sealed.

Before the next launch, the newest checkpoint is verified, in the process that becomes srun, so that the launcher's loop
continues meanwhile. If it is damaged, or was left half-written, it is renamed; the trainer then finds the one before.
"""

import contextlib
import os
import re
import signal
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import NoCheckpointRestores, describe
from transom_cli.ckpt.inventory import check_bytes
from transom_cli.ckpt.names import SEAL, step_of
from transom_cli.ckpt.seal import read_seal, seal

STILL = 10.0  # seconds for which nothing of a complete checkpoint has changed
EVERY = 5.0  # seconds between two looks
_NUMBER = re.compile(r"\d+")
_ASIDE = re.compile(r".*\.(?:bad|unsealed)-\d+")
_IN_FOLDER = {"__0_0.distcp": ".metadata", "optimizer.pt": "trainer_state.json"}  # a first file, and the last one


def matching(pattern: str) -> list[tuple[int, Path]]:
    """Return (step, path) of what the pattern matches, newest first. The step is the last number in the name."""
    found = []
    for name in glob(os.path.abspath(pattern)):  # noqa: PTH100, PTH207 - Path.glob takes no absolute pattern
        path = Path(name)
        if _ASIDE.fullmatch(path.name) or path.name == SEAL:
            continue
        numbers = _NUMBER.findall(path.stem if path.is_file() else path.name)
        step = step_of(path.name)
        found.append((step if step is not None else int(numbers[-1]) if numbers else 0, path))
    return sorted(found, reverse=True)


def changed_at(checkpoint: Path) -> float:
    """When a checkpoint was last changed, by its file system's clock. Raises OSError."""
    return max(path.stat().st_mtime for path in [checkpoint, *_parts(checkpoint)])


def _parts(checkpoint: Path) -> Iterator[Path]:
    if checkpoint.is_dir():
        yield from (path for path in checkpoint.rglob("*") if path.name != SEAL)


def looks_whole(checkpoint: Path) -> bool:
    """Whether no file is visibly cut off. Only formats that show it are judged. Raises OSError."""
    if not checkpoint.is_dir():
        return _file_whole(checkpoint)
    if any((checkpoint / first).exists() and not (checkpoint / last).exists() for first, last in _IN_FOLDER.items()):
        return False
    return all(_file_whole(path) for path in _parts(checkpoint) if path.is_file())


def _file_whole(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK\x03\x04"):
        return zipfile.is_zipfile(path)  # its directory is at the end
    if path.suffix == ".safetensors":
        return len(head) == 8 and 8 + int.from_bytes(head, "little") < size
    return size > 0


def opened_here(checkpoint: Path) -> bool:
    """Whether a process of ours on this host has one of the files open."""
    names = {str(checkpoint), *map(str, _parts(checkpoint))}
    for link in glob("/proc/[0-9]*/fd/*"):  # noqa: PTH207
        with contextlib.suppress(OSError):
            if os.readlink(link) in names:  # noqa: PTH115
                return True
    return False


class ForeignSealer:
    """Seals complete checkpoints while a launch trains. since: when the launch began, by the file system's clock."""

    def __init__(self, pattern: str, say: Callable[[str], None], *, still: float = STILL) -> None:
        self._pattern, self._say, self._still = pattern, say, still
        self._since = float("inf")
        self._seen: dict[Path, tuple[float, int]] = {}  # when it was last changed, and for how many looks that is so
        self._stop = threading.Event()
        self._failed = ""

    def begin(self, since: float) -> None:
        """A launch begins. What an earlier one wrote last may be half-written: it is not sealed any more."""
        first, self._since = self._since == float("inf"), since
        self._seen = {}
        if first:
            threading.Thread(target=self._run, name="transom-foreign", daemon=True).start()

    def pause(self) -> None:
        """The launch is being ended: its writers may die at any moment."""
        self._since, self._seen = float("inf"), {}

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(min(EVERY, self._still)):
            try:
                self.look()
            except OSError as error:
                if describe(error) != self._failed:
                    self._failed = describe(error)
                    self._say(f"transom: checkpoints of `{self._pattern}` cannot be sealed: {self._failed}")

    def look(self) -> None:
        """Seal what is complete. Raises OSError."""
        for step, path in matching(self._pattern):
            since, changed = self._since, changed_at(path)
            if changed < since:
                continue
            known = read_seal(path)
            if known is not None and known.sealed >= changed:
                continue
            before, looks = self._seen.get(path, (0.0, 0))
            looks = looks + 1 if before == changed else 0
            self._seen[path] = (changed, looks)
            if looks * min(EVERY, self._still) < self._still or opened_here(path) or not looks_whole(path):
                continue
            if self._since == since:  # the launch still trains
                seal(path, step)


def prepare(pattern: str, since: float, say: Callable[[str], None]) -> None:
    """Before a launch: rename the newest checkpoints until one is whole.

    A checkpoint without a seal is half-written if this run wrote it and has sealed others; before that, nothing is
    known about it, and it is left to the trainer.

    Args:
        since: when the run was created, by the file system's clock.

    Raises:
        NoCheckpointRestores: all sealed checkpoints are damaged.
        OSError: a checkpoint cannot be read or renamed.
    """
    found = matching(pattern)
    some_sealed = any(read_seal(path) is not None for _, path in found)
    passed: list[str] = []
    for _, path in found:
        known = read_seal(path)
        if known is None:
            ours = changed_at(path) > since
            if not ours or (looks_whole(path) and not some_sealed):
                return
            kind, why = "unsealed", "the training ended before it was known to be complete"
        else:
            reasons = check_bytes(known.base, known.files)
            if not reasons:
                return
            kind, why = "bad", reasons[0]
        moved = files.set_aside(path, kind)
        passed.append(f"{path}: {why}; renamed to {moved.name}")
        say(f"transom: {path} is not used ({why}); it was renamed to {moved.name}")
    if some_sealed:
        raise NoCheckpointRestores(
            f"No checkpoint of `{pattern}` is whole",
            "\n".join(passed),
            "rename one that you trust back; to start from the beginning, give the trainer another folder",
        )


def main(words: list[str]) -> int:
    """Verify, then become the command after `--`."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # Slurm's warning is for the ranks, which do not run yet
        signal.signal(number, signal.SIG_IGN)
    pattern, since, _, *command = words
    try:
        prepare(pattern, float(since), lambda line: print(line, file=sys.stderr, flush=True))
    except NoCheckpointRestores as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:  # the trainer may do better
        print(f"transom: checkpoints of `{pattern}` are not verified: {describe(error)}", file=sys.stderr, flush=True)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A written checkpoint becomes one that readers see: manifest last, rename, and the old ones go. No torch.

Order on disk: data files, fsync, manifest, fsync, rename, fsync of the parent. A crash at any point leaves the
checkpoints before it untouched, and a working directory that no reader looks at. A writer whose attempt was replaced
cannot harm its successor: it writes under its own name, a step that is there and good is never replaced, and once a
newer launch has started it publishes nothing more (ckpt.fence).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.inventory import Candidate, verify
from transom_cli.ckpt.manifest import Manifest, encode
from transom_cli.ckpt.names import MANIFEST, step_name
from transom_cli.ckpt.retention import Retention
from transom_cli.errors import TransomError


def publish(directory: Path, work: Path, manifest: Manifest, attempt: str, retention: Retention) -> None:
    """`work` holds the files that `manifest` names, durable each. Raises OSError and TakenOver."""
    files.write_new(work / MANIFEST, encode(manifest))
    final = directory / step_name(manifest.step)
    taken = final.exists()
    if taken and verify(Candidate(manifest.step, final)).good:
        files.delete_tree(work)  # an earlier attempt published this very step
        return
    fence.check(directory, attempt)
    if taken:
        files.set_aside(final)
    files.publish(work, final)
    retention.trust(manifest)


def tidy(directory: Path, published: int, attempt: str, retention: Retention, say: Callable[[str], None]) -> None:
    """Remove the checkpoints that need not be kept any more: a GiB takes the file system tenths of a second."""
    try:
        fence.check(directory, attempt)
        retention.apply(published, secrets.token_hex(4))
    except (OSError, TakenOver) as error:  # the new checkpoint is there all the same
        say(f"old checkpoints could not be removed: {words(error)}")


def words(error: BaseException) -> str:
    """One line for an exception."""
    if isinstance(error, TransomError):
        return error.what
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

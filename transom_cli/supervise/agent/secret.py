"""The run's secret: what lets a launcher and its agents know one another (see `wire`).

It lives in one file that its owner alone can read: never on a command line, where every user of a node sees it, and
never in an environment, which the trainer and all its children would inherit. The trainer runs as the same user, so
the secret protects against other users and other hosts, not against the trainer itself.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError
from transom_cli.files import fsync_dir
from transom_cli.supervise.agent.wire import SECRET_BYTES

_CONTENT = re.compile(rb"[0-9a-f]{%d}\n" % (2 * SECRET_BYTES))


def make(path: Path) -> None:
    """Make a new secret at ``path``: 32 random bytes as hex, mode 0600. One that is there already stays.

    Written whole under a temporary name and then linked, since a half-written one, left by a crash, would stay too.
    OSError when it cannot be written; then there is none.
    """
    if os.path.lexists(path):
        return
    temporary = path.parent / f".{path.name}.{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask or a folder's default rights say
            file.write(os.urandom(SECRET_BYTES).hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another one was sooner: theirs is the secret
        except OSError:  # a file system without hard links; a run has one launcher at a time
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)


def read(path: Path) -> bytes:
    """The 32 bytes. NotPermitted when others could know or change them, TransomError when they are not all there."""
    again = f"rm {shlex.quote(str(path))}   # the next start of the job makes a new one"
    what = f"The secret of the run in {path} cannot be used"
    try:
        # non-blocking, so that a pipe of that name holds nobody up
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPermitted(what, "it is a symbolic link", again) from error
        raise TransomError(what, f"{error.strerror}", f"ls -l {shlex.quote(str(path))}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPermitted(what, "it is not a regular file", again)
        if found.st_uid != os.geteuid():
            raise NotPermitted(what, f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}", again)
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise NotPermitted(what, f"mode {mode:04o}: others can read or write it, so it is no secret", again)
        content = os.read(descriptor, 2 * SECRET_BYTES + 2)
    except OSError as error:
        raise TransomError(what, f"{error.strerror}", f"ls -l {shlex.quote(str(path))}") from error
    finally:
        os.close(descriptor)
    if not _CONTENT.fullmatch(content):
        raise TransomError(what, f"it does not hold {2 * SECRET_BYTES} hexadecimal digits and a line end", again)
    return bytes.fromhex(content.decode())

"""The run's secret, by which its processes authenticate one another (see `wire`).

It is in a file that only its owner can read: never on a command line, which every user of a node can see, and never in
the environment, which the trainer and all its children would inherit. The trainer runs as the same user, so the secret
protects against other users and other hosts, not against the trainer.
"""

import errno
import os
import re
import shlex
import stat
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError
from transom_cli.files import fsync_dir
from transom_cli.rpc.wire import SECRET_BYTES

_CONTENT = re.compile(rb"[0-9a-f]{%d}\n" % (2 * SECRET_BYTES))


def make(path: Path) -> None:
    """Create a secret at ``path``: 32 random bytes as hex, mode 0600. An existing one is kept.

    It is written under a temporary name and then linked: a crash must not leave a truncated one. Raises OSError.
    """
    if os.path.lexists(path):
        return
    temporary = path.parent / f".{path.name}.{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # regardless of the umask and of default ACLs
            file.write(os.urandom(SECRET_BYTES).hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another process was faster: use its secret
        except OSError:  # no hard links on this file system; a run has one launcher at a time
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)


def read(path: Path) -> bytes:
    """Return the 32 bytes. Raises NotPermitted if others could read or change them, TransomError if incomplete."""
    again = f"rm {shlex.quote(str(path))}   # the next start of the job creates a new one"
    what = f"The run's secret in {path} cannot be used"
    try:
        # non-blocking, so that a pipe of that name does not block
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
            raise NotPermitted(what, f"mode {mode:04o}: others can read or write it", again)
        content = os.read(descriptor, 2 * SECRET_BYTES + 2)
    except OSError as error:
        raise TransomError(what, f"{error.strerror}", f"ls -l {shlex.quote(str(path))}") from error
    finally:
        os.close(descriptor)
    if not _CONTENT.fullmatch(content):
        raise TransomError(what, f"it does not contain {2 * SECRET_BYTES} hexadecimal digits and a newline", again)
    return bytes.fromhex(content.decode())

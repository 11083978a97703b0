"""A wall clock that jumps, on one or all hosts of the sandbox, for runs that were started with `clock_env`.

The kernel cannot give some processes their own wall clock (time namespaces cover only other clocks), and the machine's
clock is shared. So a small library is preloaded into the Python processes of a run (clock.c). libfaketime would do the
same, but in 0.9.10 every `time.sleep` of Python fails if the monotonic clock is left alone.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.sandbox.cluster import Sandbox

LOGIN = "login"  # the host without ranks: operator and commands
_OFFSET = struct.Struct("=q")  # nanoseconds
_FARTHEST = 10 * 365 * 86400.0


def clock_env(sb: Sandbox) -> dict[str, str]:
    """Return the environment with which `jump_clock` affects a run: operator, launcher, agents and ranks.

    Builds the library at the first call. Raises NotPermitted if there is no C compiler.
    """
    library = _library(sb)
    folder = _folder(sb)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for host in hosts(sb):
        path = folder / host
        if not path.exists():
            path.write_bytes(_OFFSET.pack(0))
    preloaded = [str(library), *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {"LD_PRELOAD": ":".join(dict.fromkeys(preloaded)), "TRANSOM_SANDBOX_CLOCKS": str(folder)}


def jump_clock(sb: Sandbox, seconds: float, host: str = "") -> None:
    """Make the wall clock of `host` ("": all hosts) jump by `seconds`; negative values jump back."""
    if host and host not in hosts(sb):
        raise UsageError(f"The sandbox has no host {host!r}", f"its hosts: {', '.join(hosts(sb))}")
    if not abs(seconds) <= _FARTHEST:
        raise UsageError(f"A clock can jump by at most ten years, not by {seconds} s")
    clock_env(sb)
    for name in [host] if host else hosts(sb):
        _set(_folder(sb) / name, offsets(sb)[name] + seconds)


def reset_clock(sb: Sandbox, host: str = "") -> None:
    """Undo `jump_clock`: the clock is right again."""
    for name in offsets(sb):
        if host in ("", name):
            _set(_folder(sb) / name, 0.0)


def offsets(sb: Sandbox) -> dict[str, float]:
    """Return by host how many seconds its clock is wrong."""
    found = {}
    for host in hosts(sb):
        path = _folder(sb) / host
        if path.exists():
            found[host] = _OFFSET.unpack(path.read_bytes())[0] / 1e9
    return found


def hosts(sb: Sandbox) -> tuple[str, ...]:
    return (LOGIN, *sb.node_names)


def _set(path: Path, seconds: float) -> None:
    """Write in place: processes have mapped the file. Eight aligned bytes are written atomically."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, _OFFSET.pack(round(seconds * 1e9)), 0)
    finally:
        os.close(fd)


def _folder(sb: Sandbox) -> Path:
    return sb.dir / "clocks"


def _library(sb: Sandbox) -> Path:
    library = sb.dir / "clocks.so"
    if library.exists():
        return library
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NotPermitted(
            "A clock that can jump needs a C compiler",
            "it is a small C library, and no compiler was found (cc, gcc, clang)",
            "sudo apt-get install --no-install-recommends gcc libc6-dev",
        )
    fresh = library.with_name(f".clocks.{os.getpid()}.so")
    source = Path(__file__).with_name("clock.c")
    argv = [compiler, "-O2", "-shared", "-fPIC", "-o", str(fresh), str(source), "-ldl"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        hint = "install the C library's headers (Debian, Ubuntu: libc6-dev)"
        raise TransomError("The library for a clock that can jump does not compile", done.stderr.strip()[-500:], hint)
    fresh.chmod(0o755)
    fresh.rename(library)
    return library

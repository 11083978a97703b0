"""Start transom's own Python processes so that no code that others planted runs in them.

    python -I .../transom_cli/start.py [--all-paths] MODULE WORDS...

Every such process is started with a command line from `own` or `installed`. Isolated mode (-I, in every Python) keeps
the current directory and PYTHONPATH off `sys.path` from the first import on. `main` then adds what belongs there: the
user's own packages, and the entries of PYTHONPATH that nobody else can change. The environment stays as it is: trainers
inherit it, and their interpreters behave as without transom.

This file also runs on the interpreters of the probe, of pyslurm and of containers: it uses the standard library alone.
"""
# pathlib would add to the start-up time of every process
# ruff: noqa: PTH110, PTH115, PTH116, PTH117, PTH118, PTH120

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = os.path.dirname(os.path.realpath(__file__))
_NAME = "transom_cli"
_ALL_PATHS = "--all-paths"
_MOST_LINKS = 40  # as the kernel has it
_VERSION = '__version__ = "'
_INSTALLED = f"import site; site.addsitedir(site.getusersitepackages()); from {_NAME}.start import main; main()"


def own(module: str, *words: str, python: Sequence[str] = (), all_paths: bool = False) -> list[str]:
    """Return the command line that starts a module, for hosts that see this very package.

    Args:
        module: its name, or the absolute path of a Python file.
        words: its arguments.
        python: the interpreter and its options; default: the one that runs this.
        all_paths: keep every absolute entry of PYTHONPATH, for a program that starts trainers.
    """
    more = [_ALL_PATHS] if all_paths else []
    return [*(python or (sys.executable,)), "-I", f"{_PACKAGE}/start.py", *more, module, *words]


def installed(python: str, module: str, *words: str) -> list[str]:
    """Return the command line that starts a module of the transom that is installed for another interpreter."""
    if python == sys.executable:
        return own(module, *words)
    return [python, "-I", "-c", _INSTALLED, module, *words]


def _installation() -> tuple[int, int, str]:
    """What an upgrade changes: the package's first file, and the version in it."""
    try:
        with open(f"{_PACKAGE}/__init__.py", encoding="utf-8") as file:  # noqa: PTH123
            about = os.fstat(file.fileno())
            return about.st_ino, about.st_mtime_ns, file.read().partition(_VERSION)[2].partition('"')[0]
    except OSError:
        return 0, 0, ""


_STARTED = _installation()


def upgraded() -> str:
    """Say that transom was upgraded since this process started, so that a module may not fit the others; else ""."""
    now = _installation()
    if now == _STARTED:
        return ""
    return f"transom was upgraded while this process ran (version {_STARTED[2]} before, {now[2] or 'incomplete'} now)"


def main() -> None:
    """Run the module that the command line names as `__main__`."""
    all_paths = sys.argv[1] == _ALL_PATHS
    sys.argv = sys.argv[2 if all_paths else 1 :]
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    kept = [entry for entry in entries if all_paths or ours_alone(entry)]
    _add_user_site()
    sys.path[:0] = kept
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):  # -I makes Python ignore it
        sys.dont_write_bytecode = True
    try:
        _run(sys.argv[0])
    except ImportError as error:
        if words := upgraded():
            sys.stderr.write(f"transom: {words}: {error}\ntransom: start it again; docs/upgrading.md says how\n")
            sys.exit(1)
        left_out = [entry for entry in entries if entry not in kept and os.path.exists(entry)]
        if left_out:
            sys.stderr.write(
                f"transom: entries of PYTHONPATH are not searched for modules: {os.pathsep.join(left_out)}\n"
                "Other users can change these folders or one above them. To use them, take the write permission for "
                "group and others away, or install the packages where transom is installed.\n"
            )
        raise


def ours_alone(path: str) -> bool:
    """Whether nobody but this user and root can change what is at the path, or put something else there.

    Every folder and link on the way counts. The owner of this interpreter's environment may: that account can change
    all code of this process anyway.
    """
    try:
        owners = {0, os.geteuid(), os.stat(sys.prefix).st_uid}
        here, rest, links = "/", _parts(path), 0
        while True:
            found = os.lstat(here)
            if found.st_uid not in owners:
                return False
            if stat.S_ISLNK(found.st_mode):
                target, links = os.readlink(here), links + 1
                if links > _MOST_LINKS:
                    return False
                here = "/" if target.startswith("/") else os.path.dirname(here)
                rest += _parts(target)
                continue
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (rest and found.st_mode & stat.S_ISVTX):
                return False  # in a sticky folder, others cannot rename or remove what is not theirs
            if not rest:
                return True
            here = os.path.normpath(os.path.join(here, rest.pop()))  # no link in it: `..` is where it seems
    except OSError:
        return False


def _parts(path: str) -> list[str]:
    """Names on the way, the last one first."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]


def _add_user_site() -> None:
    """Add the user's own site-packages, which -I leaves out, where Python would have them."""
    import site

    alone = sys.prefix != sys.base_prefix and sys.base_prefix not in site.PREFIXES  # a venv without the system's
    other = os.getuid() != os.geteuid() or os.getgid() != os.getegid()
    if alone or other or os.environ.get("PYTHONNOUSERSITE"):
        return
    before = len(sys.path)
    site.addsitedir(site.getusersitepackages())
    added = sys.path[before:]
    del sys.path[before:]
    systems = site.getsitepackages()
    at = next((i for i, path in enumerate(sys.path) if path in systems), before)
    sys.path[at:at] = added


def _run(module: str) -> None:
    import runpy

    if os.path.isabs(module):
        runpy.run_path(module, run_name="__main__")
        return
    if module.split(".")[0] == _NAME and _NAME not in sys.modules:
        # this very package, also where the interpreter finds none or another one
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(_NAME, f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE])
        assert spec is not None and spec.loader is not None
        sys.modules[_NAME] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_NAME])
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""Make programs of one release run on a machine of another, from any folder: no chroot, no mount, no root.

Each is given the full path of its own loader and of its own libraries (ELF interpreter and DT_RPATH, by patchelf).
Unlike LD_LIBRARY_PATH that ends with the program itself: what a Slurm job runs is the machine's own again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.sandbox.release.building import Building

_HOLDING_PROGRAMS = ("usr/bin", "usr/sbin", "usr/libexec", "usr/lib/gcc")
_ELF = b"\x7fELF"
_LOADERS = b"/lib64/ld-linux", b"/lib/ld-linux"


def relocate(building: Building, root: Path, plugins: Path) -> None:
    """`plugins` lies beside the libraries of the release, and holds libslurmfull.so."""
    libraries = plugins.parent
    loader = next(libraries.glob("ld-linux*.so.*"), None)
    if loader is None:
        raise TransomError("The packages hold no loader as it is known", f"no ld-linux*.so.* in {libraries}")
    tool = root / "usr" / "bin" / "patchelf"
    patchelf = [str(loader), "--library-path", str(libraries), str(tool)]
    for program in _programs(root):
        if program == tool:
            continue
        # In two goes, the path of the libraries first: patchelf 0.18 writes a Python that crashes else.
        building.run([*patchelf, "--force-rpath", "--set-rpath", f"{libraries}:{plugins}", str(program)])
        building.run([*patchelf, "--set-interpreter", str(loader), str(program)])


def _programs(root: Path) -> Iterator[Path]:
    """Dynamically linked programs; by their first kilobytes, where the loader's path stands."""
    for folder in _HOLDING_PROGRAMS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_symlink() or not path.is_file() or not path.stat().st_mode & 0o100:
                continue
            with path.open("rb") as file:
                head = file.read(4096)
            if head.startswith(_ELF) and any(name in head for name in _LOADERS):
                yield path

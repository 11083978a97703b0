"""A Python of the release with pyslurm and what transom itself needs: the host's cannot load the release's libraries.

pyslurm names its version after Slurm's and refuses to build beside another, by the text of slurm_version.h. The release
before the newest builds against it all the same, with the names that changed given back on the compiler's command line.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.sandbox.release.building import Building
from transom_cli.sandbox.release.known import ReleaseHome

_CFLAGS = (
    "-w",
    "-DSLURM_BACKWARD_COMPAT",  # Slurm's own switch: job ids as plain numbers
    "-Dslurm_free_ctl_conf=slurm_free_conf",
    "-DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2007",
)


def build(building: Building, home: ReleaseHome, plugins: Path, version: str) -> None:
    """Make `home.python`. Takes a minute; fetches from the Python package index that pip is set to."""
    usr = home.root / "usr"
    venv = home.python.parent.parent
    pip_wheel = next((usr / "share" / "python-wheels").glob("pip-*.whl"), None)
    if pip_wheel is None:
        raise TransomError("The packages hold no pip", f"no pip-*.whl in {usr}/share/python-wheels")
    building.run([str(usr / "bin" / "python3"), "-m", "venv", "--without-pip", str(venv)])
    pip = [str(home.python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-input"]
    building.run([*pip, "--no-index", "--no-deps", str(pip_wheel)], {"PYTHONPATH": str(pip_wheel)})
    requirements = [text for text in importlib.metadata.requires("transom-cli") or () if "extra ==" not in text]
    building.run([*pip, *requirements])
    env = {
        "PATH": f"{usr / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "CC": f"gcc --sysroot={home.root}",
        "CFLAGS": " ".join(_CFLAGS),
        "LDFLAGS": f"--sysroot={home.root}",
        "SLURM_INCLUDE_DIR": str(_headers(building.scratch / "include", usr / "include" / "slurm", version)),
        "SLURM_LIB_DIR": str(plugins),
    }
    building.run([*pip, "--no-binary", "pyslurm", f"pyslurm=={version}"], env)
    building.run([str(home.python), "-c", "import pyslurm"], {"PYSLURM_DISABLE_AUTO_INIT": "1"})


def _headers(into: Path, real: Path, version: str) -> Path:
    """Slurm's headers, with pyslurm's version where its setup looks for it and the compiler does not."""
    (into / "slurm").mkdir(parents=True)
    for header in real.glob("*.h"):
        if header.name != "slurm_version.h":
            (into / "slurm" / header.name).symlink_to(header)
    major, minor, micro = (int(part) for part in version.split("."))
    told = f"#if 0\n#define SLURM_VERSION_NUMBER 0x{major:02x}{minor:02x}{micro:02x}\n#endif\n"
    (into / "slurm" / "slurm_version.h").write_text((real / "slurm_version.h").read_text() + told)
    return into

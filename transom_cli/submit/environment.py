"""What the job of a user's own script finds in its environment, and what it must not inherit. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

import transom_cli
from transom_cli.errors import UsageError
from transom_cli.layout import RunDir

_SBATCH = "SBATCH_"
_NAMED = {"time": "TIMELIMIT", "switches": "REQ_SWITCH"}  # options whose variables have other names
_INSTALLED = ("site-packages", "dist-packages")


def script_environment(
    run_dir: Path,
    auto_beat: bool,
    environ: Mapping[str, str],
    *,
    checkpoints: Path | None = None,
    package: Path | None = None,
) -> dict[str, str]:
    """Variables to add for a user's script. ``package`` is transom_cli's folder (default: this one), ``checkpoints``
    the setting of that name (default: the run directory's own folder).

    With ``auto_beat`` the folder of the automatic hook stands first in PYTHONPATH, so that every Python of the job,
    whichever it is, loads it. A source checkout's folder comes last, where it can hide nothing; a site-packages folder
    is never added: it would press this environment's packages on another Python. The hook finds the beats by its path.
    """
    added = {
        "TRANSOM_RUN_DIR": str(run_dir),
        "TRANSOM_CHECKPOINT_DIR": str(checkpoints or RunDir(run_dir).checkpoints),
    }
    if auto_beat:
        package = package or Path(transom_cli.__file__).resolve().parent
        before = package / "beats" / "auto"
        after = [] if package.parent.name in _INSTALLED else [str(package.parent)]
        theirs = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        added["PYTHONPATH"] = os.pathsep.join(_join([str(before), *theirs, *after]))
    return added


def refuse_caller(environ: Mapping[str, str]) -> None:
    """UsageError when a variable of sbatch's own makes a job array of whatever is submitted."""
    if environ.get("SBATCH_ARRAY_INX"):
        raise UsageError(
            "job arrays by a variable are not supported",
            why=f"SBATCH_ARRAY_INX={environ['SBATCH_ARRAY_INX']} is set, which makes one of every job",
            hint="unset SBATCH_ARRAY_INX; in a script of your own `#SBATCH --array=0-7` makes each element a run",
        )


def sbatch_variables(environ: Mapping[str, str], answered: Iterable[str] = ()) -> dict[str, str]:
    """The caller's own SBATCH_* variables, which are kept with a run: whichever operator submits a job in the place of
    the first one, from whichever shell, asks Slurm for the same.

    answered: options that a rendered script gives itself; sbatch would believe a variable rather than the script.
    """
    out = {f"SBATCH_{_NAMED.get(name, name.upper().replace('-', '_'))}" for name in answered}
    return {k: v for k, v in sorted(environ.items()) if k.startswith(_SBATCH) and k not in out}


def as_frozen(environ: MutableMapping[str, str], frozen: Mapping[str, str]) -> None:
    """Give this process those SBATCH_* variables and no others."""
    for name in [name for name in environ if name.startswith(_SBATCH)]:
        del environ[name]
    environ.update(frozen)


def _join(entries: list[str]) -> list[str]:
    ours = (entries[0], entries[-1])
    broken = next((entry for entry in ours if os.pathsep in entry), None)
    if broken is not None:
        raise UsageError(
            f"PYTHONPATH cannot carry {broken}",
            why=f"the folder's name holds `{os.pathsep}`, which separates the entries there",
            hint="install transom in another folder, or switch automatic beats off (TRANSOM_AUTO_BEAT=false)",
        )
    return list(dict.fromkeys(entries))

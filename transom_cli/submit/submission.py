"""How a run's job is submitted: its environment, and the record from which a successor is submitted in the same way."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import transom_cli
from transom_cli.config.run_settings import read_run_file
from transom_cli.errors import TransomError, UsageError
from transom_cli.files import publish_text
from transom_cli.inherited import TUNABLES, with_streaming_copies
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Submission

NEW_RUN = "start a new run (`transom run`); the checkpoints of this one are kept"
_SBATCH = "SBATCH_"
_VARIABLE_NAMES = {"time": "TIMELIMIT", "switches": "REQ_SWITCH"}  # options whose variables have other names
_OF_SESSION = re.compile(
    r"(SLURM|SBATCH|TRANSOM|SSH|XDG|DBUS|TERM|TMUX|VSCODE|HIST|LESS|GPG|SUDO|LC|BASH_FUNC).*|_|LANG|PWD|OLDPWD|SHLVL|"
    r"HOSTNAME|LINES|COLUMNS|PS\d|PROMPT_COMMAND|MAIL|LS_COLORS|DISPLAY|XAUTHORITY|KRB5CCNAME|STY|WINDOW(ID)?|"
    r"INVOCATION_ID|JOURNAL_STREAM|PYTHONDONTWRITEBYTECODE"
)
"""Variables that differ between sessions and mean nothing to a training."""
_INSTALLED = ("site-packages", "dist-packages")


def script_environment(
    run_dir: Path,
    auto_beat: bool,
    environ: Mapping[str, str],
    *,
    checkpoints: Path | None = None,
    package: Path | None = None,
) -> dict[str, str]:
    """Return the variables to add for a user's own script.

    With `auto_beat`, the folder of the automatic heartbeat hook comes first in PYTHONPATH, so that every Python of the
    job loads it. A source checkout's folder comes last, where it can hide nothing. A site-packages folder is never
    added, since it would impose this environment's packages on another Python. The hook finds the heartbeat modules by
    its own path.

    Args:
        checkpoints: the setting of that name (default: the run directory's own folder).
        package: transom_cli's folder (default: this one).
    """
    added = {
        "TRANSOM_RUN_DIR": str(run_dir),
        "TRANSOM_CHECKPOINT_DIR": str(checkpoints or RunDir(run_dir).checkpoints),
        TUNABLES: with_streaming_copies(environ),
    }
    path = environ.get("PATH")
    if path and shutil.which("transom", path=path) is None:  # for `transom launch` in the script
        added["PATH"] = f"{path}{os.pathsep}{Path(sys.executable).parent}"
    if auto_beat:
        package = package or Path(transom_cli.__file__).resolve().parent
        hook = package / "heartbeat" / "auto"
        checkout = [] if package.parent.name in _INSTALLED else [str(package.parent)]
        inherited = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        added["PYTHONPATH"] = os.pathsep.join(_unique_entries([str(hook), *inherited, *checkout]))
    return added


def refuse_caller(environ: Mapping[str, str]) -> None:
    """Raise UsageError if one of sbatch's variables turns every submission into a job array."""
    if environ.get("SBATCH_ARRAY_INX"):
        raise UsageError(
            "SBATCH_ARRAY_INX is not supported",
            why=f"SBATCH_ARRAY_INX={environ['SBATCH_ARRAY_INX']} is set, which turns every job into a job array",
            hint="unset SBATCH_ARRAY_INX; with `#SBATCH --array=0-7` in your own script, each element becomes a run",
        )


def sbatch_variables(environ: Mapping[str, str], given: Iterable[str] = ()) -> dict[str, str]:
    """Return the caller's SBATCH_* variables, to be kept with the run.

    Any operator then submits a successor with the same variables, regardless of the shell it was started from.

    Args:
        given: options that a rendered script sets itself; sbatch would prefer a variable to the script.
    """
    out = {f"SBATCH_{_VARIABLE_NAMES.get(name, name.upper().replace('-', '_'))}" for name in given}
    return {k: v for k, v in sorted(environ.items()) if k.startswith(_SBATCH) and k not in out}


def replace_sbatch_variables(environ: MutableMapping[str, str], kept: Mapping[str, str]) -> None:
    """Give this process the kept SBATCH_* variables and no others."""
    for name in [name for name in environ if name.startswith(_SBATCH)]:
        del environ[name]
    environ.update(kept)


def _unique_entries(entries: list[str]) -> list[str]:
    ours = (entries[0], entries[-1])
    broken = next((entry for entry in ours if os.pathsep in entry), None)
    if broken is not None:
        raise UsageError(
            f"PYTHONPATH cannot contain {broken}",
            why=f"the folder's name contains `{os.pathsep}`, which separates the entries of PYTHONPATH",
            hint="install transom in another folder, or turn automatic heartbeats off (TRANSOM_AUTO_BEAT=false)",
        )
    return list(dict.fromkeys(entries))


@dataclass(frozen=True)
class SubmissionRecord:
    """How a run's job is submitted: what sbatch gets in addition to the script in the run directory."""

    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    chdir: str = ""
    env: tuple[tuple[str, str], ...] = ()
    requested_cluster: str = ""  # `job.cluster`; "": the cluster that Slurm's commands use by default
    cluster: str = ""  # the name that the controller reported when the run was created
    # the SBATCH_* variables of the user who submitted; None: they were not kept
    sbatch: tuple[tuple[str, str], ...] | None = None
    observed: int = 0  # the job that the run observes, if transom did not submit it
    shell: tuple[tuple[str, str], ...] = ()  # `fingerprints` of the shell that started the run

    def save(self, run: RunDir) -> None:
        data = {**asdict(self), "env": dict(self.env), "sbatch": None if self.sbatch is None else dict(self.sbatch)}
        del data["shell"]
        data |= {"shell": dict(self.shell)} if self.shell else {}
        publish_text(run.submission, json.dumps(data, indent=1) + "\n", private=True)

    @classmethod
    def load(cls, run: RunDir) -> SubmissionRecord:
        text = read_run_file(run, run.submission)
        try:
            data = json.loads(text)
            clusters = data.get("requested_cluster", ""), data.get("cluster", "")
            words = tuple(data["options"]), tuple(data["args"]), data["chdir"], tuple(data["env"].items())
            kept = data.get("sbatch")
            sbatch = tuple(kept.items()) if kept is not None else None
            shell = tuple(data.get("shell", {}).items())
            return cls(*words, *clusters, sbatch, int(data.get("observed", 0)), shell)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TransomError(f"`{run.submission}` is damaged", f"{type(error).__name__}: {error}", NEW_RUN) from error

    def submission(self, run: RunDir) -> Submission:
        chdir = Path(self.chdir) if self.chdir else None
        return Submission(run.script, self.options, self.args, dict(self.env), chdir)


def fingerprints(environ: Mapping[str, str], salt: str) -> dict[str, str]:
    """Return a keyed hash of each variable that a training may read: enough to compare, and no secret is kept."""
    key = blake2b(salt.encode(), digest_size=32).digest()
    kept = {name: value for name, value in sorted(environ.items()) if not _OF_SESSION.fullmatch(name)}
    return {n: blake2b(os.fsencode(v), key=key, digest_size=8).hexdigest() for n, v in kept.items()}


def changed_variables(run: RunDir, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Say how `environ` differs from the shell that started the run; () also if that was not recorded."""
    before = dict(SubmissionRecord.load(run).shell)
    now = fingerprints(environ, run.run_id) if before else {}
    gone = (f"{name} is not set" for name in before if name not in now)
    other = (f"{name} is different" for name in before if now.get(name, before[name]) != before[name])
    return (*gone, *other, *(f"{name} is new" for name in now if name not in before))


def restore_submission_environment(run: RunDir) -> None:
    """Make this process use the SBATCH_* variables of the run's first submission, regardless of its shell."""
    kept = SubmissionRecord.load(run).sbatch
    if kept is not None:
        replace_sbatch_variables(os.environ, dict(kept))

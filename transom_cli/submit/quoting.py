"""Values into scripts: quoted for the shell, or for sbatch's own reading of #SBATCH lines. Pure.

sbatch does not read its lines as a shell would (tried on Slurm 22.05): quotes of both kinds group, a backslash takes
the next character as it is *also inside single quotes*, and an unquoted `#` starts a comment. So `shlex.quote` is wrong
there.
"""

from __future__ import annotations

import re
import shlex

from transom_cli.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+")


class Quoted(str):
    """Text that may stand in a script as it is. Templates print nothing else."""


def sh(value: object) -> Quoted:
    """For a line of shell. Anything but NUL can be carried, line breaks too."""
    return Quoted(shlex.quote(_text(value)))


def code(value: object) -> Quoted:
    """Shell that the user wrote as shell (``job.setup``)."""
    return Quoted(_text(value))


def directive(value: object) -> Quoted:
    """For an #SBATCH line. UsageError for what Slurm cannot carry there: line breaks and other control characters."""
    text = _text(value)
    bad = next((c for c in text if ord(c) < 32 or ord(c) == 127), None)
    if bad is not None:
        raise UsageError(
            f"Slurm cannot carry {text!r}",
            why=f"an #SBATCH line cannot hold the control character {bad!r}",
            hint="use another name or folder (--name, --root, --chdir)",
        )
    if _PLAIN.fullmatch(text):
        return Quoted(text)
    return Quoted('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


def output_pattern(folder: str, pattern: str) -> str:
    """A log file ``pattern`` (with its `%j`) in ``folder``, whose own percent signs Slurm must not replace.

    A backslash anywhere switches Slurm's `%j` off and is dropped from the name, so such a folder is refused.
    """
    if "\\" in folder:
        raise UsageError(
            f"Slurm cannot write logs into {folder!r}",
            why="a backslash in a log file's path switches off Slurm's %j",
            hint="choose a run directory without a backslash in its path (--root)",
        )
    return folder.replace("%", "%%") + "/" + pattern


def _text(value: object) -> str:
    text = str(value)
    if "\0" in text:
        raise UsageError(f"{text!r} holds a NUL character", hint="no script and no command line can carry one")
    return text

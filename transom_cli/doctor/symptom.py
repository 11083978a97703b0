"""What the doctor finds, and its judges of Slurm's commands, rights and the system's files. Pure."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transom_cli.plural import several, was


class Grade(str, enum.Enum):
    OK = "ok"
    NOTE = "note"  # something is missing, and transom works without it
    WARN = "warn"  # transom works, but may fail when it matters
    FAIL = "fail"  # transom cannot work


@dataclass(frozen=True)
class Symptom:
    """words: what was found. hint: what to do; "" if nothing."""

    about: str
    grade: Grade
    words: str
    hint: str = ""


def of_operators(runs: int, process: int | None) -> Symptom:
    """Judge the operator process of this user on this host. process: its ID; None: there is none."""
    if process is not None:
        return Symptom("operator", Grade.OK, f"process {process} operates {several(runs, 'run')} of yours on this host")
    if runs:
        words = (
            f"{several(runs, 'run')} of yours {was(runs, 'has', 'have')} no operator: its process on this host is gone"
        )
        return Symptom("operator", Grade.WARN, words, "start it again: transom attach")
    return Symptom("operator", Grade.OK, "no run of yours is operated on this host")


_WAYS = "docs/sites.md shows how a site can allow draining"


def of_pyslurm(works: str, why_not: str, detours: Mapping[str, str], wish: str = "") -> Symptom:
    """Judge whether the operator can use pyslurm.

    detours: by call, why it uses the command line anyway. wish: the setting that requests pyslurm, "" if none does.
    """
    if not works and not wish:
        return Symptom("pyslurm", Grade.NOTE, f"not used; transom runs Slurm's commands instead: {why_not}")
    if not works:
        words = f"requested by {wish}, but transom runs Slurm's commands instead: {why_not}"
        return Symptom("pyslurm", Grade.WARN, words, "correct or remove that setting: docs/slurm.md")
    lacks = "; ".join(f"{call}: {why}" for call, why in sorted(detours.items()))
    return Symptom("pyslurm", Grade.OK, f"{works}. These calls use Slurm's commands: {lacks}")


@dataclass(frozen=True)
class DrainWay:
    """A site's way to drain for users who may not. broken: why it does not work, "" if it seems to."""

    words: str
    broken: str = ""


def of_command(command: Sequence[str], there: bool) -> str:
    """Return why a site's command does not work, or ""."""
    if there:
        return ""
    if " " in command[0].strip():
        return f"`{command[0]}` is one word; write the command as a list of words, as in docs/sites.md"
    return f"`{command[0]}` does not exist here or is not executable"


def of_spool(mode: int, writable: bool) -> str:
    """Return why a folder for drain requests does not work, or "". mode: its permissions."""
    text = f"its mode is {mode:04o}"
    if not writable:
        return f"{text}, so you cannot put requests there; it should be 1777"
    if mode & 0o002 and not mode & 0o1000:
        return f"{text}, so anybody can remove others' requests; it should be 1777"
    return ""


def of_rights(user: str, uid: int, config: Mapping[str, str], admin: str, ways: Sequence[DrainWay] = ()) -> Symptom:
    """Judge who may drain nodes. admin: the user's AdminLevel in Slurm's accounting, "" if unknown."""
    slurm_user = config.get("SlurmUser", "").partition("(")[0]
    may = uid == 0 or user == slurm_user or admin.lower() == "administrator"
    if may:
        return Symptom("drain", Grade.OK, f"{user} may drain nodes")
    broken = [f"{way.words}: {way.broken}" for way in ways if way.broken]
    if broken:
        words = f"{user} may not drain nodes, and a way that the site provides does not work: {'; '.join(broken)}"
        return Symptom("drain", Grade.WARN, words, _WAYS)
    if ways:
        used = ", then ".join(way.words for way in ways)
        return Symptom("drain", Grade.OK, f"{user} may not drain nodes; transom drains bad nodes through {used}")
    words = f"{user} may not drain nodes (normal for users): transom excludes bad nodes from the run's own jobs instead"
    return Symptom("drain", Grade.NOTE, words, f"show an administrator the output of `transom nodes`; {_WAYS}")


def of_logout(kill: bool, excluded: Sequence[str], user: str, lingers: bool) -> Symptom:
    """Judge whether the operator survives a logout: KillUserProcesses in logind.conf(5) kills a session's processes.

    A scope of the user's own manager is not part of the session, and survives if the user lingers.
    """
    if not kill or user in excluded or user == "root":
        return Symptom("logout", Grade.OK, "processes survive a logout")
    words = "this machine kills a session's processes at logout (KillUserProcesses=yes), the operator included"
    linger = "" if lingers else f"loginctl enable-linger {user}; then "
    hint = f"{linger}transom service install --systemd, or systemd-run --user --scope transom run ..."
    return Symptom("logout", Grade.WARN, words, hint)


def logind(texts: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """Return KillUserProcesses and KillExcludeUsers from logind.conf and its drop-ins; later files win."""
    kill = False
    excluded: tuple[str, ...] = ("root",)
    for line in "\n".join(texts).splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if name == "KillUserProcesses":
            kill = value.lower() in ("yes", "true", "on", "1")
        elif name == "KillExcludeUsers":
            excluded = tuple(value.split())
    return kill, excluded


def of_cpu_limit(seconds: float) -> Symptom | None:
    """Judge RLIMIT_CPU, which sites set on login nodes. An operator takes at most about 1 s of CPU time a minute."""
    if seconds == float("inf"):
        return None
    words = f"processes here are killed after {seconds:.0f} s of CPU time, an operator after some days"
    grade = Grade.WARN if seconds < 3600 else Grade.NOTE
    hint = "`transom service install` starts a killed operator again; a launcher continues without one"
    return Symptom("cpu limit", grade, words, hint)


def of_versions(versions: Mapping[str, str]) -> Symptom:
    """Compare the versions that Slurm's commands report ("": none): another version may use another protocol."""
    kinds = sorted(set(versions.values()) - {""})
    if not kinds:
        return Symptom(
            "slurm",
            Grade.NOTE,
            "its commands exist, but report no version (they do not without a slurm.conf)",
        )
    if len(kinds) == 1:
        return Symptom("slurm", Grade.OK, kinds[0])
    found = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return Symptom("slurm", Grade.WARN, f"commands of different versions: {found}", "which -a sbatch squeue scontrol")

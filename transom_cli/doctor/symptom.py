"""What the doctor finds, and how the readings of Slurm's and the system's files are judged. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Grade(str, enum.Enum):
    OK = "ok"
    NOTE = "note"  # something is not there, and transom does without it
    WARN = "warn"  # it works, and will not when it matters
    FAIL = "fail"  # it cannot work


@dataclass(frozen=True)
class Symptom:
    """words: what was found. hint: what now; "" where there is nothing to do."""

    about: str
    grade: Grade
    words: str
    hint: str = ""


_WAYS = "what a site can do: docs/sites.md"
KILL_WAIT = 30  # seconds between TERM and KILL for which transom plans to save


def of_cluster(config: Mapping[str, str]) -> list[Symptom]:
    """Of `scontrol show config`: what a run's recovery depends on (slurm.conf(5))."""
    found = []
    if config.get("JobRequeue") == "0":
        hint = 'ask for it by `--requeue` in [job] sbatch, or set restart.how = "resubmit"'
        found.append(Symptom("requeue", Grade.WARN, "JobRequeue=0: jobs are not requeued unless they ask for it", hint))
    else:
        found.append(Symptom("requeue", Grade.OK, "jobs may be requeued"))
    wait = _seconds(config.get("KillWait", ""))
    if wait is not None and wait < KILL_WAIT:
        words = f"KillWait={wait}: so many seconds remain for a last checkpoint, where {KILL_WAIT} are planned with"
        found.append(Symptom("kill wait", Grade.WARN, words, "ask the site for KillWait=30, its default"))
    track = config.get("ProctrackType", "")
    if track and "cgroup" not in track:
        words = f"ProctrackType={track}: processes that leave their session may outlive their step"
        found.append(Symptom("stray processes", Grade.NOTE, words, "transom looks for them by itself"))
    if config.get("AccountingStorageType", "").rpartition("/")[2] in ("", "none", "(null)"):
        words = "there is no accounting: how former attempts ended is known from transom's own files alone"
        found.append(Symptom("accounting", Grade.NOTE, words))
    else:
        found.append(Symptom("accounting", Grade.OK, config["AccountingStorageType"].rpartition("/")[2]))
    return found


def of_pyslurm(works: str, why_not: str, detours: Mapping[str, str], wish: str = "") -> Symptom:
    """Whether the operator speaks to Slurm through pyslurm; by call, why one goes by the command line all the same.

    wish: the setting that asks for it in so many words.
    """
    if not works and not wish:
        return Symptom("pyslurm", Grade.NOTE, f"not used, Slurm's commands are: {why_not}")
    if not works:
        words = f"asked for by {wish}, and not used, Slurm's commands are: {why_not}"
        return Symptom("pyslurm", Grade.WARN, words, "correct that setting or take it out: docs/slurm.md")
    lacks = "; ".join(f"{call}: {why}" for call, why in sorted(detours.items()))
    return Symptom("pyslurm", Grade.OK, f"{works}. By the commands all the same: {lacks}")


@dataclass(frozen=True)
class DrainWay:
    """One way of the site's for those who may not drain, and what keeps it from working ("": nothing that is seen)."""

    words: str
    broken: str = ""


def of_command(command: Sequence[str], there: bool) -> str:
    """What keeps a site's command from working: "", where it is there."""
    if there:
        return ""
    if " " in command[0].strip():
        return f"`{command[0]}` is one word; a command is a list of words, as in docs/sites.md"
    return f"`{command[0]}` is not here, or not an executable file"


def of_spool(mode: int, writable: bool) -> str:
    """What keeps a folder for requests from working; "" where nothing does. mode: its permissions."""
    told = f"its mode is {mode:04o}"
    if not writable:
        return f"{told}, so that no request can be put there; it should be 1777"
    if mode & 0o002 and not mode & 0o1000:
        return f"{told}, so that anybody can take another's request out; it should be 1777"
    return ""


def of_rights(user: str, uid: int, config: Mapping[str, str], admin: str, ways: Sequence[DrainWay] = ()) -> Symptom:
    """Who may drain nodes. admin: the user's AdminLevel in the accounting, "" where that is not known."""
    slurm_user = config.get("SlurmUser", "").partition("(")[0]
    may = uid == 0 or user == slurm_user or admin.lower() == "administrator"
    if may:
        return Symptom("drain", Grade.OK, f"{user} may drain nodes")
    told = ", then ".join(way.words for way in ways)
    broken = [f"{way.words}: {way.broken}" for way in ways if way.broken]
    if broken:
        words = f"{user} may not drain nodes, and of the site's ways one is amiss: {'; '.join(broken)}"
        return Symptom("drain", Grade.WARN, words, _WAYS)
    if ways:
        return Symptom("drain", Grade.OK, f"{user} may not drain nodes; a bad one is drained by asking {told}")
    words = f"{user} may not drain nodes, as is usual: bad ones are excluded from the run's own jobs instead"
    return Symptom("drain", Grade.NOTE, words, f"`transom nodes` is what to show an administrator; {_WAYS}")


def of_logout(kill: bool, excluded: Sequence[str], user: str, lingers: bool) -> Symptom:
    """logind.conf(5): KillUserProcesses ends what is left of a session, the operator too. What runs in a scope of the
    user's own manager is not of the session, and outlives it where the user lingers.
    """
    if not kill or user in excluded or user == "root":
        return Symptom("logout", Grade.OK, "what is started here outlives the session")
    words = "this machine ends a session's processes at logout (KillUserProcesses=yes): the operator would go with them"
    linger = "" if lingers else f"loginctl enable-linger {user}; then "
    return Symptom("logout", Grade.WARN, words, f"{linger}systemd-run --user --scope transom run ...")


def logind(texts: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """KillUserProcesses and KillExcludeUsers of logind.conf and its drop-ins, the later ones stronger."""
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
    """RLIMIT_CPU, as sites set it on login nodes. An operator takes about a second a minute at most."""
    if seconds == float("inf"):
        return None
    words = f"a process gets {seconds:.0f} s of processor time here and is killed then: an operator for some days"
    grade = Grade.WARN if seconds < 3600 else Grade.NOTE
    hint = "transom attach goes on where a killed operator stopped; a launcher goes on without any"
    return Symptom("cpu limit", grade, words, hint)


def of_versions(versions: Mapping[str, str]) -> Symptom:
    """What each Slurm command says of itself ("": nothing): others than the controller's may speak another protocol."""
    kinds = sorted(set(versions.values()) - {""})
    if not kinds:
        return Symptom(
            "slurm",
            Grade.NOTE,
            "its commands are here; none tells its version (they do not where they find no slurm.conf)",
        )
    if len(kinds) == 1:
        return Symptom("slurm", Grade.OK, kinds[0])
    told = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return Symptom("slurm", Grade.WARN, f"commands of different versions: {told}", "which -a sbatch squeue scontrol")


def config_of(text: str) -> dict[str, str]:
    """`scontrol show config`: a line "Name = value" each."""
    pairs = (line.partition("=") for line in text.splitlines() if " = " in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _seconds(value: str) -> int | None:
    found = re.match(r"(\d+)\b", value)
    return int(found[1]) if found else None

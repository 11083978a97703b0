"""Site profiles: what is normal at real sites, as settings, files and users of a sandbox.

Profiles can be combined. A Site describes one; `why_not` says why this machine cannot have it. `add_accounts` and
`crowd` do what needs running daemons: accounts, and another user's waiting jobs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import SlurmUnreachable, TransomError, UsageError
from transom_cli.sandbox import network
from transom_cli.sandbox.tools import callers_path, find_tools
from transom_cli.start import own

if TYPE_CHECKING:
    from transom_cli.sandbox.cluster import Sandbox

PURGE_AFTER = "purge-after"  # file in the folder `site`: age in seconds at which files in `scratch` are removed
CROWD = 400  # waiting jobs of the second user, who gets a new crowd at every `heal`
CROWD_NICE, CROWD_S = 5000, (5, 35)  # seconds that such a job takes
_JOINED = {"JobSubmitPlugins", "PrivateData", "SchedulerParameters", "TaskPlugin"}  # settings that are lists
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("freezer", "cpuset")


def _nothing() -> str:
    return ""


@dataclass(frozen=True)
class Site:
    """One profile. `{dir}` in texts is the sandbox's folder.

    Attributes:
        about: one line for people.
        conf: settings of slurm.conf.
        programs: executable files in the folder `site`.
        submit, modify: Lua code of job_submit.lua; `job` is what the user requests.
        env: variables of every shell on the cluster, as /etc/profile.d sets them.
        accounting: slurmdbd is added if it is installed.
        odd_names: users and groups have names as in Active Directory.
        why_not: returns why this machine cannot have the profile, or "".
    """

    about: str
    conf: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    submit: str = ""
    modify: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    accounting: bool = False
    odd_names: bool = False
    why_not: Callable[[], str] = _nothing


def _needs_root() -> str:
    return "" if os.geteuid() == 0 else "needs root to add users"


def _needs_user() -> str:
    return "" if os.geteuid() != 0 else "needs an ordinary user, and this is root"


def _needs_lua() -> str:
    folders = [path.parent for path in Path("/usr").glob("lib*/**/job_submit_lua.so")]
    return "" if folders else "Slurm here has no job_submit/lua (Debian package: slurm-wlm-basic-plugins)"


def cgroup_version() -> str:
    """Return "v2" or "v1", the version whose controllers Slurm needs and can use here, or ""."""
    with contextlib.suppress(OSError):
        if "cpuset" in (_CGROUPS / "cgroup.controllers").read_text().split():
            return "v2"
    return "v1" if all((_CGROUPS / name / "release_agent").exists() for name in _CONTROLLERS) else ""


def remove_groups(nodes: Sequence[str]) -> None:
    """Remove the control groups (v1) of these nodes, whose processes are gone. Slurm leaves the outer ones."""
    for node in nodes:
        for top in (_CGROUPS / name / f"slurm_{node}" for name in _CONTROLLERS):
            for folder in sorted((path for path in (top, *top.rglob("*")) if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):  # busy: a process of another sandbox
                    folder.rmdir()


def _needs_cgroups() -> str:
    if os.geteuid() != 0:
        return "needs root to create control groups"
    if any((_CGROUPS / "freezer").glob("slurm_node*")):
        return "another sandbox has control groups of the same names"
    return "" if cgroup_version() else f"no control groups for {' and '.join(_CONTROLLERS)} in {_CGROUPS}"


_REFUSE_START = """
   if job.begin_time ~= 0 and job.begin_time ~= slurm.NO_VAL64 and uid ~= 0 then
      slurm.log_user("users may not change when a job starts")
      return slurm.ERROR
   end"""
_PURGE = f"""#!/bin/sh
# As HealthCheckProgram: root removes files that nobody has changed for a while.
age=$(cat {{dir}}/site/{PURGE_AFTER})
find {{dir}}/scratch -type f ! -newermt "-$age seconds" -delete
find {{dir}}/scratch -mindepth 1 -type d -empty ! -newermt "-$age seconds" -delete
"""
_POWER = """#!/bin/sh
exec >>{{dir}}/log/power.log 2>&1
export SLURM_CONF={{dir}}/slurm.conf
for node in $(scontrol show hostnames "$1"); do {command} "$node" --dir {{dir}}; done
"""


def _power(fault: str) -> str:
    return _POWER.format(command=" ".join(own("transom_cli", "sandbox", "fault", fault)))


SITES: Mapping[str, Site] = {
    "strict": Site(
        "users may not drain nodes, see others' jobs or change a job's start; limits are enforced",
        {"PrivateData": "jobs,usage,users", "JobSubmitPlugins": "lua"},
        modify=_REFUSE_START,
        accounting=True,
        why_not=lambda: _needs_root() or _needs_lua(),
    ),
    "contended": Site(
        "another user's jobs of lower priority wait for every free node",
        {"PriorityType": "priority/multifactor", "PriorityWeightPartition": "10000"},
    ),
    "firewalled": Site(
        "the login node reaches slurmctld, but no compute node: packets are dropped",
        {"CommunicationParameters": ""},  # slurmctld listens on every address of its own namespace
        why_not=network.why_not,
    ),
    "suspending": Site(
        "idle nodes are switched off, and on again for a job (power saving)",
        {
            "SuspendTime": "30", "SuspendProgram": "{dir}/site/suspend", "ResumeProgram": "{dir}/site/resume",
            "SuspendTimeout": "10", "ResumeTimeout": "60",
        },
        {"suspend": _power("kill-node"), "resume": _power("restore-node")},
    ),
    "ad-users": Site(
        'users are named like corp\\alice and bob@corp.example, their group is "domain users"',
        odd_names=True,
        why_not=_needs_root,
    ),
    "no-export": Site(
        "jobs and steps inherit no variables (SBATCH_EXPORT=NONE, SLURM_EXPORT_ENV=NONE)",
        env={"SBATCH_EXPORT": "NONE", "SLURM_EXPORT_ENV": "NONE"},
    ),
    "rewriting": Site(
        "job_submit.lua rewrites every job's comment",
        {"JobSubmitPlugins": "lua"},
        submit='\n   job.comment = "project:physics"',
        why_not=_needs_lua,
    ),
    "purging": Site(
        "files in scratch/ that nobody has changed for a minute are removed",
        {"HealthCheckProgram": "{dir}/site/purge", "HealthCheckInterval": "5", "HealthCheckNodeState": "ANY"},
        {"purge": _PURGE},
        env={"TRANSOM_ROOT": "{dir}/scratch"},
    ),
    "cgroup": Site(
        "processes are tracked and bound by control groups (proctrack/cgroup, task/affinity, task/cgroup)",
        {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/affinity,task/cgroup", "SlurmdParameters": ""},
        why_not=_needs_cgroups,
    ),
    "slow-prolog": Site(
        "a prolog and an epilog take seconds, and a task prolog prints and sets variables",
        {
            "Prolog": "{dir}/site/prolog", "Epilog": "{dir}/site/epilog", "TaskProlog": "{dir}/site/task-prolog",
            "PrologFlags": "Alloc",
        },
        {
            "prolog": "#!/bin/sh\nsleep 4\n",
            "epilog": "#!/bin/sh\nsleep 2\n",
            "task-prolog": '#!/bin/sh\necho "print welcome to the cluster, $USER"\necho export SITE_SCRATCH=/tmp\n',
        },
    ),
    "non-root": Site("Slurm's daemons run as an ordinary user", why_not=_needs_user),
}  # fmt: skip


def find(names: Sequence[str]) -> list[Site]:
    """Return the profiles of these names. Raises UsageError for a name that does not exist."""
    unknown = [name for name in names if name not in SITES]
    if unknown:
        raise UsageError(
            f"No such site profile: {', '.join(unknown)}",
            f"there are {', '.join(SITES)}",
            "transom sandbox up --site strict",
        )
    return [SITES[name] for name in names]


def why_not(names: Sequence[str]) -> str:
    """Return why this machine cannot have these profiles together, or ""."""
    reasons = [f"{name}: {reason}" for name, site in zip(names, find(names), strict=True) if (reason := site.why_not())]
    return "; ".join(reasons)


def check(names: Sequence[str]) -> None:
    reason = why_not(names)
    if reason:
        hint = "`transom sandbox sites` lists what each profile needs"
        raise TransomError("This machine cannot have the requested site profile", reason, hint)


def accounting(names: Sequence[str]) -> bool:
    """Return whether the profiles add accounting, which they do where it is installed."""
    if not any(site.accounting for site in find(names)):
        return False
    try:
        find_tools(accounting=True)
    except SlurmUnreachable:
        return False
    return True


def settings(names: Sequence[str], where: Path, *, with_accounting: bool) -> dict[str, str]:
    """Return the settings of slurm.conf. Values of settings that are lists are joined."""
    merged: dict[str, str] = {}
    for site in find(names):
        for key, value in site.conf.items():
            parts = [merged[key], value] if key in _JOINED and key in merged else [value]
            merged[key] = ",".join(dict.fromkeys(",".join(parts).split(","))).replace("{dir}", str(where))
    if "strict" in names and with_accounting:
        merged["AccountingStorageEnforce"] = "associations,limits,qos"
    return {key: value for key, value in merged.items() if value}


def dropped(names: Sequence[str]) -> set[str]:
    """Return the sandbox's own settings that a profile removes."""
    return {key for site in find(names) for key, value in site.conf.items() if not value}


def env(names: Sequence[str], where: Path) -> dict[str, str]:
    found = {key: value for site in find(names) for key, value in site.env.items()}
    return {key: value.replace("{dir}", str(where)) for key, value in found.items()}


def files(names: Sequence[str]) -> dict[str, str]:
    """Return texts by file name in the sandbox's folder, without programs."""
    found = find(names)
    submit, modify = "".join(site.submit for site in found), "".join(site.modify for site in found)
    texts = {f"site/{PURGE_AFTER}": "60\n"} if "purging" in names else {}
    if submit or modify:
        texts["job_submit.lua"] = (
            f"function slurm_job_submit(job, partitions, uid){submit}\n   return slurm.SUCCESS\nend\n"
            f"function slurm_job_modify(job, known, partitions, uid){modify}\n   return slurm.SUCCESS\nend\n"
            "return slurm.SUCCESS\n"
        )
    return texts


def write(names: Sequence[str], where: Path) -> None:
    """Write the profiles' files and programs into the sandbox's folder."""
    (where / "site").mkdir()
    (where / "site").chmod(0o755)
    programs = {f"site/{name}": text for site in find(names) for name, text in site.programs.items()}
    for name, text in {**files(names), **programs}.items():
        (where / name).write_text(text.replace("{dir}", str(where)))
        (where / name).chmod(0o755 if name in programs else 0o644)
    if "purging" in names:
        (where / "scratch").mkdir()
        (where / "scratch").chmod(0o1777)


def add_accounts(sb: Sandbox) -> None:
    """Before slurmctld starts: slurmdbd would send it new names with a doubled backslash, which belong to no user."""
    sb.slurm("sacctmgr", "-i", "add", "cluster", sb.cluster)
    sb.slurm("sacctmgr", "-i", "add", "account", "lab", f"cluster={sb.cluster}")
    for user in sb.users().values():
        level = [f"adminlevel={user.admin_level}"] if user.admin_level else []
        sb.slurm("sacctmgr", "-i", "add", "user", user.name, "account=lab", *level)


def crowd(sb: Sandbox) -> None:
    """Submit the second user's jobs, if the profile has them. Each takes a whole node for a while."""
    if "contended" not in sb.spec.site:
        return
    words = ["sbatch", "--parsable", "--output=/dev/null", f"--array=1-{CROWD}", "--exclusive", "--nodes=1"]
    words += ["--time=1", f"--nice={CROWD_NICE}", "--job-name=crowd", "--no-requeue", "--chdir=/tmp"]
    least, most = CROWD_S
    words += [f"--wrap=bash -c 'sleep $((RANDOM % {most - least} + {least}))'"]
    other = sb.users().get("bob")
    done = subprocess.run(
        words, env={"PATH": callers_path(""), **sb.env()}, cwd="/tmp", capture_output=True, text=True, check=False,
        **(other.identity() if other else {}),
    )  # fmt: skip
    if done.returncode:
        raise TransomError("The jobs of the second user could not be submitted", done.stderr.strip())

"""The doctor's judges of Slurm's configuration (slurm.conf(5)), from `scontrol show config` and partitions. Pure."""

import re
from collections.abc import Iterator, Mapping

from transom_cli.doctor.symptom import Grade, Symptom

KILL_WAIT = 30  # seconds between TERM and KILL for which transom plans to save
_UNSET = ("", "(null)", "none", "n/a")


def config_of(text: str) -> dict[str, str]:
    """Parse `scontrol show config`: lines "Name = value"."""
    pairs = (line.partition("=") for line in text.splitlines() if " = " in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def partition_of(text: str) -> dict[str, str]:
    """Parse `scontrol show partition -o`: the default partition, or the first one."""
    rows = [dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines() if line.strip()]
    return next((row for row in rows if row.get("Default") == "YES"), rows[0] if rows else {})


def of_cluster(config: Mapping[str, str]) -> list[Symptom]:
    """Judge the settings that a run's recovery depends on."""
    found = []
    if config.get("JobRequeue") == "0":
        words = "JobRequeue=0: Slurm requeues only jobs with --requeue, which transom's jobs have"
        found.append(Symptom("requeue", Grade.OK, words))
    else:
        found.append(Symptom("requeue", Grade.OK, "jobs may be requeued"))
    wait = _seconds(config.get("KillWait", ""))
    if wait is not None and wait < KILL_WAIT:
        words = f"KillWait={wait}: a final checkpoint has only {wait} s; transom plans with {KILL_WAIT} s"
        found.append(Symptom("kill wait", Grade.WARN, words, "ask the site for KillWait=30, Slurm's default"))
    track = config.get("ProctrackType", "")
    if track and "cgroup" not in track:
        words = f"ProctrackType={track}: processes that leave their session may outlive their step"
        found.append(Symptom("stray processes", Grade.NOTE, words, "transom finds and ends them itself"))
    if config.get("AccountingStorageType", "").rpartition("/")[2] in ("", "none", "(null)"):
        words = "Slurm has no accounting: only transom's own files say how earlier attempts ended"
        found.append(Symptom("accounting", Grade.NOTE, words))
    else:
        found.append(Symptom("accounting", Grade.OK, config["AccountingStorageType"].rpartition("/")[2]))
    return found


def of_site(config: Mapping[str, str], partition: Mapping[str, str]) -> Iterator[Symptom]:
    """Judge what else differs between sites. partition: the one that runs use, from `scontrol show partition`."""
    yield _wait_time(config)
    yield _prolog(config)
    yield _preemption(config, partition)
    yield _cgroups(config)


def _wait_time(config: Mapping[str, str]) -> Symptom:
    seconds = _seconds(config.get("WaitTime", "")) or 0
    if not seconds:
        return Symptom("wait time", Grade.OK, "WaitTime=0: a step continues when one of its tasks has ended")
    words = f"WaitTime={seconds}: Slurm ends a step {seconds} s after its first task; transom's own steps use --wait=0"
    return Symptom("wait time", Grade.NOTE, words, "in your own scripts: srun --wait=0")


def _prolog(config: Mapping[str, str]) -> Symptom:
    names = ("Prolog", "TaskProlog", "Epilog", "TaskEpilog")
    found = [f"{name}={value}" for name in names for key, value in config.items() if _is(key, name) and _set(value)]
    if not found:
        return Symptom("prolog", Grade.OK, "the site runs no program before or after a job or a task")
    words = f"{', '.join(found)}: each start and each relaunch waits for them; `--job` measures the time"
    if "nohold_on_prolog_fail" in config.get("SchedulerParameters", ""):
        return Symptom("prolog", Grade.NOTE, words)
    words += ". If the Prolog fails, Slurm requeues the job held"
    hint = "to release such a job without a person: restart.release_held = true"
    return Symptom("prolog", Grade.NOTE, words, hint)


def _preemption(config: Mapping[str, str], partition: Mapping[str, str]) -> Symptom:
    mode = config.get("PreemptMode", "OFF").upper()
    own = partition.get("PreemptMode", "").upper()
    mode = own if own not in ("", "CLUSTER") else mode
    if mode in ("OFF", "DISABLED") or config.get("PreemptType", "preempt/none").endswith("none"):
        return Symptom("preemption", Grade.OK, "no job is preempted")
    if "SUSPEND" in mode:
        return Symptom("preemption", Grade.OK, f"PreemptMode={mode}: a preempted job is suspended, and the run waits")
    grace = _seconds(partition.get("GraceTime", "")) or 0
    room = grace + (_seconds(config.get("KillWait", "")) or 0)
    then = "requeued" if "REQUEUE" in mode else "cancelled, and transom starts it again"
    words = f"PreemptMode={mode}: a preempted job is {then}; a final checkpoint has {room} s (GraceTime and KillWait)"
    if room >= KILL_WAIT + 30:
        return Symptom("preemption", Grade.NOTE, words)
    hint = "if that is too short, save often (Checkpointer(every=...)), or ask the site for a GraceTime"
    return Symptom("preemption", Grade.NOTE, words, hint)


def _cgroups(config: Mapping[str, str]) -> Symptom:
    plugins = (config.get(name, "") for name in ("TaskPlugin", "ProctrackType"))
    tasks, tracks = (plugin if _set(plugin) else "none" for plugin in plugins)
    on = [name for name in ("Cores", "Devices", "RAMSpace") if config.get(f"Constrain{name}", "").lower() == "yes"]
    if "cgroup" not in tasks or not on:
        return Symptom("cgroups", Grade.OK, f"TaskPlugin={tasks}, {tracks}: steps are not confined")
    words = f"TaskPlugin={tasks} confines steps: {', '.join(on)}"
    if "RAMSpace" not in on:
        return Symptom("cgroups", Grade.OK, words)
    words += ". Snapshots count as memory of the job, which is killed beyond its --mem"
    hint = "request memory for them (job.mem); `transom ckpt plan` computes how much"
    return Symptom("cgroups", Grade.NOTE, words, hint)


def _is(key: str, name: str) -> bool:
    """Newer releases print a list as `Prolog[0]`, `Prolog[1]`."""
    return key == name or key.startswith(f"{name}[")


def _set(value: str) -> bool:
    return value.lower() not in _UNSET


def _seconds(value: str) -> int | None:
    found = re.match(r"(\d+)\b", value)
    return int(found[1]) if found else None

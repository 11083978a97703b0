"""The doctor's readers: Slurm's commands, the system's files, Python packages. Each has its own deadline."""

import importlib.metadata
import os
import pwd
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli import __version__
from transom_cli.doctor import config as judges
from transom_cli.doctor import service, symptom, trial
from transom_cli.doctor.containers import judge_containers, read_containers
from transom_cli.doctor.host import examine_host, output_of, sample
from transom_cli.doctor.symptom import DrainWay, Grade, Symptom
from transom_cli.errors import TransomError
from transom_cli.health.history.shared import refused
from transom_cli.health.reach import STEP
from transom_cli.plural import several
from transom_cli.slurm.port import BackendTrial, Slurm
from transom_cli.slurm.runner import Runner
from transom_cli.submit.inputs import root_warning

NEEDED = ("sbatch", "squeue", "scontrol", "scancel", "srun")
USEFUL = ("sacct",)
PATIENCE = 10.0  # seconds for each answer
ROOM = 1 << 30  # bytes: a run without checkpoints takes some megabytes
_DROP_INS = "logind.conf.d/*.conf"
_OPTIONAL = (
    ("torch", "for checkpoints and `transom check` probes, where ranks run: transom-cli[train]"),
    ("nvidia-ml-py", "GPU checks, where ranks run: transom-cli[train]"),
    ("py-spy", "stacks of hung ranks, where ranks run"),
    ("prometheus-client", "metrics for Prometheus, where the operator runs: transom-cli[metrics]"),
)


DrainSettings = tuple[tuple[str, ...], Path | None]


@dataclass(frozen=True)
class Site:
    """What `--site` needs of the settings. job: sbatch's options for the trial job, None: submit none. partition: that
    runs use, "": Slurm's default. shared: `isolate.shared_history`. say: is called with what is done next."""

    job: tuple[str, ...] | None = None
    partition: str = ""
    shared: Path | None = None
    say: Callable[[str], object] = lambda _: None


def examine(
    slurm: Slurm,
    runner: Runner,
    root: Callable[[], Path],
    pyslurm: Callable[[], BackendTrial],
    drain: Callable[[], DrainSettings] = lambda: ((), None),
    operators: Callable[[], tuple[int, int | None]] = lambda: (0, None),
    site: Callable[[], Site] | None = None,
) -> Iterator[Symptom]:
    """Yield symptoms as they are found.

    Args:
        site: also examine what differs between sites.
        operators: returns how many runs are registered on this host, and the process that operates them.
        root: returns the root of run directories; raises what is wrong with the settings.
        drain: returns the site's drain command and spool.
    """
    yield Symptom("transom", Grade.OK, f"{__version__} on Python {sys.version.split()[0]}")
    runs = None
    try:
        runs = root()
    except TransomError as error:
        yield Symptom("settings", Grade.FAIL, "; ".join([error.what, *error.why.splitlines()]), error.hint)
    else:
        yield Symptom("settings", Grade.OK, "the settings of the site, the user and the environment are valid")
        yield _runs(runs)
    config = yield from _slurm(slurm, runner, drain)
    yield from _backend(pyslurm)
    yield symptom.of_operators(*operators())
    host = service.read_host("enable" in config.get("ScronParameters", ""))
    yield service.of_service(service.Service.of(os.environ).installed(), host)
    yield _logout()
    limit = symptom.of_cpu_limit(float("inf") if _cpu() == resource.RLIM_INFINITY else _cpu())
    if limit is not None:
        yield limit
    yield from judge_containers(read_containers())
    yield from _packages()
    if site is not None and config and runs is not None:
        yield from _site(slurm, runner, runs, config, site())


def _site(slurm: Slurm, runner: Runner, runs: Path, config: Mapping[str, str], site: Site) -> Iterator[Symptom]:
    named = [site.partition] if site.partition else []
    try:
        text = runner.run(["scontrol", "show", "partition", "-o", *named], timeout=PATIENCE)
        nodes = slurm.nodes()
    except TransomError as error:
        yield Symptom("controller", Grade.FAIL, "; ".join([error.what, *error.why.splitlines()]), error.hint)
        return
    yield from judges.of_site(config, judges.partition_of(text))
    yield from examine_host(runs, os.environ, nodes)
    if site.shared is not None:
        why = refused(site.shared)
        words = f"not used: {why}" if why else f"{site.shared} is used"
        hint = "root creates it: install -d -m 1777 FOLDER"
        yield Symptom("shared history", Grade.WARN if why else Grade.OK, words, hint)
    if site.job is None:
        yield trial.NOT_TRIED
    else:
        step = None if runner.cluster else lambda argv: runner.run(argv, timeout=3 * STEP)
        yield from trial.of_trial(trial.try_job(slurm, runs, site.job, sample(nodes), step, say=site.say))


def _slurm(
    slurm: Slurm, runner: Runner, drain: Callable[[], DrainSettings]
) -> Generator[Symptom, None, Mapping[str, str]]:
    """Return Slurm's configuration; empty if Slurm does not answer."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        hint = "run transom on a login node, where Slurm's commands are; without a cluster: transom sandbox up"
        yield Symptom("slurm", Grade.FAIL, f"not found: {', '.join(missing)}", hint)
        return {}
    yield symptom.of_versions({name: _version(name) for name in (*NEEDED, *USEFUL) if shutil.which(name)})
    began = time.monotonic()
    try:
        jobs = [job for job in slurm.jobs() if not job.state.ended]
        took = time.monotonic() - began
        config = judges.config_of(runner.run(["scontrol", "show", "config"], timeout=PATIENCE))
    except TransomError as error:
        yield Symptom("controller", Grade.FAIL, "; ".join([error.what, *error.why.splitlines()]), error.hint)
        return {}
    name = config.get("ClusterName", "")
    words = f"{name + ': ' if name else ''}answers in {took * 1000:.0f} ms, {several(len(jobs), 'job')} of yours"
    slow = Symptom("controller", Grade.WARN, words, "sdiag shows why it is slow")
    yield slow if took > 2.0 else Symptom("controller", Grade.OK, words)
    yield from judges.of_cluster(config)
    me = pwd.getpwuid(os.getuid()).pw_name
    yield symptom.of_rights(me, os.getuid(), config, _admin_level(runner, me), _drain_ways(drain))
    return config


def _drain_ways(drain: Callable[[], DrainSettings]) -> list[DrainWay]:
    try:
        command, spool = drain()
    except TransomError:  # already reported with the settings
        return []
    ways = []
    if command:
        ways.append(DrainWay(" ".join(command), symptom.of_command(command, shutil.which(command[0]) is not None)))
    if spool is not None:
        try:
            mode = spool.stat().st_mode
        except OSError as error:
            ways.append(DrainWay(f"the spool {spool}", error.strerror or "it does not exist"))
        else:
            writable = os.access(spool, os.W_OK | os.X_OK)
            is_folder = stat.S_ISDIR(mode)
            broken = symptom.of_spool(stat.S_IMODE(mode), writable) if is_folder else "it is not a folder"
            ways.append(DrainWay(f"the spool {spool}", broken))
    return ways


def _backend(pyslurm: Callable[[], BackendTrial]) -> Iterator[Symptom]:
    try:
        found = pyslurm()
    except TransomError:  # the settings are wrong, which is reported above
        return
    yield symptom.of_pyslurm(found.works, found.why_not, found.detours, found.wish)


def _admin_level(runner: Runner, user: str) -> str:
    words = ["sacctmgr", "-n", "-P", "show", "user", user, "format=AdminLevel"]
    try:
        return replace(runner, cluster="").run(words, timeout=PATIENCE).strip()  # sacctmgr talks only to slurmdbd
    except TransomError:
        return ""


def _runs(root: Path) -> Symptom:
    """Judge the root of run directories. Only compute nodes can check whether they share it."""
    there = next(path for path in (root, *root.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".transom-doctor-"):
            pass
        free = shutil.disk_usage(there).free
    except OSError as error:
        hint = "choose another: --root, TRANSOM_ROOT, or `root` in the settings"
        return Symptom("runs", Grade.FAIL, f"cannot write in {there}: {error.strerror}", hint)
    words = f"{root}, {free / (1 << 30):,.0f} GiB free"
    warning = root_warning(root)
    if free < ROOM:
        return Symptom("runs", Grade.WARN, words, f"free some space: df -h {there}")
    if warning is not None:
        return Symptom("runs", Grade.WARN, f"{words}. {warning}")
    return Symptom("runs", Grade.OK, words, "to see whether compute nodes share it: transom doctor --site --job")


def _logout() -> Symptom:
    texts = []
    drop_ins = [path for folder in ("/usr/lib", "/run", "/etc") for path in Path(folder, "systemd").glob(_DROP_INS)]
    for path in (Path("/etc/systemd/logind.conf"), *sorted(drop_ins, key=lambda path: path.name)):
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:
            continue
    user = pwd.getpwuid(os.getuid()).pw_name
    return symptom.of_logout(*symptom.logind(texts), user, Path("/var/lib/systemd/linger", user).exists())


def _cpu() -> int:
    return resource.getrlimit(resource.RLIMIT_CPU)[0]


def _version(name: str) -> str:
    return output_of(name, "--version").strip().removeprefix("slurm ")


def _packages() -> Iterator[Symptom]:
    """Check packages by their metadata: an import may take seconds or crash the process."""
    for name, use in _OPTIONAL:
        try:
            yield Symptom(name, Grade.OK, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Symptom(name, Grade.NOTE, f"not installed in this Python ({use})")

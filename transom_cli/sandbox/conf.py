"""The sandbox's folder and its configuration files, created from scratch at every start.

Everything that users of a real cluster would notice keeps Slurm's defaults (SlurmdTimeout, KillWait, MinJobAge, requeue
delay, scheduler intervals). So do options that newer releases name differently (task, switch, accounting gatherer:
none by default).
"""

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import transom_cli
from transom_cli.errors import TransomError
from transom_cli.files import publish_bytes, publish_text
from transom_cli.sandbox import processes, sites, state, users
from transom_cli.sandbox.daemons import free_ports
from transom_cli.sandbox.network import LOOPBACK, Wall
from transom_cli.sandbox.release.known import ReleaseHome
from transom_cli.sandbox.state import LOCK_FILE, STATE_FILE, Ports, SandboxSpec, State
from transom_cli.sandbox.tools import find_tools, slurm_release
from transom_cli.start import own


def slurm_conf(spec: SandboxSpec, *, cluster: str, user: str, ports: Ports, first_job: int) -> str:
    """Return slurm.conf. CPUs and memory may exceed the machine's (config_overrides), so that neither limits a job."""
    where = spec.dir
    last = ports.nodes + spec.nodes - 1
    gpus = spec.gpus_per_node
    wall = Wall(cluster) if "firewalled" in spec.site else None
    settings = {
        "ClusterName": cluster,
        "SlurmctldHost": f"localhost({wall.controller if wall else LOOPBACK})",
        "SlurmctldPort": str(ports.controller),
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={where}/munge.sock",
        "CommunicationParameters": "NoCtldInAddrAny",  # the controller listens only on loopback
        "StateSaveLocation": f"{where}/state",
        "SlurmdSpoolDir": f"{where}/spool/%n",
        "SlurmctldPidFile": f"{where}/run/slurmctld.pid",
        "SlurmdPidFile": f"{where}/run/slurmd-%n.pid",
        "SlurmctldLogFile": f"{where}/log/slurmctld.log",
        "SlurmdLogFile": f"{where}/log/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "SlurmdParameters": "config_overrides",
        "PropagateResourceLimitsExcept": "MEMLOCK",
        "MailProg": "/bin/true",
        "ReturnToService": "0",
        "SlurmdTimeout": "300",
        "DefMemPerCPU": "200",
        "FirstJobId": str(first_job),
    }
    if spec.home:
        settings["PluginDir"] = _plugins(spec)
    if gpus:
        settings["GresTypes"] = "gpu"
    if spec.accounting:
        settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
        settings["AccountingStorageHost"] = wall.outside if wall else LOOPBACK
        settings["AccountingStoragePort"] = str(ports.dbd)
        settings["AccountingStoragePass"] = f"{where}/munge.sock"  # with munge: its socket
        settings["AccountingStorageTRES"] = "gres/gpu"
    if spec.switches:
        settings["TopologyPlugin"] = "topology/tree"
    settings.update(sites.settings(spec.site, where, with_accounting=spec.accounting))
    settings.update(spec.extra)
    for name in sites.dropped(spec.site):
        del settings[name]
    # processes can be bound only to CPUs that exist
    cpus = os.cpu_count() if "cgroup" in spec.site else max(8, 4 * gpus)
    node = (
        f"NodeName={_span('node', 1, spec.nodes)} NodeHostname=localhost NodeAddr={wall.nodes if wall else LOOPBACK}"
        f" Port={_span('', ports.nodes, last)} CPUs={cpus} RealMemory=16000" + (f" Gres=gpu:{gpus}" if gpus else "")
    )
    lines = [f"{key}={value}" for key, value in settings.items()]
    return "\n".join([*lines, node, "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE", ""])


def cgroup_conf(release: tuple[int, int], used: bool = False) -> str:
    """Return cgroup.conf, which keeps slurmd off cgroup v2: it would need a scope from systemd.

    `disabled` exists since 24.05. Before that, the v1 plugin touches nothing until something uses it.
    """
    if used:
        return f"CgroupPlugin=cgroup/{sites.cgroup_version()}\nIgnoreSystemd=yes\nConstrainCores=yes\n"
    return f"CgroupPlugin={'disabled' if release >= (24, 5) else 'cgroup/v1'}\n"


def gres_conf(spec: SandboxSpec) -> str:
    """Return gres.conf: GPUs as a counted gres on placeholder device files. Without a File, nodes become INVAL."""
    if not spec.gpus_per_node:
        return ""
    devices = _span(f"{spec.dir}/dev/nvidia", 0, spec.gpus_per_node - 1)
    return f"NodeName={_span('node', 1, spec.nodes)} Name=gpu File={devices}\n"


def topology_conf(spec: SandboxSpec) -> str:
    """Return topology.conf: leaf switches under one spine, the nodes assigned to them in order."""
    ends = [spec.nodes * i // spec.switches for i in range(spec.switches + 1)]
    leaves = [
        f"SwitchName=leaf{i} Nodes={_span('node', first + 1, last)}"
        for i, (first, last) in enumerate(pairwise(ends), start=1)
    ]
    return "\n".join([*leaves, f"SwitchName=spine Switches={_span('leaf', 1, spec.switches)}", ""])


def slurmdbd_conf(spec: SandboxSpec, *, user: str, ports: Ports, password: str) -> str:
    where = spec.dir
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={where}/munge.sock",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": str(ports.dbd),
        "SlurmUser": user,
        "PidFile": f"{where}/run/slurmdbd.pid",
        "LogFile": f"{where}/log/slurmdbd.log",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": str(ports.database),
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": "slurm_acct_db",
    }
    if spec.home:
        settings["PluginDir"] = _plugins(spec)
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _plugins(spec: SandboxSpec) -> str:
    return f"{spec.home}/plugins"


def _span(prefix: str, first: int, last: int) -> str:
    return f"{prefix}{first}" if first == last else f"{prefix}[{first}-{last}]"


_JOB_IDS_PER_START = 10_000


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise TransomError(
            "Slurm needs a user with a name, and this user has none",
            f"user ID {os.geteuid()} is in no user database of this machine",
            "in a container: add the user to its /etc/passwd",
        ) from error


def prepare(spec: SandboxSpec, old: State | None) -> State:
    """Remove the processes and files of an earlier start, and write the new configuration."""
    user = _user_name()
    if old is not None:
        processes.freeze_then_kill(lambda: processes.of_sandbox(old.cluster))
        users.remove(old.users)
    for entry in spec.dir.iterdir():
        if entry.name not in (STATE_FILE, LOCK_FILE):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    known = State(
        cluster=f"sandbox{secrets.token_hex(4)}",
        generation=old.generation + 1 if old else 0,
        spec=spec,
        ports=free_ports(spec.nodes),
        uid=os.geteuid(),
        user=user,
        boot=processes.boot_id(),
    )
    state.save(spec.dir, known)
    keep_private(spec.dir)
    if spec.site and os.geteuid() == 0:
        odd = any(site.odd_names for site in sites.find(spec.site))
        known.users = users.create(spec.dir, known.cluster[-4:], odd_names=odd)
        state.save(spec.dir, known)
    sites.write(spec.site, spec.dir)
    for name, mode in (
        ("keys", 0o700),
        ("state", 0o700),
        ("run", 0o755),
        ("log", 0o755),
        ("spool", 0o755),
        ("dev", 0o755),
    ):
        (spec.dir / name).mkdir()
        (spec.dir / name).chmod(mode)
    for index in range(spec.gpus_per_node):
        # any character device suffices for Slurm to count it and to set CUDA_VISIBLE_DEVICES; nothing opens it
        (spec.dir / "dev" / f"nvidia{index}").symlink_to("/dev/null")
    publish_bytes(spec.dir / "keys" / "munge.key", secrets.token_bytes(128), private=True)
    text = slurm_conf(
        spec, cluster=known.cluster, user=known.user, ports=known.ports,
        first_job=known.generation * _JOB_IDS_PER_START + 1,
    )  # fmt: skip
    files = {
        "slurm.conf": text,
        "gres.conf": gres_conf(spec),
        "cgroup.conf": cgroup_conf(slurm_release(find_tools(home=spec.home)["slurmctld"]), "cgroup" in spec.site),
    }
    if spec.switches:
        files["topology.conf"] = topology_conf(spec)
    for name, content in files.items():
        (spec.dir / name).write_text(content)
        (spec.dir / name).chmod(0o644)
    if spec.home and ReleaseHome(Path(spec.home)).python.exists():
        _link_transom(spec.dir, ReleaseHome(Path(spec.home)).python)
    if spec.accounting:
        prepare_accounting(spec, known.user, known.ports)
    return known


def prepare_accounting(spec: SandboxSpec, user: str, ports: Ports) -> None:
    """Write slurmdbd.conf and the SQL that creates its database user. Both are private: they contain the password."""
    where = spec.dir
    password = secrets.token_urlsafe(24)  # [A-Za-z0-9_-]: needs no quoting in either file
    text = slurmdbd_conf(spec, user=user, ports=ports, password=password)
    publish_text(where / "slurmdbd.conf", text, private=True)
    publish_text(
        where / "keys" / "database.sql",
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        f"CREATE OR REPLACE USER 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n",
    )


def keep_private(where: Path) -> None:
    """Close the folder and its munge socket to other users, unless root runs the sandbox.

    An ordinary user's slurmd runs every job as that user, so anyone with access to the socket could act as that user.
    Root's slurmd runs each job as its submitter: others may read slurm.conf and use the socket, but never the keys.
    """
    as_root = os.geteuid() == 0
    where.chmod(0o755 if as_root else 0o700)
    if not as_root:
        with contextlib.suppress(FileNotFoundError):  # before munged starts
            (where / "munge.sock").chmod(0o700)  # munged opens it to everyone, regardless of the umask


def _link_transom(where: Path, python: Path) -> None:
    """Write `bin/transom`: this transom on the release's Python, which has pyslurm."""
    (where / "python").mkdir()
    (where / "python" / "transom_cli").symlink_to(Path(transom_cli.__file__).parent)
    (where / "bin").mkdir()
    command = where / "bin" / "transom"
    folder = where / "python"  # on PYTHONPATH for the trainers of runs that are started with it
    words = shlex.join(own("transom_cli", python=(str(python),)))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(folder))} exec {words} "$@"\n')
    command.chmod(0o755)

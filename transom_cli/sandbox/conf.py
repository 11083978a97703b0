"""The text of slurm.conf, gres.conf, topology.conf and slurmdbd.conf. Pure.

What a real cluster's users would feel is left at Slurm's own defaults
(SlurmdTimeout, KillWait, MinJobAge, requeue delay, scheduler intervals), and so is what newer
releases of Slurm name differently (task, switch, accounting gatherer: none by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from transom_cli.sandbox.spec import SandboxSpec


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1. Node i listens on ``nodes + i`` (i from 0)."""

    controller: int
    database: int
    dbd: int
    nodes: int


def slurm_conf(spec: SandboxSpec, *, cluster: str, user: str, ports: Ports, first_job: int) -> str:
    """Slurm counts CPUs and memory that the machine need not have (config_overrides), so that neither limits a job."""
    where = spec.dir
    last = ports.nodes + spec.nodes - 1
    gpus = spec.gpus_per_node
    settings = {
        "ClusterName": cluster,
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": str(ports.controller),
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={where}/munge.sock",
        "CommunicationParameters": "NoCtldInAddrAny",  # the controller listens on loopback alone
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
        settings["AccountingStorageHost"] = "127.0.0.1"
        settings["AccountingStoragePort"] = str(ports.dbd)
        settings["AccountingStoragePass"] = f"{where}/munge.sock"  # with munge: its socket
        settings["AccountingStorageTRES"] = "gres/gpu"
    if spec.switches:
        settings["TopologyPlugin"] = "topology/tree"
    settings.update(spec.extra)
    node = (
        f"NodeName={_span('node', 1, spec.nodes)} NodeHostname=localhost NodeAddr=127.0.0.1"
        f" Port={_span('', ports.nodes, last)} CPUs={max(8, 4 * gpus)} RealMemory=16000"
        + (f" Gres=gpu:{gpus}" if gpus else "")
    )
    lines = [f"{key}={value}" for key, value in settings.items()]
    return "\n".join([*lines, node, "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE", ""])


def cgroup_conf(release: tuple[int, int]) -> str:
    """Keep slurmd away from cgroup v2, whose scope it would have to ask systemd for, which a user may not.

    `disabled` exists since 24.05; before, the v1 plugin is one that touches nothing until something uses it.
    """
    return f"CgroupPlugin={'disabled' if release >= (24, 5) else 'cgroup/v1'}\n"


def gres_conf(spec: SandboxSpec) -> str:
    """GPUs as a counted gres on stand-in device files: without a File the nodes would go INVAL."""
    if not spec.gpus_per_node:
        return ""
    devices = _span(f"{spec.dir}/dev/nvidia", 0, spec.gpus_per_node - 1)
    return f"NodeName={_span('node', 1, spec.nodes)} Name=gpu File={devices}\n"


def topology_conf(spec: SandboxSpec) -> str:
    """Leaf switches under one spine, the nodes divided among them in order."""
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

"""What passes from a container to the node's agent, by this host's configuration of Apptainer and enroot.

Heartbeats and snapshots go through the node's /dev/shm; stacks need ptrace. docs/containers.md explains both.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transom_cli.doctor.host import output_of
from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.health.system import read_number

PROGRAMS = ("apptainer", "singularity", "enroot")
_SHM = 'add launch.container.mounts = ["/dev/shm"]'


@dataclass(frozen=True)
class ContainerHost:
    """programs: path by name. settings: of apptainer.conf. pyxis: srun has --container-image.
    namespaces: user namespaces that the kernel allows, None if unknown. ptrace: Yama's scope, None without Yama."""

    programs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    pyxis: bool = False
    namespaces: int | None = None
    ptrace: int | None = None


def read_containers(etc: Path = Path("/etc"), sys: Path = Path("/proc/sys")) -> ContainerHost:
    programs = {name: path for name in PROGRAMS if (path := shutil.which(name)) is not None}
    confs = (etc / name / f"{name}.conf" for name in PROGRAMS[:2])
    conf = next((path.read_text(errors="replace") for path in confs if path.is_file()), "")
    pairs = re.findall(r"^\s*([a-z ]+?)\s*=\s*(\S+)", conf, re.MULTILINE)
    return ContainerHost(
        programs,
        dict(pairs),
        "--container-image" in output_of("srun", "--help"),
        read_number(sys / "user" / "max_user_namespaces"),
        read_number(sys / "kernel" / "yama" / "ptrace_scope"),
    )


def judge_containers(host: ContainerHost) -> list[Symptom]:
    found = []
    names = [*(name for name in PROGRAMS if name in host.programs), *(["pyxis"] if host.pyxis else [])]
    if not names:
        return [Symptom("containers", Grade.NOTE, "neither apptainer, singularity nor pyxis is here")]
    apptainer = any(name in host.programs for name in PROGRAMS[:2])
    if apptainer and host.settings.get("mount dev", "yes") != "yes":
        words = f"apptainer.conf: mount dev = {host.settings['mount dev']}: a container has a /dev/shm of its own, so "
        found.append(Symptom("containers", Grade.WARN, f"{words}no heartbeat and no snapshot passes", _SHM))
    if apptainer and host.settings.get("user bind control", "yes") != "yes":
        words = "apptainer.conf: user bind control = no: the run directory and the checkpoints cannot be bound"
        found.append(Symptom("containers", Grade.FAIL, words, "ask the site for `bind path` entries, or to allow it"))
    if host.namespaces == 0 and host.settings.get("allow setuid", "yes") != "yes":
        words = "the kernel allows no user namespaces, and apptainer is not setuid: no container starts"
        found.append(Symptom("containers", Grade.FAIL, words, "ask the site for user.max_user_namespaces above 0"))
    if host.ptrace is not None and host.ptrace > 1:
        words = f"kernel.yama.ptrace_scope = {host.ptrace}: hung ranks show no stacks, contained or not"
        found.append(Symptom("containers", Grade.NOTE, words, "ask the site for ptrace_scope = 1 on compute nodes"))
    return found or [Symptom("containers", Grade.OK, f"{', '.join(names)}: /dev/shm and your mounts pass through")]

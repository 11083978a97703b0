"""The sandbox's folder: cleared and laid out anew at every start."""

from __future__ import annotations

import os
import pwd
import secrets
import shlex
import shutil
from pathlib import Path

import transom_cli
from transom_cli.errors import TransomError
from transom_cli.sandbox import accounting, belonging, conf, procs, state
from transom_cli.sandbox.daemons import free_ports
from transom_cli.sandbox.release.known import ReleaseHome
from transom_cli.sandbox.spec import LOCK_FILE, STATE_FILE, SandboxSpec
from transom_cli.sandbox.state import State
from transom_cli.sandbox.tools import find_tools, slurm_release

_JOB_IDS_PER_START = 10_000


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError as error:
        raise TransomError(
            "Slurm runs as a user with a name, and this one has none",
            f"user id {os.geteuid()} is in no user database that this machine asks",
            "in a container: add the user to its /etc/passwd",
        ) from error


def prepare(spec: SandboxSpec, old: State | None) -> State:
    """Clear what an earlier start left, processes and files, and write the new one's configuration."""
    user = _user_name()
    if old is not None:
        procs.freeze_then_kill(lambda: belonging.of_sandbox(old.cluster))
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
        boot=procs.boot_id(),
    )
    state.save(spec.dir, known)
    spec.dir.chmod(0o755)  # other users read slurm.conf and reach the munge socket; never the keys
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
        # any character device will do for Slurm to count it and to set CUDA_VISIBLE_DEVICES; nobody opens it
        (spec.dir / "dev" / f"nvidia{index}").symlink_to("/dev/null")
    state.write_private(spec.dir / "keys" / "munge.key", secrets.token_bytes(128))
    text = conf.slurm_conf(
        spec, cluster=known.cluster, user=known.user, ports=known.ports,
        first_job=known.generation * _JOB_IDS_PER_START + 1,
    )  # fmt: skip
    files = {
        "slurm.conf": text,
        "gres.conf": conf.gres_conf(spec),
        "cgroup.conf": conf.cgroup_conf(slurm_release(find_tools(home=spec.home)["slurmctld"])),
    }
    for name, content in files.items():
        (spec.dir / name).write_text(content)
        (spec.dir / name).chmod(0o644)
    if spec.home and ReleaseHome(Path(spec.home)).python.exists():
        _link_transom(spec.dir, ReleaseHome(Path(spec.home)).python)
    if spec.accounting:
        accounting.prepare(spec, known.user, known.ports)
    return known


def _link_transom(where: Path, python: Path) -> None:
    """`bin/transom`: this very transom on the release's Python, where pyslurm is at hand."""
    (where / "python").mkdir()
    (where / "python" / "transom_cli").symlink_to(Path(transom_cli.__file__).parent)
    (where / "bin").mkdir()
    command = where / "bin" / "transom"
    path = f"PYTHONPATH={shlex.quote(str(where / 'python'))}"
    command.write_text(f'#!/bin/sh\n{path} exec {shlex.quote(str(python))} -m transom_cli "$@"\n')
    command.chmod(0o755)

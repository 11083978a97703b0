"""slurmdbd on a private MariaDB, both of the distribution's own, in the sandbox's folder."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.sandbox import procs
from transom_cli.sandbox.belonging import MARK
from transom_cli.sandbox.conf import Ports, slurmdbd_conf
from transom_cli.sandbox.daemons import log_tail, start_daemon
from transom_cli.sandbox.procs import Ident
from transom_cli.sandbox.spec import SandboxSpec
from transom_cli.sandbox.state import write_private
from transom_cli.sandbox.tools import run_tool

_READY_TIMEOUT_S = 60.0


def prepare(spec: SandboxSpec, user: str, ports: Ports) -> None:
    """Write slurmdbd.conf, and the SQL that makes its database user, both private: they hold the password."""
    where = spec.dir
    password = secrets.token_urlsafe(24)  # [A-Za-z0-9_-]: needs no quoting in either file
    write_private(where / "slurmdbd.conf", slurmdbd_conf(spec, user=user, ports=ports, password=password))
    write_private(
        where / "keys" / "database.sql",
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        f"CREATE OR REPLACE USER 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n",
    )


def start(name: str, where: Path, ports: Ports, tools: Mapping[str, Path], env: Mapping[str, str]) -> Ident:
    """Start `mariadbd` or `slurmdbd` and wait until it takes connections."""
    if name == "mariadbd":
        ident = _start_mariadbd(where, ports, tools, env)
        port = ports.database
    else:
        ident = start_daemon(
            name, [str(tools["slurmdbd"])], env=dict(env), cwd=where, pid_file=where / "run" / "slurmdbd.pid",
            log=where / "log" / "slurmdbd.log", port=ports.dbd,
        )  # fmt: skip
        port = ports.dbd
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _answers(port):
        if time.monotonic() > deadline or not procs.alive(ident):
            log = where / "log" / f"{name}.log"
            raise TransomError(f"{name} does not take connections", "\n".join(log_tail(log)), f"less {log}")
        time.sleep(0.1)
    return ident


def register_cluster(cluster: str, slurm: Callable[..., str]) -> None:
    """slurmctld is let in by slurmdbd only under a cluster name that the database knows."""
    if cluster not in slurm("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster").split():
        slurm("sacctmgr", "-i", "add", "cluster", cluster)


def _start_mariadbd(where: Path, ports: Ports, tools: Mapping[str, Path], env: Mapping[str, str]) -> Ident:
    data = where / "database"
    as_root = ["--user=root"] if os.geteuid() == 0 else []  # mariadbd refuses to be root unless told
    if not data.exists():
        run_tool(
            [str(tools["mariadb-install-db"]), "--no-defaults", f"--datadir={data}", "--skip-test-db",
             "--auth-root-authentication-method=normal", *as_root],
            env, cwd=where, timeout_s=120.0,
        )  # fmt: skip
    argv = [
        str(tools["mariadbd"]), "--no-defaults", f"--datadir={data}", f"--socket={where}/keys/mysql.sock",
        "--bind-address=127.0.0.1", f"--port={ports.database}", "--skip-name-resolve",
        f"--pid-file={where}/run/mariadbd.pid", f"--log-error={where}/log/mariadbd.log",
        f"--init-file={where}/keys/database.sql", "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=64M", "--innodb-lock-wait-timeout=900", *as_root,
    ]  # fmt: skip
    ident = _running(env)
    if ident is None:
        # it has no background mode of its own: setsid's child is nobody's zombie when it dies
        subprocess.run(
            ["setsid", "--fork", *argv], env=dict(env), cwd=where, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, umask=0o077, check=True,
        )  # fmt: skip
    deadline = time.monotonic() + 10.0
    while ident is None and time.monotonic() < deadline:
        time.sleep(0.05)
        ident = _running(env)
    if ident is not None:
        return ident
    log = where / "log" / "mariadbd.log"
    raise TransomError("Cannot start mariadbd", "\n".join(log_tail(log)), f"less {log}")


def _running(env: Mapping[str, str]) -> Ident | None:
    found = (p.ident for p in procs.snapshot().values() if p.comm == "mariadbd" and p.environ.get(MARK) == env[MARK])
    return next(found, None)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

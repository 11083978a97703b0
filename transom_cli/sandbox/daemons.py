"""Start the sandbox's daemons, find their PIDs, and report from their logs why one did not start.

Accounting is slurmdbd on a private MariaDB in the sandbox's folder, both from the distribution.
"""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.files import last_lines
from transom_cli.sandbox import processes
from transom_cli.sandbox.processes import MARK, MARK_NODE, Ident
from transom_cli.sandbox.state import Ports
from transom_cli.sandbox.tools import run_tool, search_path
from transom_cli.start import own

# below the kernel's range for outgoing connections (32768-60999), so that none of those uses a port
_PORTS = range(20000, 32000)
_START_TIMEOUT_S = 15.0
NFS = "nfs="  # prefix of the delay for a view with NFS's close-to-open consistency


def daemon_env(where: Path, cluster: str, node: str = "", first: str = "") -> dict[str, str]:
    """Return a daemon's whole environment: from the caller only HOME and PATH, plus our mark. first: start of PATH."""
    env = {
        "PATH": search_path(first),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "SLURM_CONF": str(where / "slurm.conf"),
        MARK: cluster,
    }
    return {**env, MARK_NODE: node} if node else env


def late_view(late: Mapping[str, str], log: Path) -> list[str]:
    """Return the command prefix with which a node's slurmd and its jobs see these folders late (`stale_view`)."""
    view = "transom_cli.sandbox.stale_view"
    return [word for folder, how in late.items() for word in own(view, how, folder, str(log))]


def free_ports(nodes: int) -> Ports:
    """Return a block of ports on which nothing listens."""
    count = nodes + 3
    for _ in range(100):
        first = secrets.choice(range(_PORTS.start, _PORTS.stop - count))
        if all(port_is_free(port) for port in range(first, first + count)):
            return Ports(controller=first, database=first + 1, dbd=first + 2, nodes=first + 3)
    raise TransomError(f"No {count} free TCP ports in a row between {_PORTS.start} and {_PORTS.stop}", hint="ss -ltn")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like Slurm's own daemons
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def start_daemon(
    name: str, argv: Sequence[str], *, env: dict[str, str], cwd: Path, pid_file: Path, log: Path,
    port: int | None = None,
) -> Ident:  # fmt: skip
    """Start a daemon that puts itself into the background and writes `pid_file`; return its identity.

    A daemon of an interrupted `up`, which was not recorded, is adopted.

    Raises:
        TransomError: with the end of its log, or with a port that another program uses.
    """
    running = _written(pid_file, env)
    if running is not None:
        return running
    if port is not None and not port_is_free(port):
        raise TransomError(
            f"Cannot start {name}: port {port} is used by another program",
            hint=f"ss -ltnp 'sport = :{port}'   (a new start chooses new ports: transom sandbox down, then up)",
        )
    pid_file.unlink(missing_ok=True)
    done = subprocess.run(
        list(argv), env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", umask=0o022, start_new_session=True, timeout=_START_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        ident = _await_pid(pid_file, env)
        if ident is not None:
            return ident
    words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
    raise TransomError(
        f"Cannot start {name} (exit {done.returncode})", "\n".join([*words, *last_lines(log)]), f"less {log}"
    )


def _await_pid(pid_file: Path, env: dict[str, str]) -> Ident | None:
    """Wait for `pid_file` and return its daemon, or None if the daemon died or never started."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if pid_file.exists() and pid_file.read_text().strip():
            return _written(pid_file, env)
        time.sleep(0.02)
    return None


def _written(pid_file: Path, env: dict[str, str]) -> Ident | None:
    """Return the live daemon whose PID is in the file, if it has the marks of `env`."""
    try:
        pid = int(pid_file.read_text().strip())
    except (OSError, ValueError):
        return None
    proc = processes.read(pid, with_environ=True)
    if proc is None or proc.comm != pid_file.stem.partition("-")[0]:
        return None
    same = all(proc.environ.get(mark) == env.get(mark) for mark in (MARK, MARK_NODE))
    return proc.ident if same else None


_READY_TIMEOUT_S = 60.0


def start(name: str, where: Path, user: str, ports: Ports, tools: Mapping[str, Path], env: Mapping[str, str]) -> Ident:
    """Start `mariadbd` or `slurmdbd` and wait until it accepts connections."""
    if name == "mariadbd":
        ident = _start_mariadbd(where, user, ports, tools, env)
        port = ports.database
    else:
        ident = start_daemon(
            name, [str(tools["slurmdbd"])], env=dict(env), cwd=where, pid_file=where / "run" / "slurmdbd.pid",
            log=where / "log" / "slurmdbd.log", port=ports.dbd,
        )  # fmt: skip
        port = ports.dbd
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not _answers(port):
        if time.monotonic() > deadline or not processes.alive(ident):
            log = where / "log" / f"{name}.log"
            raise TransomError(f"{name} does not accept connections", "\n".join(last_lines(log)), f"less {log}")
        time.sleep(0.1)
    return ident


def register_cluster(cluster: str, slurm: Callable[..., str]) -> None:
    """Add the cluster's name to the database: slurmdbd accepts slurmctld only under a known name."""
    if cluster not in slurm("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster").split():
        slurm("sacctmgr", "-i", "add", "cluster", cluster)


def _start_mariadbd(where: Path, user: str, ports: Ports, tools: Mapping[str, Path], env: Mapping[str, str]) -> Ident:
    data = where / "database"
    as_root = ["--user=root"] if os.geteuid() == 0 else []  # mariadbd refuses to run as root by default
    if not data.exists():
        run_tool(
            [str(tools["mariadb-install-db"]), "--no-defaults", f"--datadir={data}", "--skip-test-db",
             # `normal` creates root and anonymous accounts without a password, open to every user over TCP
             "--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}", *as_root],
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
        # it has no background mode; started by setsid, it becomes nobody's zombie when it dies
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
    raise TransomError("Cannot start mariadbd", "\n".join(last_lines(log)), f"less {log}")


def _running(env: Mapping[str, str]) -> Ident | None:
    found = (
        p.ident for p in processes.snapshot().values() if p.comm == "mariadbd" and p.environ.get(MARK) == env[MARK]
    )
    return next(found, None)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0

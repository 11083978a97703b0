"""Another user holds ports of a run's nodes, or joins its ranks: rendezvous ports, and what is sent over torch."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm
from slurm_support import OrdinaryUser

from transom_cli.core.launcher import LaunchEnded
from transom_cli.layout import RunDir
from transom_cli.rpc import secret
from transom_cli.rpc.sockets import PORTS, free_port, is_free
from transom_cli.supervise.launcher import loop as module
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.loop import Launcher
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions, says_in_use

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import json, os, socket, sys
log, exits = sys.argv[1:]
record = {"rank": 0, "node": "n1", "code": 0, "signal": None, "wall": 1.0, "steps": -1}
try:
    socket.create_server(("", int(os.environ["MASTER_PORT"])))
except OSError as error:
    record["code"] = 1
    open(log, "w").write(f"Traceback (most recent call):\\nOSError: [Errno {error.errno}] Address already in use\\n")
open(os.path.join(exits, "rank-0.json"), "w").write(json.dumps(record))
sys.exit(record["code"])
"""


@contextlib.contextmanager
def holding(user: OrdinaryUser, ports: Sequence[int]) -> Iterator[None]:
    """The user listens on these ports, in a process of its own."""
    ready, hold = os.pipe(), os.pipe()

    def listen() -> None:
        os.close(hold[1])
        held = [socket.create_server(("", port)) for port in ports]
        os.write(ready[1], b"x" * len(held))
        os.read(hold[0], 1)  # until the test closes its end

    with ThreadPoolExecutor(1) as pool:
        process = pool.submit(user.call, listen)
        while not select.select([ready[0]], [], [], 0.1)[0]:
            assert not process.done(), process.result()
        try:
            yield
        finally:
            os.close(hold[1])
            process.result()
            for descriptor in (*ready, hold[0]):
                os.close(descriptor)


def hashed_port(launch: int) -> int:
    """The port of launch `launch` of job 7, as versions before 0.9 computed it, and as anybody could."""
    return range(12000, 20000)[zlib.crc32(f"7.0.{launch}".encode()) % 8000]


class NoAgents(Agents):
    """The real rules for ports, on the launcher's own node, but no agents' step."""

    def start(self) -> None:
        raise OSError("no Slurm here")

    def end(self, launch: int, nodes: tuple[str, ...], grace: float = 0.0, incident: str = "") -> LaunchEnded:
        return LaunchEnded(0.0, launch)

    def logs(self, launch: int, nodes: tuple[str, ...]) -> list[dict[str, object]]:
        return []


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """Each launch is a real process that listens on its MASTER_PORT. A single relaunch is allowed."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
    handlers = {n: signal.getsignal(n) for n in numbers}

    def argv(_a: object, _o: object, attempt: object, launch: int, _n: object, **_: object) -> list[str]:
        log = attempt.logs(launch) / "rank-0.log"  # type: ignore[attr-defined]
        return [sys.executable, "-I", "-c", RANK, str(log), str(attempt.exits(launch))]  # type: ignore[attr-defined]

    monkeypatch.setattr(module, "Agents", NoAgents)
    monkeypatch.setattr(launchplan, "training_argv", argv)
    run = RunDir(tmp_path)
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,), checkpoints=run.checkpoints, relaunches=1)
    slurm = FakeSlurm()
    yield Launcher(Allocation(7, 0, ("localhost",), host="localhost"), options, lambda _: slurm)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def launches(folder: Path) -> list[int]:
    records = map(json.loads, RunDir(folder).attempt(7, 0).launcher_journal.read_text().splitlines())
    return [record["launch"] for record in records if record["type"] == "launch"]


def test_another_user_who_holds_the_hashed_ports_costs_nothing(
    launcher: Launcher, tmp_path: Path, other_user: OrdinaryUser
) -> None:
    with holding(other_user, [hashed_port(n) for n in range(3)]):
        assert launcher.run() == 0
    assert launches(tmp_path) == [0], "the first launch has another port"


def test_ports_that_another_user_takes_first_cost_no_restart(
    launcher: Launcher, tmp_path: Path, other_user: OrdinaryUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the choice and the start of the ranks, three times in a row: more than the budget of relaunches."""
    stolen = [free_port() for _ in range(3)]
    choices = iter(stolen)
    monkeypatch.setattr(NoAgents, "free_port", lambda agents, node: next(choices, 0) or Agents.free_port(agents, node))
    with holding(other_user, stolen):
        assert launcher.run() == 0
    assert launches(tmp_path) == [0, 1, 2, 3]
    assert launcher._state.budget.relaunches == ()


def test_ports_differ_and_are_free_of_other_users_listeners(
    other_user: OrdinaryUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [free_port() for _ in range(20)]
    assert len(set(chosen)) > 10 and all(port in PORTS for port in chosen)
    with holding(other_user, chosen[:3]):
        assert [is_free(port) for port in chosen[:4]] == [False, False, False, True]
        offers = iter(chosen)
        monkeypatch.setattr("transom_cli.rpc.sockets.secrets.choice", lambda _: next(offers))
        assert free_port() == chosen[3]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
         "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", True),
        ("[c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", True),
        ("grpc: Failed to bind to address 0.0.0.0:9100: Address already in use", False),
        ("[E TCPStore.cpp:12] server socket port: 2950, name: EADDRINUSE", False),
        ("OSError: [Errno 98] Address already in use", None),
        ("ValueError: port 29500", False),
    ],
)  # fmt: skip
def test_a_log_line_says_whether_the_launchs_own_port_is_in_use(line: str, expected: bool | None) -> None:
    assert says_in_use(line, 29500) is expected


STORE = """
import sys
from torch.distributed import TCPStore
TCPStore("127.0.0.1", int(sys.argv[1]), 2, True, wait_for_workers=False).set("k", "v")
"""


def test_torch_names_a_taken_port_and_its_store_answers_whoever_finds_its_port(other_user: OrdinaryUser) -> None:
    """The first is what the launcher goes by. The second is what SECURITY.md says is not guaranteed."""
    distributed = pytest.importorskip("torch.distributed")
    port = free_port()
    store = distributed.TCPStore("127.0.0.1", port, 2, True, wait_for_workers=False)
    store.set("key", "of the run")

    def join() -> None:
        assert distributed.TCPStore("127.0.0.1", port, 2, False).get("key") == b"of the run"

    other_user.call(join)
    second = subprocess.run([sys.executable, "-c", STORE, str(port)], capture_output=True, text=True, check=False)
    last = second.stderr.strip().splitlines()[-1]
    assert says_in_use(last, port) is True, last
    assert "torch's store and gloo do not authenticate" in (ROOT / "SECURITY.md").read_text()


def test_a_rogue_rank_0_gets_a_rank_into_its_group_only_at_a_port_that_it_knows(other_user: OrdinaryUser) -> None:
    """A rank joins whatever listens at its MASTER_PORT. So nobody may be able to compute that port."""
    distributed = pytest.importorskip("torch.distributed")
    import torch

    def join(port: int, rank: int, seconds: float = 30) -> float:
        most = timedelta(seconds=seconds)
        store = distributed.TCPStore("127.0.0.1", port, 2, rank == 0, most, wait_for_workers=False)
        options = distributed.ProcessGroupGloo._Options()
        options._timeout = most
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        number = torch.tensor([666.0 if rank == 0 else 1.0])
        distributed.ProcessGroupGloo(store, rank, 2, options).allreduce([number]).wait()
        return float(number)

    hashed, port = hashed_port(0), free_port()
    assert port != hashed
    with ThreadPoolExecutor(1) as pool:
        rogue = pool.submit(other_user.call, lambda: join(hashed, 0))
        assert join(hashed, 1) == 667.0, "what a rogue could do to every launch"
        rogue.result()
    with pytest.raises(distributed.DistError):
        join(port, 1, 1)


class Recorded:
    """One rank, and everything that it sends over torch's process group."""

    size, rank, first, group = 1, 0, True, None

    def __init__(self) -> None:
        self.sent: list[object] = []

    def gather(self, value: object) -> list[object]:
        self.sent.append(value)
        return [value]

    def from_first(self, value: object) -> object:
        self.sent.append(value)
        return value


def test_the_snapshot_daemons_key_is_not_sent_over_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from transom_cli.ckpt.save.daemon import DaemonSession
    from transom_cli.ckpt.snapshot.protection import NONE
    from transom_cli.ckpt.snapshot.rendezvous import launch_key

    run = RunDir(tmp_path)
    secret.make(run.secret)
    monkeypatch.setenv("TRANSOM_RUN_DIR", str(run.path))
    ranks = Recorded()
    session = DaemonSession(tmp_path, ranks, "7.0.0", print, NONE, None, {})  # type: ignore[arg-type]
    session.ask("end")
    session.close()
    key = session._key
    assert len(key) == 64 and key not in repr(ranks.sent)
    (_, name, _), *_ = ranks.sent
    assert launch_key(name) == key
    monkeypatch.delenv("TRANSOM_RUN_DIR")
    assert launch_key(name) != key, "who knows all that was sent does not know the key"

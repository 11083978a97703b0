"""Another user of the same host connects to what listens for a run: agents, snapshot daemons, the probe's store."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - another user may not read it later
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from slurm_fake import FakeSlurm
from slurm_support import OrdinaryUser

from transom_cli.ckpt.snapshot.daemon import Daemon
from transom_cli.health.probe.rendezvous import OwnStore, RemoteStore
from transom_cli.layout import RunDir
from transom_cli.rpc import secret
from transom_cli.rpc.client import Client
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.server import ALL, Server
from transom_cli.rpc.sockets import peer_user
from transom_cli.rpc.verbs import Reply
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions

ROOT = Path(__file__).resolve().parents[2]
KEY = os.urandom(32)
SOON = 20.0


def refused(user: OrdinaryUser, address: str, port: int, key: bytes = KEY, who: str = "7.0/n1") -> None:
    """The user gets no answer, even with the run's secret, as if it had been stolen."""

    def call() -> None:
        with pytest.raises(RpcError, match="Rejected"):
            Client.connect(address, port, key, who, SOON)

    user.call(call)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(KEY, "7.0/n1", frozenset({"127.0.0.1"}), lambda call: Reply({"verb": call.verb}))
    yield made
    made.stop()


def own_call(address: str, port: int) -> dict[str, object]:
    with Client.connect(address, port, KEY, "7.0/n1", SOON) as client:
        return client.call("probe", SOON)


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_another_user_of_this_host_gets_no_answer_even_with_the_secret(
    server: Server, address: str, other_user: OrdinaryUser
) -> None:
    """The second address is of an IPv6 socket, which the kernel lists elsewhere."""
    port = server.start("127.0.0.1")
    refused(other_user, address, port)
    assert server.counts["refused_user"] == 1 and server.counts["accepted"] == 0
    assert own_call(address, port) == {"verb": "probe"}


def test_root_and_this_user_are_known_by_the_kernels_list(ordinary_user: OrdinaryUser) -> None:
    """Of this host's sockets, by the address of any interface; a list that cannot be read tells nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        port = listener.getsockname()[1]

        def connect() -> None:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.recv(1)  # until the other side closes

        theirs = pool.submit(ordinary_user.call, connect)
        with listener.accept()[0] as sock:
            assert peer_user(sock) == ordinary_user.uid
            assert peer_user(sock, "/nowhere") is None
        theirs.result()
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0] as sock:
            assert peer_user(sock) == os.geteuid()


def test_a_server_listens_on_its_own_address_only(server: Server) -> None:
    port = server.start("127.0.0.1")
    assert server.address == "127.0.0.1"
    with pytest.raises(RpcError):
        own_call("127.0.0.2", port)
    assert own_call("127.0.0.1", port) == {"verb": "probe"}


def test_a_server_whose_address_is_not_of_this_host_listens_on_all(server: Server) -> None:
    port = server.start("192.0.2.7")
    assert server.address == ALL
    assert own_call("127.0.0.1", port) == {"verb": "probe"}


class Node:
    """A real agent of node nX, which is told to listen at `address`."""

    def __init__(self, folder: Path, address: str) -> None:
        self.run = RunDir(folder / "run")
        self.attempt = self.run.attempt(12, 0)
        self.attempt.nodes.mkdir(parents=True)
        secret.make(self.run.secret)
        self.attempt.peers.write_text(json.dumps({"allowed": ["127.0.0.1"], "nodes": {"nX": address}}))
        words = [sys.executable, "-m", "transom_cli.supervise.agent.agent", "--attempt-dir", str(self.attempt.path)]
        words += ["--beats-dir", str(folder / "beats"), "--node", "nX"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM"))}
        self.log = folder / "log"
        with self.log.open("wb") as out:
            env |= {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": "nX"}
            self.process = subprocess.Popen(words, env=env, stdout=out, stderr=out)
        self.port = self._port()

    def _port(self) -> int:
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                return int(json.loads(self.attempt.endpoint("nX").read_text())["port"])
        raise AssertionError(self.log.read_text())

    def addresses(self) -> set[str]:
        found = psutil.Process(self.process.pid).net_connections("tcp")
        return {one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN}

    def call(self, verb: str, **fields: object) -> dict[str, object]:
        key = secret.read(self.run.secret)
        with Client.connect("127.0.0.1", self.port, key, "12.0/nX", SOON) as client:
            return client.call(verb, SOON, **fields)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    made: list[Node] = []
    yield made
    for node in made:
        node.process.kill()
        node.process.wait()


def test_an_agent_listens_where_its_launcher_calls_and_answers_no_other_user(
    nodes: list[Node], tmp_path: Path, other_user: OrdinaryUser
) -> None:
    nodes.append(node := Node(tmp_path, "127.0.0.1"))
    assert node.addresses() == {"127.0.0.1"}
    assert "all addresses" not in node.log.read_text()
    stolen = secret.read(node.run.secret)
    refused(other_user, "127.0.0.1", node.port, stolen, "12.0/nX")

    chosen = node.call("port")["port"]
    assert node.call("port", port=chosen) == {"free": True}
    with socket.create_server(("127.0.0.1", 0)) as held:
        assert node.call("port", port=held.getsockname()[1]) == {"free": False}


def test_an_agent_without_that_address_listens_on_all_and_says_so(nodes: list[Node], tmp_path: Path) -> None:
    nodes.append(node := Node(tmp_path, "192.0.2.7"))
    assert node.addresses() == {ALL}
    assert "the agent of nX listens on all addresses: 192.0.2.7 is none of them" in node.log.read_text()
    assert node.call("probe")["node"] == "nX"


@pytest.mark.parametrize(("address", "loopback"), [("10.9.8.7", False), ("127.0.0.1", True)])
def test_agents_accept_loopback_only_if_a_nodes_name_resolves_to_it(
    address: str, loopback: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transom_cli.supervise.launcher.agents._ip", lambda name: address)
    run = RunDir(tmp_path)
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,))
    agents = Agents(Allocation(7, 0, ("n1",)), options, run.attempt(7, 0), print, lambda _: FakeSlurm())
    assert ("127.0.0.1" in agents._peers()) is loopback
    assert address in agents._peers()


def test_a_snapshot_daemon_listens_at_the_address_of_the_job(tmp_path: Path, other_user: OrdinaryUser) -> None:
    daemon = Daemon(str(tmp_path / "socket"))
    try:
        port = daemon.listen("/there", KEY, "n1", "127.0.0.1", 0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        refused(other_user, "127.0.0.1", port, who="memory/n1")
        with Client.connect("127.0.0.1", port, KEY, "memory/n1", SOON) as client, pytest.raises(RpcError) as caught:
            client.call("all", SOON, directory="/there")
        assert "no snapshots of that training" in caught.value.why
    finally:
        daemon.close()


def test_the_probes_store_serves_only_who_knows_its_password() -> None:
    store = OwnStore()
    stranger = RemoteStore("127.0.0.1", store.port, "guess", SOON)
    with pytest.raises(OSError, match=r"closed|reset|pipe"):
        stranger.set("all/here/0", b"10.0.0.66")
        stranger.get(["all/here/0"], 0.0)
    assert store.get(["all/here/0"], 0.0) == [None]
    member = RemoteStore("127.0.0.1", store.port, store.password, SOON)
    member.set("all/here/0", b"10.0.0.1")
    assert store.get(["all/here/0"], 0.0) == [b"10.0.0.1"]
    stranger.close()
    member.close()

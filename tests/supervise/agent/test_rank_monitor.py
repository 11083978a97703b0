"""NVRx's clients are answered without unpickling blindly. data/nvrx.json has messages that they have sent."""

from __future__ import annotations

import base64
import json
import os
import pickle
import pickletools
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from transom_cli.heartbeat import paths
from transom_cli.heartbeat.table import RankBeat
from transom_cli.supervise.agent.rank_monitor import MOST, BadMessage, Message, RankMonitor, read_message

RECORDED = json.loads((Path(__file__).parent / "data" / "nvrx.json").read_text())
OLD, NEW = RECORDED["0.4.1"], RECORDED["0.7.0"]  # the newer one beside Megatron, whose iteration it knows


class Client:
    """Sends recorded messages, as the client of a rank does."""

    def __init__(self, folder: Path, said: dict[str, str]) -> None:
        self._said = {name: base64.b64decode(text) for name, text in said.items()}
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(paths.rank_monitor(str(folder)))

    def send(self, name: str) -> None:
        self.send_bytes(self._said[name])

    def send_bytes(self, data: bytes) -> None:
        self.sock.sendall(len(data).to_bytes(4, "big") + data)

    def answer(self) -> bytes:
        size = self.sock.recv(4, socket.MSG_WAITALL)
        return self.sock.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture
def monitor(tmp_path: Path, refused: list[str]) -> Iterator[RankMonitor]:
    monitor = RankMonitor(lambda: 3, refused.append)
    monitor.start(str(tmp_path))
    yield monitor
    assert not [one for one in refused if "not answered" in one]


def silent(launch: int = 3) -> RankBeat:
    """A rank without automatic heartbeats."""
    return RankBeat(5, launch, -1, 0, 100.0, None, "start", 1, "R")


def shown(monitor: RankMonitor, ready: Callable[[RankBeat], bool], row: RankBeat | None = None) -> RankBeat:
    deadline = time.monotonic() + 30
    while not ready(found := monitor.apply((row or silent(),))[0]):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def test_sections_and_heartbeats_of_the_old_client_are_progress(monitor: RankMonitor, tmp_path: Path) -> None:
    assert monitor.apply((silent(),)) == (silent(),)
    client = Client(tmp_path, OLD)
    for name in ("init", "open", "close", "update", "heartbeat"):
        client.send(name)
        assert b"OkMsg" in client.answer()  # it waits for each
    found = shown(monitor, lambda row: row.count == 3)
    assert (found.step, found.since_start, found.phase) == (2, True, "step")
    assert found.age < 100
    automatic = silent()._replace(step=7, count=7, since_start=True, phase="step")
    assert monitor.apply((automatic,))[0][:4] == (5, 3, 7, 10)  # its steps are those of the optimizer
    assert monitor.apply((silent(launch=4),)) == (silent(launch=4),)  # which this client is not of
    client.sock.close()
    assert shown(monitor, lambda row: row.count == 0) == silent()


def test_iteration_of_the_new_client_is_the_step_and_it_waits_for_no_answer(
    monitor: RankMonitor, tmp_path: Path
) -> None:
    client = Client(tmp_path, NEW)
    client.send("init")
    assert b"skip_section_response" in client.answer()
    client.send("open")
    client.send("close")
    counted = silent()._replace(step=1, count=1, since_start=True, phase="step")
    found = shown(monitor, lambda row: row.count == 3, counted)
    assert (found.step, found.since_start) == (41, False)  # iteration 40 is finished with this section
    client.send("checkpointing")
    found = shown(monitor, lambda row: row.phase == "checkpoint", counted)
    assert found.step == 42
    client.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.sock.recv(1)


def hostile(tmp_path: Path) -> dict[str, bytes]:
    data = "nvidia_resiliency_ext.fault_tolerance.data"
    marker = tmp_path / "ran"
    command = pickle.dumps(f"touch {marker}", 2)[2:-1]
    known = f"c{data}\nHeartbeatMsg\n".encode()
    return {
        "a command": b"\x80\x02cos\nsystem\n" + command + b"\x85R.",
        "a builtin": b"\x80\x02cbuiltins\neval\n" + command + b"\x85R.",
        "a dotted name": b"\x80\x04\x8c" + bytes([len(data)]) + data.encode() + b"\x8c\x14InitMsg.__init__.__x\x93.",
        "another module of the package": f"\x80\x02c{data}.os\nsystem\n".encode() + command + b"\x85R.",
        "a changed class": b"\x80\x02" + known + b"N}U\x05args_K\x01s\x86b.",
        "a class's dictionary": b"\x80\x02" + known + b"}U\x05args_K\x01sb.",
        "a large memo": b"\x80\x02" + known + b"r\xff\xff\xff\x7f)\x81.",
        "a large allocation": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
        "an extension": b"\x80\x02\x82\x01.",
        "no message": b"\x80\x02K\x01.",
        "no end": b"\x80\x02" + known,
        "no pickle": b"\x00\xff",
    }


@pytest.mark.parametrize("name", hostile(Path()))
def test_hostile_pickle_is_refused(name: str, tmp_path: Path) -> None:
    data = hostile(tmp_path)[name]
    with pytest.raises(BadMessage):
        read_message(data)
    assert not (tmp_path / "ran").exists()
    assert not hasattr(Message, "args_")


def test_damaged_message_raises_nothing_else() -> None:
    whole = base64.b64decode(NEW["open"])
    assert {one.name for one, _, _ in pickletools.genops(whole)} >= {"REDUCE", "BUILD", "STACK_GLOBAL"}
    for at in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            try:
                assert isinstance(read_message(bytes(data)), Message)
            except BadMessage:
                continue


@pytest.mark.parametrize("what", ["hostile", "large", "early", "rankless"])
def test_connection_ends_and_others_are_answered_after_a_bad_message(
    monitor: RankMonitor, refused: list[str], tmp_path: Path, what: str
) -> None:
    bad = Client(tmp_path, OLD)
    if what == "hostile":
        bad.send_bytes(hostile(tmp_path)["a command"])
    elif what == "large":
        bad.sock.sendall((MOST + 1).to_bytes(4, "big"))
    elif what == "early":
        bad.send("heartbeat")
    else:
        bad.send_bytes(base64.b64decode(OLD["init"]).replace(b"global_rank", b"global_tank"))
    assert bad.answer() == b""
    assert len(refused) == 1
    good = Client(tmp_path, OLD)
    good.send("init")
    assert b"OkMsg" in good.answer()


def test_own_client_of_nvrx_understands_the_answers(monitor: RankMonitor, tmp_path: Path) -> None:
    pytest.importorskip("nvidia_resiliency_ext.fault_tolerance", reason="`make test-frameworks` has it")
    code = (
        "from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient\n"
        "import torch.distributed as dist\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
        "client = RankMonitorClient()\nclient.init_workload_monitoring()\n"
        "for section in ('setup', 'step', 'checkpointing'):\n"
        "    client.start_section(section)\n    client.end_section(section)\n"
        "client.send_heartbeat()\n"
        "assert client.calculate_and_set_section_timeouts(selected_sections=['step'], calc_out_of_section=False)\n"
        "client.load_state_dict(client.state_dict())\nclient.shutdown_workload_monitoring()\n"
    )
    env = {**os.environ, "RANK": "5", paths.RANK_MONITOR: paths.rank_monitor(str(tmp_path))}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=200)

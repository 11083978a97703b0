"""GPUs from the file that an agent leaves to the screens; and the whole way, from real agents over a stub of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nvml_stub
import pytest
from processes import wait_for
from view_made import JOB, NOW, Made
from view_scenes import SCENES

from transom_cli.health.gpu.reading import Ecc, Heat
from transom_cli.health.gpu.xid import GpuEvent
from transom_cli.view.document import to_json
from transom_cli.view.model import NodeView, RunView
from transom_cli.view.node_table import node_table
from transom_cli.view.read import Reader, read_view
from transom_cli.view.read_nodes import NodeReader
from transom_cli.view.text import plain
from transom_cli.view.watch.panels import Filter, node_items

ROOT = Path(__file__).parents[2]


def opened(view: RunView, node: str) -> list[str]:
    items = node_items(view, Filter(everything=True), f"node {node}")[1]
    assert not any(item.details for item in items if item.key != f"node {node}")
    return [plain(one) for item in items for one in item.details]


def node(view: RunView, name: str) -> NodeView:
    return next(one for one in view.node_views if one.node == name)


def test_a_node_that_is_opened_tells_all_of_its_gpus(tmp_path: Path) -> None:
    odd = {"gpu001": {3: {"heat": Heat(88, 87, 92), "reasons": 0x40, "busy": None, "ecc": Ecc(2, 2, 14, 14)}}}
    events = {"gpu001": GpuEvent("xid", "GPU-gpu001-6", xid=31, wall=NOW - 240)}
    view = Made(tmp_path, nodes=2).began().stepped().gpus(odd, events=events).beats().operator().view()
    assert opened(view, "gpu001")[2:] == [
        "gpus        8/8 respond, read 11 s ago  gpu3 ECC errors",
        "            util 99 98 97 - 98 97 99 98 %",
        "            temp 58-88 C, slowdown at 87   power 640-689 of 700 W   memory 61 of 80 GiB",
        "            ECC 2, 14 corrected   Xid 31 on gpu6 4m 11s ago",
        "gpu3        88 C, heavy; throttled: hardware thermal slowdown; 2 uncorrected ECC errors  GPU-gpu001-3",
        "gpu6        Xid 31 4m 11s ago  GPU-gpu001-6",
    ]
    assert opened(view, "gpu000")[2:][-1] == "            ECC 0   Xid none in 6h 12m"


def test_what_a_gpu_does_not_tell_is_left_out_and_not_0(tmp_path: Path) -> None:
    mute = {"ecc": Ecc(), "rows": None, "reasons": None, "busy": None, "heat": Heat(), "memory_used": None}
    view = Made(tmp_path, nodes=1).began().gpus({"gpu000": dict.fromkeys(range(8), mute)}).beats().operator().view()
    assert opened(view, "gpu000")[2:] == [
        "gpus        8/8 respond, read 11 s ago",
        "            power 640-689 of 700 W",
        "            Xid none in 6h 12m",
    ]
    told = json.loads(to_json(view))["node_views"][0]["gpus"]
    assert set(told["gpus"][0]) == {"index", "uuid", "name", "memory_total", "power", "power_limit"}


def test_a_run_without_gpus_is_shown_as_ever(tmp_path: Path) -> None:
    view = SCENES["one_node_of_many"](tmp_path)
    assert all(one.gpus is None for one in view.node_views)
    assert "gpus" not in json.loads(to_json(view))["node_views"][0]
    head = plain(node_table(view, everything=True)[0])
    assert "GPU" not in head and "WORST" not in head and "RANKS" in head


def test_ranks_that_have_ended_are_told_beside_the_gpus_too(tmp_path: Path) -> None:
    view = Made(tmp_path, nodes=2).began().gpus().beats(dead={"gpu001": "X"}).operator().view()
    head, only, *_ = (plain(one) for one in node_table(view, everything=False))
    assert head.split() == ["NODE", "STATE", "STEP", "BEAT", "RANKS", "GPU", "NOTE"] and "7/8  8/8" in only


def test_an_old_reading_is_said_to_be_old_and_only_a_fault_in_it_is_listed(tmp_path: Path) -> None:
    odd = {"gpu001": {0: {"reasons": 0x40}}, "gpu002": {0: {"ecc": Ecc(1, 1, 0, 0)}}, "gpu003": {0: {"reasons": 0x40}}}
    ago = {"gpu001": 300.0, "gpu002": 300.0}
    view = Made(tmp_path, nodes=4).began().gpus(odd, ago=ago).beats().operator().view()
    _, *listed, _ = (plain(one) for one in node_table(view, everything=False))
    assert [one.split()[0] for one in listed] == ["gpu002", "gpu003"]
    assert listed[0].endswith("gpu0 ECC errors, 4m old") and listed[1].endswith("gpu0 throttled")
    assert "8/8 respond, read 4m 59s ago (old)  gpu0 throttled" in opened(view, "gpu001")[2]
    told = {one["node"]: one["gpus"] for one in json.loads(to_json(view))["node_views"]}
    assert [told[name]["old"] for name in view.nodes] == [False, True, True, False]
    assert told["gpu001"]["age"] == pytest.approx(299.4)


def test_a_moderate_heat_alone_lists_no_node(tmp_path: Path) -> None:
    odd = {"gpu001": {0: {"heat": Heat(84, 87, 92)}}}
    view = Made(tmp_path, nodes=2).began().gpus(odd).beats().operator().view()
    assert node_table(view, everything=False) == []
    assert "gpu0 84 C, moderate" in plain(node_table(view, everything=True)[2])


def test_among_nodes_in_one_state_the_worst_gpus_come_first(tmp_path: Path) -> None:
    odd = {"gpu001": {0: {"heat": Heat(90, 87, 92)}}, "gpu002": {0: {"reasons": 8}}, "gpu003": {0: {"recovery": 1}}}
    view = Made(tmp_path, nodes=4).began().gpus(odd).beats().operator().view()
    assert [item.key for item in node_items(view, Filter())[1]] == ["node gpu003", "node gpu002", "node gpu001"]


def test_who_looks_again_opens_only_files_that_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path, nodes=3).began().gpus().beats().operator()
    attempt = made.run.attempt(JOB, 0)
    reader = NodeReader(budget=10.0)
    first, _ = reader.read(attempt)
    assert [sight.gpus.answering if sight.gpus else None for sight in first.values()] == [8] * 3
    decoded = []
    read = sys.modules["transom_cli.health.gpu.status"].decode
    monkeypatch.setattr("transom_cli.health.gpu.status.decode", lambda text: decoded.append(text) or read(text))
    reader.read(attempt)
    assert decoded == []
    made.gpus({"gpu001": {2: {"reasons": 0x8}}}, ago={"gpu001": 3.0})
    again, _ = reader.read(attempt)
    assert len(decoded) == 1 and again["gpu001"].gpus is not None and again["gpu001"].gpus.worst == "gpu2 throttled"


def test_a_spoilt_file_costs_its_column_and_nothing_else(tmp_path: Path) -> None:
    made = Made(tmp_path, nodes=3).began().gpus().beats().operator()
    attempt = made.run.attempt(JOB, 0)
    attempt.gpus("gpu000").write_bytes(b"\xff\x00")
    attempt.gpus("gpu001").write_text(attempt.gpus("gpu001").read_text()[:900])  # cut short in its lines
    view = made.view()
    assert [one.state for one in view.node_views] == ["ok"] * 3
    assert [one.gpus is None for one in view.node_views] == [True, False, False]
    assert json.loads(to_json(view))["node_views"][1]["gpus"]["answering"] == 8


@pytest.fixture
def agents() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


def test_the_whole_way_from_real_agents_to_the_screen(tmp_path: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    """Two agents over a stub of NVIDIA's library; on one of the nodes a GPU is lost, and another one is hot."""
    made = Made(tmp_path, nodes=2).began().operator()
    attempt, states = made.run.attempt(JOB, 0), tmp_path / "states"
    attempt.path.mkdir(parents=True, exist_ok=True)
    hot = nvml_stub.with_fault(nvml_stub.healthy(4, "gpu001"), "hot", gpu=2)
    nvml_stub.write(states, "gpu000", nvml_stub.healthy(4, "gpu000"))
    nvml_stub.write(states, "gpu001", nvml_stub.with_fault(hot, "lost", gpu=1))
    stub = nvml_stub.environment(nvml_stub.build(tmp_path / "lib"), states)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))} | stub
    what = json.dumps({"every": 30.0, "about": {"tier": "watch", "gpus": 4}})
    for name in made.nodes:
        where = ("--attempt-dir", str(attempt.path), "--beats-dir", str(tmp_path / name), "--node", name)
        argv = [sys.executable, "-m", "transom_cli.supervise.agent.agent", *where, "--watch", what]
        agents.append(subprocess.Popen(argv, env=clean | {"PYTHONPATH": str(ROOT), "SLURMD_NODENAME": name}))

    def seen() -> RunView | None:
        view = read_view(made.run)
        return view if view.node_views and all(one.gpus is not None for one in view.node_views) else None

    wait_for(lambda: seen() is not None, 60)
    view = seen()
    assert view is not None
    well, ill = node(view, "gpu000"), node(view, "gpu001")
    assert well.gpus is not None and ill.gpus is not None
    assert (well.gpus.answering, well.gpus.expected, well.gpus.worst) == (4, 4, "")
    assert (ill.gpus.answering, ill.gpus.expected, ill.gpus.worst, ill.gpus.level) == (3, 4, "gpu1 lost", "fault")
    told = opened(view, "gpu001")
    assert any("no answer: " in one and one.startswith("gpu1 ") for one in told)
    assert any(one.startswith("gpu2        88 C, heavy") for one in told)
    assert attempt.gpus("gpu001").stat().st_mode & 0o777 == 0o600
    assert Reader(made.run).look().node_views[0].gpus == well.gpus


def test_the_widest_worst_leaves_room_at_80_columns(tmp_path: Path) -> None:
    view = SCENES["gpus"](tmp_path)
    wide = replace(node(view, "gpu003"), node="gpu003-rack12", step=1_843_021)
    lines = [plain(one) for one in node_table(replace(view, node_views=(wide,)), everything=True)]
    assert lines[1].index("a node is slow") < 70

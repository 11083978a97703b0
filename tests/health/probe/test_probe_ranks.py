"""Real rank processes over gloo: healthy, stopped, killed, wrong, slow, without torch, and without a driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from probe_findings import bad
from processes import wait_for
from rank_server import Forked

from transom_cli.health.check import About
from transom_cli.health.finding import Remedy, Verdict
from transom_cli.health.probe.compute import FLIP
from transom_cli.health.probe.drive import ProbeResult, drive
from transom_cli.health.probe.plan import ProbeLimits
from transom_cli.health.protocol import Message

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

from local_ranks import LocalRanks

NODES = ("n0", "n1", "n2", "n3")
HOME = dict.fromkeys(NODES, "127.0.0.1")
# deadlines that a machine keeps which has much else to do; a fault costs one of them
LIMITS = ProbeLimits(probe_hello=60.0, probe_quick=100.0)
RANK = [sys.executable, "-m", "transom_cli.health.probe.rank", "--node", "n0", "--index", "0", "--device", "cpu"]


def probe(crew: Any) -> ProbeResult:
    return drive(crew, About(), LIMITS, addresses=HOME)


@pytest.fixture(scope="module")
def ranks() -> Iterator[LocalRanks]:
    """Started once, and never broken; n3 computes its attention wrongly, and is taken along only where that matters."""
    with LocalRanks(NODES, environment={"n3": {FLIP: "attention"}}, popen=Forked) as crew:
        yield crew


def test_healthy_ranks_are_well_and_meet_two_others_each(ranks: LocalRanks) -> None:
    result = probe(ranks.some(NODES[:3]))
    assert bad(result) == {}
    assert {f.verdict for f in result.findings} <= {Verdict.PASS, Verdict.MONITOR}
    assert {(cell.src, cell.dst) for cell in result.matrix} == {(a, b) for a in NODES[:3] for b in NODES[:3] if a != b}
    assert all(cell.rate and cell.delay for cell in result.matrix)
    assert [phase for phase, _ in result.timings][:1] == ["hello"]


@pytest.mark.long
def test_two_devices_a_node_meet_each_its_like() -> None:
    with LocalRanks(NODES[:2], devices=2, popen=Forked) as ranks:
        result = probe(ranks)
    assert bad(result) == {}
    assert sorted((cell.src, cell.dst, cell.index) for cell in result.matrix) == [
        ("n0", "n1", 0), ("n0", "n1", 1), ("n1", "n0", 0), ("n1", "n0", 1),
    ]  # fmt: skip
    assert {(one.node, one.index) for one in result.reading.alls if one.well} == set(ranks.processes)


def test_device_with_other_bits_than_all_others_fails(ranks: LocalRanks) -> None:
    result = probe(ranks)
    assert bad(result) == {"n3": ["compute_digest"]}
    finding = next(f for f in result.findings if f.verdict is Verdict.FAIL)
    assert finding.remedy is Remedy.REPAIR
    assert "attention float32" in finding.evidence
    assert "1 of 4 devices" in finding.evidence


def test_of_two_that_differ_neither_is_blamed(ranks: LocalRanks) -> None:
    result = probe(ranks.some(("n0", "n3")))
    assert bad(result) == {}
    watched = [f.node for f in result.findings if f.check == "compute_digest" and f.verdict is Verdict.MONITOR]
    assert sorted(watched) == ["n0", "n3"]


class Sabotage:
    """A crew of which something happens just before the first ask of a phase ("compute", "all", "pairs")."""

    def __init__(self, crew: Any, phase: str, do: Callable[[], None]) -> None:
        self.nodes = crew.nodes
        self.receive = crew.receive
        self._crew, self._phase, self._do = crew, phase, do
        self.done = False

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        ask = message["request"]
        if not self.done and str(ask.get("phase", ask["do"])).startswith(self._phase):
            self.done = True
            self._do()
        self._crew.send(message, to)


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "check"),
    [
        ("compute", "compute_answer"),
        pytest.param("all", "link_answer", marks=pytest.mark.long),
        ("pairs", "link_answer"),
    ],
)
def test_a_stopped_one_is_named_and_costs_one_deadline(ranks: LocalRanks, phase: str, check: str) -> None:
    some = ranks.some(NODES[:3])
    process = ranks.processes["n1", 0]
    crew = Sabotage(some, phase, lambda: process.send_signal(signal.SIGSTOP))
    try:
        result = probe(crew)
    finally:
        process.send_signal(signal.SIGCONT)
    assert crew.done
    assert bad(result) == {"n1": [check]}
    waited = [t for name, t in result.timings if name.startswith(("compute", "all", "pairs"))]
    patience = LIMITS.probe_compute if phase == "compute" else LIMITS.probe_link
    assert sum(t > patience for t in waited) == 1, result.timings
    after = probe(some)  # it continues, and its late answers are nobody's
    assert bad(after) == {}


def test_a_killed_one_is_named_at_once_with_its_signal() -> None:
    with LocalRanks(NODES[:3], popen=Forked) as ranks:
        victim = ranks.processes["n2", 0]
        result = probe(Sabotage(ranks, "all", victim.kill))
        assert bad(result) == {"n2": ["link_answer"]}
        finding = next(f for f in result.findings if f.verdict.bad)
        assert "killed by signal 9" in finding.evidence
        assert {f.verdict for f in result.findings if f.check == "link_node" and f.node != "n2"} == {Verdict.PASS}


@pytest.mark.long
def test_one_at_a_quarter_of_its_speed_is_found(ranks: LocalRanks) -> None:
    """Stopped for three quarters of each tenth of a second."""
    process = ranks.processes["n1", 0]
    over = threading.Event()

    def brake() -> None:
        while not over.is_set():
            process.send_signal(signal.SIGSTOP)
            over.wait(0.075)
            process.send_signal(signal.SIGCONT)
            over.wait(0.025)

    braking = threading.Thread(target=brake)
    braking.start()
    try:
        result = probe(ranks)
    finally:
        over.set()
        braking.join()
        process.send_signal(signal.SIGCONT)
    slow = [f.node for f in result.findings if f.check == "compute_speed" and f.verdict.bad]
    assert slow == ["n1"], [f for f in result.findings if f.check == "compute_speed"]


def started(torch: str = "", folder: Path | None = None) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A process and what it says first; torch: the source of another one, to be put into `folder`."""
    environment = dict(os.environ)
    if folder is not None:
        (folder / "torch.py").write_text(torch)
        environment["PYTHONPATH"] = f"{folder}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    pipe = subprocess.PIPE
    process = subprocess.Popen(RANK, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert process.stdout is not None
    if folder is None:  # where torch is missing it says so unasked
        ask(process, do="hello")
    return process, json.loads(process.stdout.readline())


def test_without_torch_the_hello_says_why(tmp_path: Path) -> None:
    process, found = started("raise ModuleNotFoundError(\"No module named 'torch'\")\n", tmp_path)
    assert (found["says"], found["error"]) == ("hello", "ModuleNotFoundError: No module named 'torch'")
    again, _ = process.communicate('{"do": "hello"}\n', timeout=30)
    assert again == "" or json.loads(again) == found


def test_a_library_that_prints_does_not_disturb_the_answers(tmp_path: Path) -> None:
    noise = "import os\nos.system('echo noise')\nprint('more noise', flush=True)\nraise ImportError('none')\n"
    process, found = started(noise, tmp_path)
    assert found["error"] == "ImportError: none"
    assert process.communicate(timeout=30) == ("", "noise\nmore noise\n")


def ask(process: subprocess.Popen[str], **message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def test_it_ends_in_the_midst_of_an_ask_when_its_asker_is_gone() -> None:
    process, _ = started()
    ask(process, do="compute", id=1, seconds=300.0, deadline=600.0)
    assert process.stdin is not None
    process.stdin.close()
    wait_for(lambda: process.poll() is not None)
    assert process.returncode == 0


def test_bye_ends_the_process_during_a_request() -> None:
    process, _ = started()
    ask(process, do="compute", id=1, seconds=300.0, deadline=600.0)
    ask(process, do="bye")
    wait_for(lambda: process.poll() is not None)
    assert process.returncode == 0


@pytest.mark.long
def test_an_ask_beyond_its_deadline_ends_it_by_the_kernels_alarm() -> None:
    process, _ = started()
    ask(process, do="compute", id=1, seconds=300.0, deadline=0.1)
    wait_for(lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGALRM


@pytest.mark.long
def test_unknown_message_ends_the_process_with_an_error() -> None:
    process, _ = started()
    ask(process, do="dance")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"says": "gone", "error": "unknown do 'dance'"}
    wait_for(lambda: process.poll() is not None)

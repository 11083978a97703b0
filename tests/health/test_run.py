"""Real node workers: a node that hangs, dies or lies costs its own deadline and no other node's answer."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from health_made import DO, PATH, made_check, well_check
from processes import wait_for

from transom_cli.cli.check import check
from transom_cli.health import registry
from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Verdict
from transom_cli.health.report import Report, record, replay
from transom_cli.health.run import HealthRequest, Waits, check_nodes
from transom_cli.health.transport import LocalTransport, SrunTransport, by_ssh, here


def crew(**told: str) -> LocalTransport:
    """Nodes by name, and what the made reader does there."""
    return LocalTransport(tuple(told), env={n: {DO: t, "PYTHONPATH": f"{PATH}:{Path.cwd()}"} for n, t in told.items()})


def wishes(**changed: Any) -> HealthRequest:
    checks = (made_check(), well_check())
    return HealthRequest(About(tier=Tier.QUICK, gpus=3), probe=False, **{"checks": checks, **changed})


def verdicts(report: Report, check: str = "made") -> dict[str, Verdict]:
    return {f.node: f.verdict for f in report.findings if f.check == check}


def test_each_node_is_judged_by_what_it_read() -> None:
    report = check_nodes(crew(a="1", b="11", c="raise"), wishes())
    assert verdicts(report) == {"a": Verdict.PASS, "b": Verdict.FAIL, "c": Verdict.UNKNOWN}
    assert verdicts(report, "well") == dict.fromkeys("abc", Verdict.PASS)
    assert [f.evidence for f in report.findings if f.node == "c" and f.check == "made"] == [
        "the check failed to run: RuntimeError: the tool is broken"
    ]
    pids = {
        (n, c): r["reading"]["pid"] for n, said in report.readings.items() for c, r in said.items() if "reading" in r
    }
    assert len({pids[n, "well"] for n in "abc"}) == 3, "each node has its own reader process"


@pytest.mark.long
def test_a_reader_that_hangs_or_dies_costs_its_own_answer_alone() -> None:
    began = time.monotonic()
    report = check_nodes(crew(a="hang", b="die", c="2"), wishes())
    assert verdicts(report) == {"a": Verdict.SUSPECT, "b": Verdict.UNKNOWN, "c": Verdict.PASS}
    assert verdicts(report, "well")["a"] is Verdict.PASS
    assert "signal 11" in next(f.evidence for f in report.findings if f.node == "b" and f.check == "made")
    assert time.monotonic() - began < 20, "one deadline, not the whole budget"


def test_a_long_reading_comes_whole() -> None:
    report = check_nodes(crew(a="long"), wishes())
    assert report.readings["a"]["made"]["reading"]["value"] == int("9" * 3000)


@pytest.mark.long
def test_a_node_that_gives_no_sign_is_found_and_not_waited_for_longer() -> None:
    mute = LocalTransport(("a", "b"), lambda node, argv: argv if node == "a" else ["sleep", "60"], _path())
    report = check_nodes(mute, wishes())
    assert report.silent == ("b",)
    assert verdicts(report, "answer") == {"b": Verdict.SUSPECT}
    assert verdicts(report) == {"a": Verdict.PASS}


def test_late_worker_is_not_suspected_if_all_start_slowly() -> None:
    """Python from a file server, on a thousand nodes at once."""

    def reach(node: str, argv: list[str]) -> list[str]:
        return ["sh", "-c", f'sleep {1 if node == "a" else 60}; exec "$@"', "sh", *argv]

    report = check_nodes(LocalTransport(("a", "b"), reach, _path()), wishes(waits=Waits(arrival=0.5)))
    assert report.silent == ("b",) and verdicts(report, "answer") == {"b": Verdict.UNKNOWN}
    assert "this one had" in next(f.evidence for f in report.findings if f.check == "answer")


def test_no_node_is_suspected_if_all_are_silent() -> None:
    report = check_nodes(LocalTransport(("a", "b"), lambda *_: ["false"]), wishes())
    assert verdicts(report, "answer") == {"a": Verdict.UNKNOWN, "b": Verdict.UNKNOWN}


def test_killed_worker_does_not_affect_other_nodes() -> None:
    both = crew(a="1", b="hang")
    workers = {
        p.cmdline()[-1]: p for p in psutil.Process().children() if "transom_cli.health.node_worker" in p.cmdline()
    }
    os.kill(workers["b"].pid, signal.SIGSTOP)
    report = check_nodes(both, wishes(budget=8.0))
    assert verdicts(report)["a"] is Verdict.PASS
    assert not workers["b"].is_running() or workers["b"].status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("end", "of_check", "of_node"),
    [(signal.SIGSEGV, {}, {"b": Verdict.SUSPECT}), (signal.SIGKILL, {"b": Verdict.UNKNOWN}, {})],
    ids=["crashed", "killed-by-somebody"],
)
def test_worker_that_dies_while_reading_is_named_and_not_waited_for(
    end: signal.Signals, of_check: dict[str, Verdict], of_node: dict[str, Verdict]
) -> None:
    began = time.monotonic()
    dying = crew(a="1", b="hang", c="2")
    killed: list[int] = []

    def kill_b(message: dict[str, Any]) -> None:
        if message.get("re") == "here" and message.get("node") == "b":
            os.kill(int(message["pid"]), end)
            killed.append(int(message["pid"]))

    receive = dying.receive

    def told(timeout: float) -> dict[str, Any] | None:
        message = receive(timeout)
        if message is not None:
            kill_b(message)
        return message

    dying.receive = told  # type: ignore[method-assign]
    report = check_nodes(dying, wishes(budget=20.0))
    assert killed and time.monotonic() - began < 19, "neither the reader's deadline nor the budget"
    again = replay(record(report, wishes().about, "1.0"), {}, frozenset(), "file")
    assert verdicts(report) == {"a": Verdict.PASS, "c": Verdict.PASS} | of_check
    assert verdicts(report, "answer") == verdicts(again, "answer") == of_node


def test_srun_messages_name_nodes_whose_worker_ended() -> None:
    crew = object.__new__(SrunTransport)
    crew.nodes = ("node1", "node2")
    crew.errors = deque(["srun: error: node2: task 1: Killed", "srun: error: node9: task 3: Exited with exit code 1"])
    assert crew.gone() == crew.killed() == ("node2",)
    crew.errors = deque(["srun: error: node1: tasks 0,2: Exited with exit code 127"])
    assert crew.gone() == ("node1",) and crew.killed() == ()


def test_no_process_survives_the_health_run() -> None:
    check_nodes(crew(a="hang"), wishes())
    wait_for(lambda: not any(_of_this_test(process) for process in psutil.process_iter()))


def _of_this_test(process: psutil.Process) -> bool:
    """By its environment: another test's reader process may run beside this one."""
    try:
        return process.environ().get(DO) == "hang" and process.environ().get("PYTEST_CURRENT_TEST") == _here()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _here() -> str:
    return os.environ["PYTEST_CURRENT_TEST"]


def test_disabled_checks_are_not_read_and_thresholds_can_be_set() -> None:
    report = check_nodes(crew(a="11"), wishes(off=frozenset(("made",))))
    assert verdicts(report) == {} and "made" not in report.readings["a"]
    report = check_nodes(crew(a="11"), wishes(limits=(("made_limit", 20),)))
    assert verdicts(report) == {"a": Verdict.PASS}


def test_clocks_are_compared_by_what_the_way_there_and_back_allows() -> None:
    report = check_nodes(crew(a="1", b="1"), wishes())
    assert set(report.clocks) == {"a", "b"}
    for clock in report.clocks.values():
        assert abs(clock.offset) <= clock.error + 0.05, "it is one machine"


@pytest.mark.long
def test_a_recording_is_judged_as_the_nodes_were() -> None:
    live = check_nodes(crew(a="1", b="11", c="hang"), wishes())
    text = record(live, wishes().about, "1.0")
    again = replay(text, {}, frozenset(), "file", wishes().checks)
    assert verdicts(again) == verdicts(live)
    assert set(again.findings) == set(live.findings)
    assert json.loads(text)["about"]["gpus"] == 3


def test_ssh_gets_one_word_for_its_shell_on_the_other_side() -> None:
    words = by_ssh("gpu01", ["/opt/my python/bin/python", "-m", "x", "--node", "gpu01"])
    assert words[:3] == ["ssh", "-oBatchMode=yes", "-oConnectTimeout=5"]
    assert words[-2:] == ["gpu01", "exec '/opt/my python/bin/python' -m x --node gpu01"]
    assert here("gpu01", ["x"]) == ["x"]


def _path() -> dict[str, dict[str, str]]:
    return {"a": {"PYTHONPATH": f"{PATH}:{Path.cwd()}"}}


@pytest.mark.long
def test_programs_started_by_a_reader_end_with_the_health_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DCGM's diagnostic takes minutes, and would load the GPUs of the training that follows."""
    pid_file = tmp_path / "pid"
    program = tmp_path / "checks.d" / "diagnostic"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 600\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    checks = tuple(c for c in registry.CHECKS if c.name == "site")
    about = About(tier=Tier.QUICK, site_checks=str(program.parent))
    wish = HealthRequest(about, probe=False, budget=4, checks=checks)
    report = check_nodes(LocalTransport(("a",), env={"a": {"PYTHONPATH": str(Path.cwd())}}), wish)
    assert verdicts(report, "site") == {"a": Verdict.UNKNOWN}
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.05)


def test_a_host_that_ssh_does_not_know_was_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: Could not resolve hostname node9: Name not known' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(typer.Exit) as left:
        check(nodes="node9")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert left.value.exit_code == 22 and first.startswith("nothing was checked in ")
    assert last == "  note: ssh: Could not resolve hostname node9: Name not known"

"""The launcher's loop around its core: real processes in place of srun, and agents that answer as they are told."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.ckpt import fence
from transom_cli.core.launcher import LaunchEnded
from transom_cli.core.policy import Rule
from transom_cli.layout import RunDir
from transom_cli.rpc.sockets import free_port
from transom_cli.supervise.launcher import executor, group, handoff
from transom_cli.supervise.launcher import loop as module
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.loop import Launcher
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.launcher.training import StepPlan
from transom_cli.supervise.lease import Lease

RANK = """
import json, os, sys, time
exits, code = sys.argv[1], int(sys.argv[2])
time.sleep(0.1)
ignored = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn"))
record = {"ignored": int(ignored, 16), "rank": 0, "node": "n1", "code": code, "signal": None, "wall": 1.0, "steps": 3}
open(os.path.join(exits, "rank-0.json"), "w").write(json.dumps(record))
sys.exit(code)
"""


class TwoFacedAgents:
    """No agent comes up; asked to end a launch, they say that nothing of it is left."""

    def __init__(self, allocation: Allocation, *_: object) -> None:
        self.addresses = {node: node for node in allocation.nodes}

    def free_port(self, node: str) -> int:
        return free_port()

    def start(self) -> None:
        raise OSError(28, "No space left on device")

    def end(self, launch: int, nodes: tuple[str, ...], grace: float, incident: str) -> LaunchEnded:
        return LaunchEnded(0.0, launch)

    def logs(self, *_: object) -> list[dict[str, object]]:
        return []

    def dead(self, node: str) -> bool:
        return False

    def stop(self, *, at_once: bool) -> None:
        pass


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The exit code of each launch to come."""
    planned: list[int] = []
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    handlers |= {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGUSR2)}

    def argv(_a: object, _o: object, attempt: object, launch: int, _n: object, **_: object) -> list[str]:
        return [sys.executable, "-I", "-c", RANK, str(attempt.exits(launch)), str(planned[launch])]  # type: ignore[attr-defined]

    monkeypatch.setattr(module, "Agents", TwoFacedAgents)
    monkeypatch.setattr(launchplan, "training_argv", argv)
    yield planned
    for number, handler in handlers.items():
        signal.signal(number, handler)


def launcher(folder: Path, relaunches: int = 3, warn_before: int = 0) -> Launcher:
    run = RunDir(folder)
    words = (("true",), (sys.executable,))
    options = LaunchOptions(run, "srun", *words, checkpoints=run.checkpoints, relaunches=relaunches)
    options = replace(options, warn_before=warn_before)
    slurm = FakeSlurm()
    return Launcher(Allocation(7, 0, ("n1",)), options, lambda _: slurm)


def journal(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in RunDir(folder).attempt(7, 0).launcher_journal.read_text().splitlines()]


def outcome(folder: Path) -> dict[str, object]:
    return json.loads(RunDir(folder).attempt(7, 0).outcome.read_text())  # type: ignore[no-any-return]


def test_a_training_without_agents_goes_on_and_says_so(tmp_path: Path, codes: list[int]) -> None:
    codes += [0]
    assert launcher(tmp_path).run() == 0
    assert outcome(tmp_path)["status"] == "done"
    (told,) = [r for r in journal(tmp_path) if r["type"] == "agents"]
    assert "No space left" in str(told["error"])


def test_a_rank_that_fails_is_relaunched_in_the_same_attempt(tmp_path: Path, codes: list[int]) -> None:
    codes += [7, 0]
    assert launcher(tmp_path).run() == 0
    assert [r["launch"] for r in journal(tmp_path) if r["type"] == "launch"] == [0, 1]
    assert [r["what"] for r in journal(tmp_path) if r["type"] == "recovery"] == ["seen", "diagnosed"]


@pytest.mark.long
def test_the_policy_decides_and_journal_and_outcome_tell_by_which_rule(tmp_path: Path, codes: list[int]) -> None:
    codes += [7, 7, 0]
    made = launcher(tmp_path)
    rule = Rule("seven", "relaunch", exit_code=(7,), budget=1, then="stop", source="run.toml")
    made._options = replace(made._options, rules=(rule,))
    assert made.run() == 7
    assert [r["launch"] for r in journal(tmp_path) if r["type"] == "launch"] == [0, 1]
    heals = [r for r in journal(tmp_path) if r["type"] == "recovery"]
    assert [r["what"] for r in heals] == ["seen", "diagnosed", "decided", "seen", "diagnosed"]
    assert [r["decided"]["action"] for r in heals if r["what"] == "diagnosed"] == ["relaunch", "stop"]  # type: ignore[index]
    told = outcome(tmp_path)
    assert "stopped by rule `seven` (run.toml)" in str(told["why"]) and "for the second time" in str(told["why"])
    assert [t["decided"]["rule"] for t in told["taken"]] == ["seven", "seven"]  # type: ignore[attr-defined]


def test_what_the_agents_keep_of_a_launch_that_died_is_told(
    tmp_path: Path, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes += [7, 0]

    def ask_all(agents: Agents, nodes: tuple[str, ...], name: str, _: float, about: dict[str, object]) -> object:
        assert (nodes, name, about["incident"]) == (("n1",), "end", "l1")
        return {"n1": {"ok": True, "killed": [], "survivors": [], "dumps": ["rank 0 on n1: its dump"]}}

    monkeypatch.setattr(TwoFacedAgents, "end", Agents.end)
    monkeypatch.setattr(TwoFacedAgents, "_ask_all", ask_all, raising=False)
    assert launcher(tmp_path).run() == 0
    told = [(r["what"], r["words"]) for r in journal(tmp_path) if r["type"] == "recovery"]
    assert told[1] == ("evidence", "rank 0 on n1: its dump")


def test_a_relaunch_that_cannot_be_started_is_handed_up(tmp_path: Path, codes: list[int]) -> None:
    codes += [7, 0]
    logs = RunDir(tmp_path).attempt(7, 0).logs(1)
    logs.parent.mkdir(parents=True)
    logs.write_text("in the way")
    assert launcher(tmp_path).run() != 0
    assert outcome(tmp_path)["status"] == "failed"
    assert "launch 1 cannot be started" in str(outcome(tmp_path)["why"])


def test_an_outcome_that_cannot_be_written_leaves_the_exit_code(tmp_path: Path, codes: list[int]) -> None:
    codes += [7]
    path = RunDir(tmp_path).attempt(7, 0).outcome
    path.mkdir(parents=True)  # nothing can be renamed onto it
    (path / "x").touch()
    assert launcher(tmp_path, relaunches=0).run() == 7


def test_an_outcome_is_written_once_the_disk_takes_it(
    tmp_path: Path, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes += [7]
    monkeypatch.setattr(handoff, "LINGER", 4.0)  # a live operator is waited for
    lease = Lease.take(RunDir(tmp_path))
    path = RunDir(tmp_path).attempt(7, 0).outcome
    (path / "x").mkdir(parents=True)

    def clear_the_way() -> None:
        log = RunDir(tmp_path).attempt(7, 0).launcher_journal
        while not log.exists() or '"type": "outcome"' not in log.read_text():
            time.sleep(0.05)
        time.sleep(0.5)  # the first try has failed by now
        path.rename(tmp_path / "away")

    threading.Thread(target=clear_the_way, daemon=True).start()
    assert launcher(tmp_path, relaunches=0).run() == 7
    assert outcome(tmp_path)["status"] == "failed"
    lease.give_up()


@pytest.mark.long
def test_a_warning_that_comes_while_a_launch_is_being_ended_is_kept_for_the_next(
    tmp_path: Path, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes += [7, 0]
    sent: list[tuple[int, int]] = []

    def end(agents: TwoFacedAgents, launch: int, nodes: tuple[str, ...], grace: float, incident: str) -> LaunchEnded:
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(0.3)
        return LaunchEnded(0.0, launch)

    monkeypatch.setattr(TwoFacedAgents, "end", end)
    monkeypatch.setattr(sys.modules[__name__], "RANK", RANK.replace("sleep(0.1)", "sleep(1.5)"))  # several looks long
    monkeypatch.setattr(executor.TrainingStep, "signal", lambda step, number: sent.append((id(step), number)))
    monkeypatch.setattr(module.HeartbeatMonitor, "launch", property(lambda _: 1))
    monkeypatch.setattr(module.HeartbeatMonitor, "step", lambda _, launch: 5)
    assert launcher(tmp_path).run() == 0
    assert [number for _, number in sent] == [signal.SIGUSR2]


def test_each_launch_fences_off_the_ranks_of_those_before_it(tmp_path: Path, codes: list[int]) -> None:
    codes += [7, 0]
    assert launcher(tmp_path).run() == 0
    assert (RunDir(tmp_path).checkpoints / ".fence").read_text() == "7.0.1\n"


def test_a_launcher_that_was_replaced_starts_nothing(tmp_path: Path, codes: list[int]) -> None:
    codes += [0]
    fence.take(RunDir(tmp_path).checkpoints, "8.0.0")
    assert launcher(tmp_path).run() != 0
    assert "launch 0 cannot be started: launch 8.0.0 has taken over the checkpoints" in str(outcome(tmp_path)["why"])
    assert not [r for r in journal(tmp_path) if r["type"] == "launch"]


def test_a_fence_that_cannot_be_written_keeps_nobody_from_training(
    tmp_path: Path, codes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    codes += [0]
    RunDir(tmp_path).checkpoints.write_text("in the way")
    assert launcher(tmp_path).run() == 0
    assert "ranks of older launches are not fenced off" in capsys.readouterr().out


@pytest.mark.long
def test_a_rendezvous_of_the_users_is_replaced_in_every_launch_and_said_once(
    tmp_path: Path, codes: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes += [7, 7, 0]
    monkeypatch.setenv("MASTER_ADDR", "n1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    ports: list[str] = []
    real = group.TrainingStep

    def step(plan: StepPlan, exits: Path) -> object:
        ports.append(plan.env["MASTER_PORT"])
        return real(plan, exits)

    monkeypatch.setattr(group, "TrainingStep", step)
    assert launcher(tmp_path).run() == 0
    assert "29500" not in ports and len(set(ports)) == 3
    said = [line for line in capsys.readouterr().out.splitlines() if "MASTER_PORT" in line]
    assert (
        len(said) == 1 and "MASTER_ADDR=n1 MASTER_PORT=29500 in the batch script's environment is not used" in said[0]
    )


def test_the_ranks_do_not_inherit_that_the_batch_script_ignores_the_warning(tmp_path: Path, codes: list[int]) -> None:
    codes += [0]
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert launcher(tmp_path).run() == 0
    record = json.loads((RunDir(tmp_path).attempt(7, 0).exits(0) / "rank-0.json").read_text())
    assert not record["ignored"] & (1 << (signal.SIGUSR2 - 1))


def test_a_launcher_that_comes_up_after_the_warning_warns_itself(
    tmp_path: Path, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes += [0]
    sent: list[int] = []
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))
    monkeypatch.setattr(executor.TrainingStep, "signal", lambda _, number: sent.append(number))
    assert launcher(tmp_path, warn_before=120).run() == 0
    assert sent == [signal.SIGUSR2]
    assert [r["name"] for r in journal(tmp_path) if r["type"] == "signal"] == ["SIGUSR2"]


def test_the_first_step_of_a_launch_and_the_last_before_its_end_are_written(
    tmp_path: Path, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes += [0]
    steps = iter(range(1000))
    monkeypatch.setattr(sys.modules[__name__], "RANK", RANK.replace("sleep(0.1)", "sleep(1.5)"))  # several looks long
    monkeypatch.setattr(module.HeartbeatMonitor, "launch", property(lambda _: 0))
    monkeypatch.setattr(module.HeartbeatMonitor, "step", lambda _, launch: next(steps))
    assert launcher(tmp_path).run() == 0
    text = RunDir(tmp_path).attempt(7, 0).progress.read_text()
    first, last = (json.loads(line) for line in text.splitlines())
    (began,) = [r["wall"] for r in journal(tmp_path) if r["type"] == "launch"]
    assert first["launch"] == last["launch"] == 0 and first["step"] < last["step"]
    assert float(str(began)) <= first["wall"] < last["wall"]

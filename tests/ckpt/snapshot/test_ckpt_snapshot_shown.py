"""What is in the nodes' memory is seen from outside, by `transom ckpt` and `transom status`, and read again there."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ckpt_made import Training, bare_checkpoint
from ckpt_memory_attempt import JOB, AttemptNodes, run_in
from typer.testing import CliRunner

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.snapshot.account import Account, Held, Step, together
from transom_cli.ckpt.snapshot.status_file import LOOK, SIGN, SILENT, StatusWriter
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.core.codec import plain
from transom_cli.core.operator.state import Job, State
from transom_cli.layout import RunDir
from transom_cli.view.model import build_view
from transom_cli.view.read import read_memory
from transom_cli.view.status import status_lines

NAMES = ["n0", "n1", "n2"]


def _run(*words: object) -> Any:
    return CliRunner().invoke(ckpt_app, [str(word) for word in words])


def _memory(*words: object) -> dict[str, Any]:
    result = _run(*words, "--json")
    assert result.exit_code == 0, result.exception
    found: dict[str, Any] = json.loads(result.stdout).get("memory", {})
    return found


def _status(run: RunDir) -> str:
    state = State(job=Job(id=JOB))
    view = build_view(run.run_id, state, {}, time.time(), operator=True)
    view = read_memory(run, state, view.now).added_to(view)
    return "\n".join(status_lines(view))


@pytest.mark.long
def test_a_runs_memory_is_listed_verified_and_gone_with_its_holders(tmp_path: Path) -> None:
    run, attempt = run_in(tmp_path)
    assert _memory("ls", run.path) == {}
    with AttemptNodes(run, attempt, "xor:2", NAMES) as nodes:
        nodes.start(steps=1, launch=0)
        nodes.until("settled")
        nodes.protected(1)
        deadline = time.monotonic() + 60
        while True:
            newest = _memory("ls", run.path).get("steps", [{}])[0]
            if newest.get("nodes") == NAMES and newest["protection"] == "xor:2, protected":
                break
            assert time.monotonic() < deadline, newest
            time.sleep(0.2)
        assert (newest["step"], newest["nodes_of"], newest["missing"]) == (1, 3, 0)
        first = _run("ls", run.path).stdout.splitlines()[1]
        assert first.startswith("1 ") and "in memory, 3 of 3 nodes" in first and "xor:2, protected" in first
        assert "memory 1 (" in _status(run) and "xor:2, protected)" in _status(run)
        assert "saves       every step; one of 1000 is made durable" in _status(run)

        checked = _memory("verify", run.path, "--step", 1)["steps"][0]["checked"]
        assert (checked["state"], checked["shares"], checked["rows"]) == ("good", 3, 3), checked

        nodes.kill_ranks()
        nodes.damage("n1")
        result = _run("verify", run.path, "--step", 1)
        assert result.exit_code == 0
        assert "in memory: damaged, but all of it can be had" in result.stdout
        assert "n1: " in result.stderr and "is damaged" in result.stderr and "parity gives it back" in result.stderr

        nodes.kill_holder("n2")
        result = _run("verify", run.path, "--step", 1)
        assert result.exception is not None and result.exception.exit_code == 15
        assert "n2 does not answer" in result.stderr and "it cannot be had" in result.stdout

        before = time.time() - 2 * SILENT
        os.utime(attempt.memory("n2"), (before, before))  # as it is when nobody touches it any more
        seen = _memory("ls", run.path)
        assert (seen["steps"][0]["nodes"], seen["steps"][0]["missing"]) == (["n0", "n1"], 1)
        assert list(seen["silent"]) == ["n2"]
        assert "n2: no sign of life" in _run("ls", run.path).stderr
        assert "memory" not in _status(run), "not all of it is there"

        attempt.outcome.write_text("{}")
        assert _memory("ls", run.path) == {}
        for name in ("n0", "n1"):
            assert nodes.daemons[name].wait(30) == 0
            assert not attempt.memory(name).exists()


def test_a_plain_directorys_holder_is_asked_and_nothing_is_told_once_all_is_durable(tmp_path: Path) -> None:
    training, directory = Training(1), tmp_path / "c"
    assert _run("ls", tmp_path).exit_code == 0
    checkpointer = Checkpointer(training.state, directory, every=1, persist=1000)
    for step in (1, 2):
        training.step()
        checkpointer.save(step)
    checkpointer._saver.settle()
    listed = _run("ls", directory)
    assert "in memory, 1 of 1 node" in listed.stdout and "one copy" in listed.stdout
    steps = _memory("verify", directory)["steps"]
    assert (steps[0]["step"], steps[0]["checked"]["state"], steps[0]["checked"]["shares"]) == (2, "good", 1)
    checkpointer.close()
    assert [line.split()[0] for line in _run("ls", directory).stdout.splitlines()] == ["STEP", "2"]
    assert _memory("ls", directory) == {}


def _account(directory: Path, **more: Any) -> Account:
    step = Step(4, "2026-03-04T00:00:00+00:00", "7.0.0", 2, 4096, 2, (Held(0, "__0_0.distcp", 2048),), ())
    about = {"protect": "replica", "protected": 4, "left_out": (), "parity": 2048, "slots": 8192, "nodes": 2}
    return Account(str(directory), (step,), **{**about, **more})


def test_where_no_node_can_be_asked_the_command_that_can_is_said(tmp_path: Path) -> None:
    run, attempt = run_in(tmp_path)
    attempt.memory("gpu7").write_text(json.dumps({"schema": 1, "trainings": [plain(_account(run.checkpoints))]}))
    result = _run("verify", run.path)
    assert result.exception is not None and result.exception.exit_code == 15
    command = f"srun --jobid {JOB} --overlap -N1 -n1 -w gpu7 transom ckpt verify {run.path}"
    assert command in result.stderr and "not read" in result.stdout
    bare_checkpoint(run.checkpoints, 3)
    result = _run("verify", run.path, "--json")
    assert result.exit_code == 0 and command in json.loads(result.stdout)["memory"]["unread"]


@pytest.mark.parametrize(
    ("more", "uses", "words"),
    [
        ({}, (), "replica, protected"),
        ({"left_out": ("n9",)}, (), "replica, protected but for n9"),
        ({"protected": 3}, ("being protected",), "replica, being protected"),
        ({"protected": 3}, ("being made durable",), "replica, one copy"),
        ({"protect": "none", "protected": None}, (), "one copy"),
    ],
)
def test_protection_in_words(tmp_path: Path, more: dict[str, Any], uses: tuple[str, ...], words: str) -> None:
    account = _account(tmp_path, **more)
    step = account.steps[0]
    told = Step(step.step, step.created, step.attempt, 2, step.size, step.shares, step.here, uses)
    found = together({"n0": Account(**{**vars(account), "steps": (told,)})})
    assert [(one.protection, one.where) for one in found] == [(words, "memory, 1 of 2 nodes, 1 of its shares missing")]


def test_status_tells_when_it_saves_and_the_whole_reason(tmp_path: Path) -> None:
    why = "every 40 steps: a save stalls 62 ms: 1 % of the time; one of 12 is made durable: one slows steps by 1.2 s"
    run, attempt = run_in(tmp_path)
    told = _account(run.checkpoints, rhythm=why, nodes=1, protect="none")
    whole = replace(told.steps[0], shares=1)
    attempt.memory("gpu7").write_text(json.dumps({"schema": 1, "trainings": [plain(replace(told, steps=(whole,)))]}))
    lines = _status(run).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("saves "))
    assert max(map(len, lines)) <= 80
    assert " ".join(line.removeprefix("saves").strip() for line in lines[first : first + 2]) == why


@pytest.mark.long
def test_a_folder_that_cannot_be_written_costs_nothing_and_is_tried_again(tmp_path: Path) -> None:
    path, accounts = tmp_path / "nodes" / "n0.memory", [_account(tmp_path)]
    showing = StatusWriter(path, lambda: accounts)
    showing.start()
    time.sleep(1.5 * LOOK)
    assert not path.parent.exists()
    path.parent.mkdir()
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    showing.stop()
    assert not path.exists()


def test_what_has_not_changed_is_not_written_again_but_touched(tmp_path: Path) -> None:
    path, accounts = tmp_path / "n0.memory", [_account(tmp_path)]
    showing = StatusWriter(path, lambda: accounts)
    showing._look(100.0)
    first = path.stat()
    os.utime(path, (1.0, 1.0))
    showing._look(100.0 + SIGN - 1)
    assert path.stat().st_mtime == 1.0
    showing._look(100.0 + SIGN)
    assert path.stat().st_mtime > 1.0 and path.stat().st_ino == first.st_ino
    accounts.clear()
    showing._look(200.0)
    assert not path.exists()

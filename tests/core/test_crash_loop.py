"""The same exception at the same step, start after start: the launcher relaunches twice, then stops the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_launcher import NODES, exits, feed, fresh, outcome, started, training

from transom_cli.config.load import load
from transom_cli.config.run_settings import rules_of
from transom_cli.core import launcher
from transom_cli.core.crash_loop import crash_loop
from transom_cli.core.events import Decided, RankExit, RecoverySeen
from transom_cli.core.operator.relaunches import relaunched, reported
from transom_cli.core.operator.state import Job, Phase, Policy, State
from transom_cli.core.progress import Progress

RULES = rules_of(load(site=None, user=None))
KEY_ERROR = "KeyError: 'learning_rate'"


def fails(
    state: launcher.State,
    at: float,
    step: int,
    line: str = KEY_ERROR,
    *,
    since_start: bool = False,
    of: str = "user_code",
    code: int = 1,
) -> tuple[launcher.State, list[launcher.Action]]:
    """The launch trains up to `step`; then rank 1 on n2 ends with this code, or below zero by that signal."""
    launch, how = state.launch.number, (code, None) if code >= 0 else (None, -code)
    state, _ = feed(
        state,
        launcher.Stepped(at, launch, step, since_start=since_start),
        launcher.RanksExited(at + 1, launch, (RankExit(1, "n2", *how, at, step=step, since_start=since_start),)),
        launcher.Tick(at + 3),
        launcher.LaunchEnded(at + 4, launch),
    )
    return feed(state, launcher.LogsRead(at + 5, launch, of, line, "rank-1.log"))


def ruled() -> launcher.State:
    state = training(relaunches=20)
    return replace(state, policy=replace(state.policy, rules=RULES))


@pytest.mark.parametrize("category", ["user_code", "dependency_import", "data_loader", "numeric_divergence"])
def test_third_time_at_the_same_step_stops_the_run(category: str) -> None:
    """`data_loader` is an exception of the program's own that was raised in a worker of its DataLoader."""
    state = ruled()
    for at in (10.0, 30.0):
        state, actions = fails(state, at, 7, of=category)
        assert started(actions) == [NODES]
    state, actions = fails(state, 50.0, 7, of=category)
    left = outcome(actions).outcome
    assert (left.status, started(actions)) == ("failed", [])
    assert "stopped by rule `crash-loop`" in left.why and "3 times in a row, never past the same step" in left.why


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        ((7, 8, 9, 10, 11), [KEY_ERROR] * 5),  # each start gets further
        ((7, 7, 7, 7, 7), [f"{name}Error: x" for name in ("Key", "Value", "Type", "Index", "Name")]),
    ],
)
def test_other_failures_are_restarted(steps: tuple[int, ...], lines: list[str]) -> None:
    state = ruled()
    for n, (step, line) in enumerate(zip(steps, lines, strict=True)):
        state, actions = fails(state, 10.0 + 20 * n, step, line)
        assert started(actions) == [NODES]


ALONE = launcher.Nodes(("n2",), 1)
MEMORY_ERROR = "MemoryError: Unable to allocate 512 GiB"


@pytest.mark.parametrize(
    ("category", "code", "ends"),
    [
        ("host_oom", 1, True),
        ("cuda_oom", 1, True),
        ("resource_limits", 1, True),
        ("host_oom", -9, False),  # the kernel ended it: other processes of the node may have taken the memory
        ("storage_full", 1, False),
        ("network_fabric", 1, False),
        ("gpu_hardware", 1, False),
    ],
)
def test_exception_of_the_program_is_a_loop_unless_the_node_or_the_system_may_be_at_fault(
    category: str, code: int, ends: bool
) -> None:
    state = launcher.State(7, 0, ALONE, 1, launcher.Policy(relaunches=20, rules=RULES))
    state, _ = feed(state, launcher.AttemptStarted(0.0))
    for n in range(3):
        state, actions = fails(state, 10.0 + 20 * n, 14, MEMORY_ERROR, of=category, code=code)
        assert bool(started(actions)) == (n < 2 or not ends)
    if ends:
        assert "3 times in a row, never past the same step" in outcome(actions).outcome.why


def test_crash_loop_of_memory_is_shown_although_it_is_always_on_the_same_node() -> None:
    world = State(phase=Phase.TRAINING, job=Job(7, state="RUNNING", nodes=NODES), policy=Policy(rules=RULES))
    decided = Decided("anything-else", "relaunch", "host_oom", "host_oom/1")
    for n in range(2):
        world = replace(world, progress=Progress(step=14, max_step=14))
        world = reported(world, RecoverySeen(10.0 + n, "7.0", f"l{n + 1}", "seen", "rank 1 on n2 ended"))
        found = RecoverySeen(10.5 + n, "7.0", f"l{n + 1}", "diagnosed", MEMORY_ERROR, "rank_failed", ("n2",))
        world = reported(world, replace(found, decided=decided, step=14))
        world = relaunched(world, 11.0 + n, n + 1, "launched")
    loop = crash_loop((*world.counting, world.incident), 3, RULES)
    assert loop is not None and (loop.count, loop.step, loop.ends_at) == (2, 14, 3)


def test_end_that_nothing_explains_does_not_hide_a_loop() -> None:
    """The log of one launch could not be read in time, or its survivors failed before they entered it."""
    state = ruled()
    for at in (10.0, 30.0):
        state, _ = fails(state, at, 7)
    found = (RankExit(1, "n2", 1, None, 50.0, step=7),)
    state, _ = feed(
        state, launcher.RanksExited(51.0, 2, found), launcher.Tick(53.0), launcher.LaunchEnded(54.0, 2),
        launcher.LogsRead(55.0, 2, "unknown", ""),
    )  # fmt: skip
    assert state.launch.number == 3
    _, actions = fails(state, 70.0, 7)
    assert "3 times in a row, never past the same step" in outcome(actions).outcome.why


def test_steps_of_processes_are_no_evidence_of_a_loop() -> None:
    """A trainer that resumes from its own checkpoint counts from 1 in each start."""
    state = launcher.State(7, 0, launcher.Nodes(NODES, 3), 1, launcher.Policy(relaunches=20, rules=RULES))
    state, _ = feed(state, launcher.AttemptStarted(0.0))
    for n in range(4):
        state, actions = fails(state, 10.0 + 20 * n, 30 + 20 * (n % 2), since_start=True)
        assert started(actions) == [NODES]


def test_operator_learns_the_step_of_the_failure_from_the_launcher() -> None:
    _, actions = fails(ruled(), 10.0, 7)
    found = next(a for a in actions if isinstance(a, launcher.Journal) and a.what == "diagnosed")
    assert found.step == 7
    world = State(phase=Phase.TRAINING, job=Job(7, state="RUNNING", nodes=NODES), progress=Progress(step=1, max_step=1))
    seen = RecoverySeen(10.0, "7.0", "l1", "seen", "rank 1 on n2 ended with exit code 1")
    state = reported(world, seen)
    state = reported(state, RecoverySeen(11.0, "7.0", **vars(replace(found, incident="l1"))))
    assert state.incident is not None and state.incident.step == 7, "its heartbeats had shown step 1"


def test_same_exception_after_the_same_number_of_steps_is_a_loop_without_steps_of_the_training_too() -> None:
    """An unchanged script; the operator hears of fewer steps than the exit records have."""
    state = launcher.State(7, 0, launcher.Nodes(NODES, 3), 1, launcher.Policy(relaunches=20, rules=RULES))
    state, _ = feed(state, launcher.AttemptStarted(0.0))
    world = State(phase=Phase.TRAINING, job=Job(7, state="RUNNING", nodes=NODES), policy=Policy(rules=RULES))
    for n in range(3):
        state, actions = fails(state, 10.0 + 20 * n, 4 + n % 2, since_start=True)
        found = next(a for a in actions if isinstance(a, launcher.Journal) and a.what == "diagnosed")
        world = replace(world, progress=Progress(step=2, max_step=2, since_start=True))
        for words in ({"what": "seen", "words": f"fault {n}"}, vars(found)):
            world = reported(world, RecoverySeen(10.0 + n, "7.0", **{**words, "incident": f"l{n + 1}"}))
        world = relaunched(world, 11.0 + n, n + 1, "launched")
    assert "3 times in a row, never past the same step" in outcome(actions).outcome.why
    assert world.incident is not None and (world.incident.step, world.incident.since_start) == (4, True)
    loop = crash_loop((*world.counting, world.incident), 1, RULES)
    assert loop is not None and (loop.count, loop.step) == (3, 5)
    assert crash_loop((*world.counting, world.incident), 30, RULES) is None, "this start came further"


def test_step_that_srun_cancels_after_a_ranks_death_is_not_named_as_its_cause() -> None:
    killed = (RankExit(1, "n2", None, 9, 20.0),)
    for where, named in (("rank-0.log", False), ("rank-1.log", True)):
        state = ruled()
        launch = state.launch.number
        state, _ = feed(
            state, launcher.RanksExited(21.0, launch, killed), launcher.Tick(23.0), launcher.LaunchEnded(24.0, launch)
        )
        _, actions = feed(state, launcher.LogsRead(25.0, launch, "slurm_cancelled", "STEP 7.1 CANCELLED AT", where))
        found = [a.words for a in actions if isinstance(a, launcher.Journal) and a.what == "examined"]
        assert bool(found) == named, found


def test_the_same_number_of_steps_is_no_loop_if_each_start_has_a_newer_checkpoint() -> None:
    """An unchanged script that keeps its own checkpoints, and whose processes leak."""
    state = launcher.State(7, 0, launcher.Nodes(NODES, 3), 1, launcher.Policy(relaunches=20, rules=RULES))
    state, _ = feed(state, launcher.AttemptStarted(0.0))
    for n in range(4):
        state = replace(state, progress=replace(state.progress, durable=100 * n))
        state, actions = fails(state, 10.0 + 20 * n, 4, since_start=True)
        assert any(isinstance(a, launcher.StartLaunch) for a in actions)


def exits_at_once(
    state: launcher.State, at: float, codes: tuple[int | None, ...], seconds: float = 5.0
) -> tuple[launcher.State, list[launcher.Action]]:
    """The launch ends before its first step, some seconds after its start; nothing explains it."""
    launch, at = state.launch.number, at + seconds
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, exits(*codes)),
        launcher.Tick(at + 3),
        launcher.LaunchEnded(at + 4, launch),
    )
    return feed(state, launcher.LogsRead(at + 5, launch, "unknown", "reading settings", "rank-0.log"))


def begun() -> launcher.State:
    state, _ = feed(fresh(relaunches=20), launcher.AttemptStarted(0.0))
    return replace(state, policy=replace(state.policy, rules=RULES))


@pytest.mark.parametrize("codes", [(3, 3, 3), (3, None, None)])
def test_second_identical_exit_at_once_stops_the_run(codes: tuple[int | None, ...]) -> None:
    state, actions = exits_at_once(begun(), 0.0, codes)
    assert started(actions) == [NODES], "a first unknown failure restarts"
    state, actions = exits_at_once(state, state.since, codes)
    if codes[1] is None:
        assert outcome(actions).outcome.blamed == ("n1",), "one node's rank alone failed twice: the node is suspected"
        return
    left = outcome(actions).outcome
    assert (left.status, started(actions)) == ("failed", [])
    assert "stopped by rule `quick-exit`" in left.why and "exit code 3" in left.why


@pytest.mark.parametrize(
    ("codes", "seconds"),
    [(((3, 3, 3), (4, 4, 4)) * 2, 5.0), (((3, 3, 3),) * 4, 90.0), (((137, 137, 137),) * 4, 5.0)],
    ids=["different codes", "after a minute", "a shell's code of a signal"],
)
def test_other_exits_before_the_first_step_are_restarted(codes: tuple[tuple[int, ...], ...], seconds: float) -> None:
    state = begun()
    for some in codes:
        state, actions = exits_at_once(state, state.since, some, seconds)
        assert started(actions) == [NODES]

"""The table of rules: which one decides, how its budget is counted, and what a stop must name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_policy import DEFAULT, tables
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.diagnose import CAUSES, RunFacts, diagnose, judged
from transom_cli.core.events import Decided, NodeFault, OutcomeSeen, RankExit, Stall, Taken
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.policy import IGNORE, ISOLATE, RELAUNCH, STOP, SWAP, Facts, Rule, decide_by, in_words
from transom_cli.diagnose.clue import Category

OOM = Facts("cuda_oom", "rank_failed", "torch.OutOfMemoryError: CUDA out of memory.", "cuda_oom/1", ("n1",), (1,))
TWICE = Rule("oom", RELAUNCH, category=("cuda_oom",), budget=2, within=3600.0, then=STOP, source="run.toml")


def taken(rule: str, *times: float, fingerprint: str = "cuda_oom/1", node: str = "n1") -> list[Taken]:
    return [Taken(t, Decided(rule, RELAUNCH, "cuda_oom", fingerprint), (node,)) for t in times]


def action(*rules: Rule, facts: Facts = OOM, history: list[Taken] | None = None, at: float = 10_000.0) -> str:
    verdict = decide_by(rules, facts, history or [], at)
    return verdict.action if verdict is not None else ""


def test_the_first_rule_that_fits_decides() -> None:
    other, rule = Rule("x", STOP, category=("user_code",)), Rule("y", SWAP, cause=("rank_failed",))
    assert action(other, rule, Rule("z", STOP, category=("cuda_oom",))) == SWAP
    assert action(other) == ""


@pytest.mark.parametrize(
    ("requested", "fits"),
    [
        ({"category": ("user_code", "cuda_oom")}, True),
        ({"category": ("user_code",)}, False),
        ({"pattern": r"CUDA out of \w+"}, True),
        ({"pattern": "^CUDA"}, False),
        ({"exit_code": (1, 7)}, True),
        ({"exit_code": (7,)}, False),
        ({"signal": (9,)}, False),
        ({"slurm_state": ("FAILED",)}, False),
        ({"before_first_step": False}, True),
        ({"before_first_step": True}, False),
        ({"first_attempt": True}, False),
        ({"against_node": False}, True),
        ({"category": ("cuda_oom",), "exit_code": (7,)}, False),
    ],
)
def test_all_that_a_rule_asks_must_hold(requested: dict[str, object], fits: bool) -> None:
    assert (action(Rule("r", SWAP, **requested)) == SWAP) is fits  # type: ignore[arg-type]


def test_a_budget_is_counted_by_fingerprint_within_its_time() -> None:
    assert action(TWICE, history=taken("oom", 9000.0)) == RELAUNCH
    assert action(TWICE, history=taken("oom", 9000.0, 9500.0)) == STOP
    assert action(TWICE, history=taken("oom", 5000.0, 9500.0)) == RELAUNCH, "the first was too long ago"
    assert action(TWICE, history=taken("oom", 9000.0, 9500.0, fingerprint="cuda_oom/2")) == RELAUNCH
    assert action(TWICE, history=taken("other", 9000.0, 9500.0)) == RELAUNCH


def test_without_a_then_the_next_rule_decides() -> None:
    rule = replace(TWICE, then="", within=None)
    assert action(rule, Rule("next", SWAP), history=taken("oom", 1.0, 2.0)) == SWAP
    assert action(rule, history=taken("oom", 1.0, 2.0)) == ""


def test_a_budget_of_a_node_is_counted_on_that_node() -> None:
    rule = replace(TWICE, scope="node")
    assert action(rule, history=taken("oom", 9000.0, 9500.0, node="n2")) == RELAUNCH
    assert action(rule, history=taken("oom", 9000.0, 9500.0)) == STOP


def test_a_stop_names_rule_file_line_and_count() -> None:
    verdict = decide_by((TWICE,), OOM, taken("oom", 9000.0, 9500.0), 10_000.0)
    assert verdict is not None and verdict.rule == "oom"
    assert verdict.evidence == (
        'stopped by rule `oom` (run.toml): cuda_oom: "torch.OutOfMemoryError: CUDA out of memory.", '
        "for the third time within 1h"
    )


def test_a_first_unknown_restarts_and_a_second_one_may_stop() -> None:
    rule = Rule("strict", STOP, category=("unknown", "user_code"))
    unknown = Facts("unknown", "job_failed", "x", "unknown/1")
    first = decide_by((rule,), unknown, [], 0.0)
    assert first is not None and first.action == RELAUNCH and "a first unknown failure restarts" in first.evidence
    seen = [Taken(1.0, Decided("strict", RELAUNCH, "unknown", "unknown/1"))]
    assert action(rule, facts=unknown, history=seen) == STOP
    assert action(rule, facts=replace(unknown, category="user_code")) == STOP
    assert action(replace(rule, exit_code=(3,)), facts=replace(unknown, exit_codes=(3,))) == STOP, "that is evidence"
    assert action(replace(rule, cause=("job_failed",)), facts=unknown) == RELAUNCH, "that is none"
    assert action(replace(rule, cause=("unknown_end",)), facts=replace(unknown, cause="unknown_end")) == STOP
    undecided = [Taken(1.0, Decided("", "", "unknown", "unknown/1"))]
    assert action(rule, facts=unknown, history=undecided) == STOP, "it is not the first"


@given(tables, st.sampled_from([c.value for c in Category]), st.sampled_from(CAUSES), st.integers(0, 3))
def test_every_failure_has_an_answer(rules: tuple[Rule, ...], category: str, cause: str, before: int) -> None:
    facts = Facts(category, cause, "line", "f/1", ("n1",))
    history = taken("a", *range(before), fingerprint="f/1")
    verdict = decide_by(rules, facts, history, 5.0)
    if verdict is None:
        return
    (rule,) = [r for r in rules if r.name == verdict.rule]
    assert rule.name == verdict.rule and rule.name in verdict.evidence
    if verdict.action == STOP and category == "unknown" and not before:
        requested = rule.exit_code or rule.signal or rule.slurm_state or rule.pattern
        assert requested or (rule.cause and cause not in ("rank_failed", "job_failed"))


# --- what becomes of a diagnosis ---

FAULT = (NodeFault("n2", "gpu_xid", "FAIL", "Xid 79"),)


def incident(**about: object) -> Incident:
    return replace(Incident("i1", 7, 0, 0.0, 4), **about)  # type: ignore[arg-type]


def died(code: int | None, signal: int | None = None, **about: object) -> Incident:
    exits = (RankExit(1, "n2", code, signal, 5.0),)
    return incident(outcome=OutcomeSeen(1.0, "7.0", "failed", "why", exits), **about)


RUN = RunFacts(nodes=("n1", "n2", "n3"), launched=True, max_step=4)


def verdict(found: Incident, *rules: Rule, **about: object) -> Diagnosis:
    known = replace(RUN, rules=rules, **about)  # type: ignore[arg-type]
    result = judged(diagnose(found, known), found, known, 100.0)
    assert result is not None
    return result


@pytest.mark.parametrize("error", ["SaveFailed: step-4 was not saved", "RanksMissing: Rank 2 has not called save()"])
def test_no_node_is_blamed_for_an_error_of_transoms_own(error: str) -> None:
    one = died(1, log_category="nccl_hang", log_line=f"transom_cli.ckpt.failures.{error}")
    before = replace(one, id="i0", diagnosis=Diagnosis("rank_failed", "", ("n2",), False, "none", True))
    assert verdict(one, incidents=(before,)).nodes == ()
    other = replace(one, log_line="ConnectionResetError")
    assert verdict(other, incidents=(before,)).nodes == ("n2",), "the second failure there is a suspicion"


def test_a_hang_before_the_first_step_names_no_step() -> None:
    diagnosis = diagnose(incident(stalled=True, step=-1), replace(RUN, max_step=-1))
    assert diagnosis is not None and diagnosis.words == "no rank has made a step"


NEVER = {"max_step": -1, "launched": False, "slurm_reason": "JobLaunchFailure", "batch_host": "n1"}


@pytest.mark.parametrize(
    ("found", "about", "rule", "stops"),
    [
        (died(93), {}, "do-not-restart", True),
        (died(15), {}, "no-checkpoint-restores", True),
        (died(14), {"max_step": -1}, "run-directory-unseen", True),
        (died(14), {}, "anything-else", False),
        (died(1, log_category="user_code", log_line="ValueError: x"), {"max_step": -1}, "user-error-at-start", True),
        (died(1, log_category="user_code", log_line="ValueError: x"), {}, "anything-else", False),
        (incident(ended="FAILED"), NEVER, "never-started", True),
        (incident(ended="FAILED"), {**NEVER, "starts": 1}, "node-to-blame", False),
        (incident(ended="GONE"), {"launched": False}, "forgotten-by-slurm", True),
        (incident(stalled=True), {}, "anything-else", False),
        (died(None, 9), {}, "anything-else", False),
        (died(1, faults=FAULT), {}, "node-to-blame", False),
    ],
)
def test_the_default_table(found: Incident, about: dict[str, object], rule: str, stops: bool) -> None:
    result = verdict(found, *DEFAULT, **about)
    bare = verdict(found, **about)
    assert result.decided.rule == rule and result.restart is bare.restart is not stops
    assert (result.cause, result.nodes, result.exit_code) == (bare.cause, bare.nodes, bare.exit_code)
    assert [result.isolates(n) for n in result.nodes] == [bare.isolates(n) for n in bare.nodes]
    if stops:
        assert result.words.startswith(f"{bare.words}; stopped by rule `{rule}` (default)")


def test_second_start_that_reads_a_corrupt_checkpoint_stops_the_run() -> None:
    corrupt = Facts("checkpoint_corrupt", "rank_failed", "/data/out/checkpoint-30 has no seal", "checkpoint_corrupt/1")

    def again(*times: float) -> str:
        history = taken("same-corrupt-checkpoint", *times, fingerprint=corrupt.fingerprint)
        return action(*DEFAULT, facts=corrupt, history=history)

    assert [again(), again(9_900.0), again(5_000.0)] == [RELAUNCH, STOP, RELAUNCH]


def test_an_error_after_steps_that_no_heartbeat_has_shown_yet_is_not_one_before_the_first_step() -> None:
    quick = RankExit(1, "n2", 1, None, 5.0, step=11)
    one = incident(
        outcome=OutcomeSeen(1.0, "7.0", "failed", "why", (quick,)), log_category="user_code", log_line="KeyError"
    )
    found = verdict(one, *DEFAULT, max_step=-1)
    assert (found.cause, found.restart) == ("rank_failed", True) and "no step was reported" not in found.words


def test_a_command_that_no_rank_can_run_is_a_mistake_and_on_one_node_alone_is_none() -> None:
    def ended(*ends: RankExit) -> Incident:
        return incident(outcome=OutcomeSeen(1.0, "7.0", "failed", "why", ends))

    nowhere = ended(RankExit(0, "n1", 127, None, 5.0), RankExit(1, "n2", 127, None, 5.1))
    result = verdict(nowhere, *DEFAULT, max_step=-1)
    assert (result.cause, result.restart) == ("user_error", False) and "there is no such command" in result.words
    assert verdict(nowhere, *DEFAULT).restart, "it has run before"
    one_node = ended(RankExit(0, "n1", None, 15, 5.2), RankExit(1, "n2", 127, None, 5.1))
    assert verdict(one_node, *DEFAULT, max_step=-1).restart


def test_a_users_rule_may_start_again_what_would_be_a_stop() -> None:
    exits = (RankExit(0, "n1", 1, None, 4.0), RankExit(1, "n2", 93, None, 5.0))
    found = incident(outcome=OutcomeSeen(1.0, "7.0", "failed", "why", exits))
    assert not verdict(found, *DEFAULT).restart
    result = verdict(found, Rule("try", RELAUNCH, exit_code=(93,), budget=1), *DEFAULT)
    assert result.restart and result.decided.rule == "try" and result.cause == "do_not_restart"


def test_less_than_the_evidence_allows_can_be_asked_and_more_not() -> None:
    proven, mere = died(1, faults=FAULT), died(1)
    for less in (RELAUNCH, SWAP, IGNORE):
        assert verdict(proven, Rule("r", less)).isolates("n2") == "none"
    assert verdict(proven, Rule("r", ISOLATE)).isolates("n2") == "drain"
    assert verdict(mere, Rule("r", ISOLATE)).isolates("n2") == "none"


@pytest.mark.parametrize(
    ("found", "category"),
    [
        (died(1, log_category="user_code", log_line="ValueError: bad"), "user_code"),
        (died(1, log_category="data_loader", log_line="words of a richer source"), "data_loader"),
        (died(1, log_category="unknown", log_line="bye"), "unknown"),
        (died(None, 11, log_category="unknown", log_line="step 3"), "process_crash"),
        (died(None, 9, log_category="process_crash", log_line="srun: error: n2: task 3: Killed"), "process_crash"),
        (died(None, 9, log_category="host_oom", log_line="Cannot allocate memory"), "host_oom"),
        (died(None, 9, log_category="network_fabric", log_line="Connection closed by peer"), "process_crash"),
        (died(None, 6, log_category="nccl_hang", log_line="Watchdog caught collective timeout"), "nccl_hang"),
        (incident(ended="TIMEOUT"), "slurm_time_limit"),
        (died(None, 11, log_category="nccl_hang", log_line="Watchdog caught collective timeout"), "process_crash"),
        (died(None, 7, log_category="data_loader", log_line="Bus error"), "data_loader"),
        (incident(stalled=True), "nccl_hang"),
        (incident(stalled=True, stall=Stall(3, 9.0, 5.0)), "nccl_hang"),
        (incident(stalled=True, stall=Stall(3, 9.0, 5.0, (1,), ("n2",), stopped=True)), "process_crash"),
        (died(1, faults=FAULT), "gpu_hardware"),
        (incident(outcome=OutcomeSeen(1.0, "7.0", "left", "w", cause="maintenance")), ""),
    ],
)
def test_the_category_of_a_failure(found: Incident, category: str) -> None:
    assert verdict(found, Rule("r", RELAUNCH)).decided.category == category


def test_a_kill_has_one_fingerprint_whatever_reports_it() -> None:
    quiet, told = died(None, 9, log_category="unknown"), died(None, 9, log_category="process_crash", log_line="Killed")
    assert verdict(quiet, *DEFAULT).decided == verdict(told, *DEFAULT).decided


def test_what_is_left_on_purpose_meets_no_rule_on_failures() -> None:
    left = incident(outcome=OutcomeSeen(1.0, "7.0", "left", "w", cause="maintenance"))
    every = Rule("r", STOP, category=tuple(c.value for c in Category))
    result = verdict(left, every)
    assert result.restart and result.decided.rule == ""


def test_the_same_failure_elsewhere_is_counted_as_the_same() -> None:
    first = verdict(died(1, log_category="user_code", log_line="ValueError: bad sample 17 on n1"), TWICE)
    other = verdict(died(1, log_category="user_code", log_line="ValueError: bad sample 93021 on n3"), TWICE)
    third = verdict(died(1, log_category="user_code", log_line="KeyError: 'x'"), TWICE)
    assert first.decided.fingerprint == other.decided.fingerprint != third.decided.fingerprint


@pytest.mark.parametrize(("seconds", "words"), [(21600.0, "6h"), (90.0, "90s"), (172800.0, "2d"), (0.5, "0.5s")])
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert in_words(seconds) == words

"""An incident in brief: the words that screens, notifications and the report share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_policy import DEFAULT

from transom_cli.core.diagnose import RunFacts, diagnose, judged
from transom_cli.core.events import Decided, OutcomeSeen, RankExit
from transom_cli.core.fault import failed_again, fault_of
from transom_cli.core.incident import Diagnosis, Incident, Mark, Stage
from transom_cli.core.operator.state import Exclusion


def incident(words: str, *nodes: str, step: int = 7, name: str = "i1", print_: str = "") -> Incident:
    decided = Decided(fingerprint=print_)
    diagnosis = Diagnosis("x", words, nodes, sure=False, isolate="none", restart=True, decided=decided)
    return Incident(name, 7, 0, 5.0, step, diagnosis=diagnosis, result="recovered")


KILLED = RankExit(3, "n2", None, 9).words
FAILED = RankExit(3, "n2", 1, None).words


@pytest.mark.parametrize(
    ("words", "nodes", "title", "line", "evidence"),
    [
        (KILLED, ("n2",), "rank 3 killed by SIGKILL", "rank 3 killed by SIGKILL on n2", ""),
        (KILLED, (), "rank 3 on n2 killed by SIGKILL", "rank 3 on n2 killed by SIGKILL", ""),
        (f"{FAILED}: KeyError", (), "rank 3 on n2 failed: KeyError", "rank 3 on n2 failed: KeyError", ""),
        (f"KeyError ({FAILED}, before the first step); stopped by rule `r`", (), "rank 3 on n2 failed: KeyError",
         "rank 3 on n2 failed: KeyError", "ended with exit code 1, before the first step; stopped by rule `r`"),
        (FAILED, ("n2",), "rank 3 ended with exit code 1", "rank 3 ended with exit code 1 on n2", ""),
        ("n2 lost: no slurmd: refused", ("n2",), "n2 lost", "n2 lost", "no slurmd: refused"),
        ("n2: Xid 79", ("n2",), "Xid 79", "Xid 79 on n2", ""),
        ("a, b", ("n1", "n2", "n3", "n4"), "a, b", "a, b on n1, n2, n3 and 1 more", ""),
    ],
)  # fmt: skip
def test_title_says_what_broke(words: str, nodes: tuple[str, ...], title: str, line: str, evidence: str) -> None:
    fault = fault_of(incident(words, *nodes))
    assert (fault.title, fault.line, fault.evidence) == (title, line, evidence)


def test_evidence_is_one_line_of_the_log_or_the_best_mark() -> None:
    one = incident("no rank has stepped since step 7")
    assert fault_of(replace(one, log_category="nccl_hang", log_line="NCCL\n  timeout")).evidence == "NCCL timeout"
    marks = (Mark(5.0, "seen", "silent"), Mark(6.0, "evidence", "a stack"), Mark(7.0, "probed", "n2: fail"))
    assert fault_of(replace(one, marks=marks)).evidence == "n2: fail"
    assert fault_of(replace(one, diagnosis=None, marks=marks)).title == "silent"


def test_evidence_of_a_hang_is_its_verdict_and_not_what_ranks_print_at_their_end() -> None:
    one = incident("no rank has stepped since step 7")
    assert one.diagnosis is not None
    hang = replace(
        one, diagnosis=replace(one.diagnosis, cause="hang"), log_category="network_fabric", log_line="lost 5"
    )
    assert fault_of(hang).evidence == "lost 5"
    assert fault_of(replace(hang, marks=(Mark(6.0, "evidence", "rank 1 sleeps"),))).evidence == "rank 1 sleeps"


def test_a_kill_that_no_log_explains_names_a_possible_sender() -> None:
    one = incident(KILLED, "n2")
    assert one.diagnosis is not None
    crash = replace(one, log_line="srun: error: n2: task 3: Killed")
    crash = replace(crash, diagnosis=replace(one.diagnosis, decided=Decided(category="process_crash")))
    assert "out-of-memory killer sends SIGKILL too" in fault_of(crash).evidence


@pytest.mark.parametrize("last", [RankExit(3, "n2", None, 9), RankExit(3, "n2", 1, None)])
def test_rank_out_of_memory_shows_the_kernels_line_and_what_to_do_and_blames_no_node(last: RankExit) -> None:
    line = "n2 kernel: Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB, file-rss:1kB"
    outcome = OutcomeSeen(10.0, "7.0", "failed", "rank 3 ended", (last,))
    one = Incident("i1", 7, 0, 10.0, 7, outcome=outcome, log_category="host_oom", log_line=line, log_rank=3)
    run = RunFacts(nodes=("n1", "n2"), launched=True, max_step=7, rules=DEFAULT)
    found = judged(diagnose(one, run), one, run, 11.0)
    assert found is not None and (found.nodes, found.isolate, found.decided.category) == ((), "none", "host_oom")
    as_launcher_says = replace(one, diagnosis=found, log_category="", log_line="")
    for fault in (fault_of(replace(one, diagnosis=found)), fault_of(as_launcher_says)):
        assert fault.line.startswith("rank 3 on n2 ")
        said = f"{fault.line}; {fault.evidence}"
        assert said.count("Killed process 4711 (python)") == 1 and "file-rss" not in said
        assert fault.evidence.endswith("request more memory (`--mem`), or use fewer DataLoader workers")
    assert fault.line == "rank 3 on n2 killed by SIGKILL: out of memory" or last.signal is None


def test_what_was_done_is_an_isolation_or_else_the_repair() -> None:
    one = replace(incident(KILLED, "n2"), marks=(Mark(6.0, "launched", "again"),))
    assert fault_of(one).done == "relaunched"
    drained = Exclusion("n2", 6.0, None, "drained", "i1", "lost")
    assert fault_of(one, (drained, replace(drained, node="n3", incident="i2"))).done == "drained"
    assert fault_of(replace(one, result="stopped")).done == ""


@pytest.mark.parametrize("signal", [15, None])
def test_ranks_that_ended_with_their_launcher_are_not_the_cause(signal: int | None) -> None:
    exits = (RankExit(1, "n2", None, signal, 10.0, step=7),) if signal else ()
    outcome = OutcomeSeen(10.0, "7.0", "failed", "rank 1 on n2 killed by SIGTERM, and the launcher is silent", exits)
    seen = Mark(11.0, "seen", "the job ended: FAILED, its batch script by signal 9")
    one = Incident("i1", 7, 0, 10.0, 7, Stage.EXAMINING, outcome=outcome if signal else None, marks=(seen,))
    one = replace(one, ended="FAILED", exit_code=0, log_line="step 80 loss 2.7196", log_category="unknown")
    found = diagnose(one, RunFacts(nodes=("n1", "n2"), launched=True, max_step=7))
    assert found is not None and (found.nodes, found.isolate, found.restart) == ((), "none", True)
    fault = fault_of(replace(one, diagnosis=found))
    assert (fault.line, fault.evidence) == (
        "the launcher died",
        "its batch script was ended by signal 9, and the ranks ended with it",
    )
    killed = replace(one, outcome=replace(outcome, exits=(RankExit(1, "n2", None, 9, 10.0, step=7),)))
    assert (again := diagnose(killed, RunFacts(nodes=("n1", "n2"), launched=True, max_step=7))) is not None
    assert again.cause == "rank_killed", "a rank that was killed by another signal may be the cause"


def test_a_run_that_continues_on_fewer_nodes_was_not_swapped_and_its_proof_is_of_the_lost_node() -> None:
    one = incident("no answer from n2; no rank has made a step", "n2")
    assert one.diagnosis is not None
    seen = "n2 has been silent for 15 s, its slurmd does not answer"
    marks = (Mark(5.0, "seen", seen), Mark(6.0, "evidence", "rank 0 on n1, in poll"),
             Mark(7.0, "swapped", "continues on 1 of 2 nodes, without n2"), Mark(8.0, "launched", "again"))  # fmt: skip
    one = replace(one, diagnosis=replace(one.diagnosis, cause="node_silent"), marks=marks, ended_at=9.0)
    assert (fault_of(one).done, fault_of(one).evidence) == ("continues on 1 of 2 nodes", seen)
    drained = Exclusion("n2", 4.0, None, "drained", "", "no slurmd listens on it", "node_lost")
    found = fault_of(one, (drained,))
    assert (found.done, found.evidence) == ("drained, continues on 1 of 2 nodes", "no slurmd listens on it")
    late = fault_of(one, (replace(drained, since=99.0),))
    assert late.done == "continues on 1 of 2 nodes", "isolated for something else"


def test_lost_node_has_the_same_title_whoever_noticed_it_first() -> None:
    one = incident(f"no answer from n3; {FAILED}: RuntimeError: Connection reset by peer", "n3")
    assert one.diagnosis is not None
    one = replace(one, diagnosis=replace(one.diagnosis, cause="node_silent"))
    assert fault_of(one).line == "no answer from n3"
    seen = replace(one, marks=(Mark(5.0, "seen", FAILED),))
    assert fault_of(seen).evidence == f"its agent does not answer; {FAILED}", "the exit of a rank that lost its peer"
    drained = Exclusion("n3", 6.0, None, "drained", "i1", "no slurmd listens on it", "node_lost")
    assert (fault_of(one, (drained,)).line, fault_of(one, (drained,)).evidence) == (
        "n3 lost",
        "no slurmd listens on it",
    )


def test_recovery_counts_only_beyond_the_step_of_the_failure() -> None:
    first, second = incident(FAILED, print_="k", name="i1"), incident(FAILED, print_="k", name="i2")
    assert failed_again((first, second)) == {"i1"}
    assert failed_again((first, replace(second, step=8))) == set()
    assert failed_again((replace(first, since_start=True), second)) == set()
    assert first.diagnosis is not None
    planned = replace(first, diagnosis=replace(first.diagnosis, cause="time_limit"))
    assert failed_again((planned, replace(planned, id="i2"))) == set(), "a planned end is no failure"
    exits = (RankExit(3, "n2", 1, None, step=9),)
    known = replace(second, outcome=OutcomeSeen(5.0, "7.0", "failed", "x", exits=exits, nodes=("n2",)))
    assert failed_again((first, known)) == set(), "it came further than its heartbeats said"


@pytest.mark.parametrize(
    "mark",
    [
        Mark(6.0, "requeued", "new job 14 without n2"),
        Mark(6.0, "seen", "the job's launcher, without an operator, submitted job 14 in the place of job 7"),
    ],
)
def test_restart_in_a_new_job_names_both_jobs(mark: Mark) -> None:
    one = replace(incident(KILLED, "n2"), marks=(mark,))
    assert fault_of(one).done == "requeued as job 14 (was 7)"
    drained = Exclusion("n2", 5.0, None, "drained", "i1", "dead")
    assert fault_of(replace(one, result=""), (drained,)).done == "drained, requeued as job 14 (was 7)"

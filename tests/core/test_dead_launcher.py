"""A launcher that dies, and its ranks with it: no rank and no node is at fault."""

from dataclasses import replace

from transom_cli.core.diagnose import RunFacts, diagnose
from transom_cli.core.events import Examined, JobSeen, OutcomeSeen, Probed, RankExit
from transom_cli.core.fault import fault_of
from transom_cli.core.incident import Incident
from transom_cli.core.operator.actions import Probe
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Job, Launch, Phase, State

RUN = RunFacts(nodes=("n1", "n2"), launched=True, step=88, max_step=88, batch_host="n1")


def incident(*signals: int, silent: bool) -> Incident:
    why = "rank 1 on n2 killed by SIGTERM" + ", and the launcher is silent" * silent
    exits = tuple(RankExit(n, f"n{n + 1}", None, signal, 100.0 - n, 88) for n, signal in enumerate(signals))
    end = OutcomeSeen(100.0, "7.0", "failed", why, exits, (), RUN.nodes)
    return Incident("i1", 7, 0, 100.0, 88, outcome=end, log_category="unknown", log_line="step 80 loss 2.7")


def test_ranks_that_end_with_their_launcher_are_not_the_cause() -> None:
    found = diagnose(one := incident(15, 15, silent=True), RUN)
    assert found is not None and (found.nodes, found.restart) == ((), True)
    fault = fault_of(replace(one, diagnosis=found))
    assert fault.title == "the launcher died"
    assert "step 80" not in fault.evidence, "what a rank printed last is no evidence"


def test_rank_that_failed_beside_a_dead_launcher_is_named() -> None:
    found = diagnose(incident(15, 11, silent=True), RUN)
    assert found is not None and found.words.startswith("rank 1 on n2 killed by SIGSEGV")


def test_rank_that_someone_ended_while_its_launcher_lives_is_named() -> None:
    found = diagnose(incident(15, 15, silent=False), RUN)
    assert found is not None and found.words.startswith("rank 1 on n2 killed by SIGTERM")


def test_launcher_that_got_sigterm_is_the_cause_although_its_job_failed() -> None:
    state = State(phase=Phase.TRAINING, job=Job(7, state="RUNNING", nodes=RUN.nodes), launch=Launch(started=True))
    why = "stopped by SIGTERM; step 88 is durable"
    state, _ = decide(state, OutcomeSeen(100.0, "7.0", "stopped", why, durable=88, step=88))
    state, _ = decide(state, JobSeen(101.0, 7, 0, "FAILED", exit_code=137))
    for action in state.pending:
        answer = Probed(102.0, action.key, action.node, "PASS", "") if isinstance(action, Probe) else None
        state, _ = decide(state, answer or Examined(102.0, action.key, "unknown", "step 80", "rank-0.log"))
    found = state.incident.diagnosis if state.incident is not None else None
    assert found is not None and (found.nodes, found.restart) == ((), True)
    assert found.words == f"the launcher was {why}"


def test_python_that_cannot_write_its_output_says_nothing_of_the_node() -> None:
    end = OutcomeSeen(100.0, "7.0", "failed", "", (RankExit(0, "n1", 120, None, 100.0, 88),), (), RUN.nodes)
    line = "srun: error: n1: task 0: Exited with exit code 120"
    found = diagnose(Incident("i1", 7, 0, 100.0, 88, outcome=end, log_category="unknown", log_line=line), RUN)
    assert found is not None and found.nodes == () and found.restart
    assert found.words.endswith(
        "Python could not write its last output: the disk of the log is full, or nothing reads it"
    )

"""What a rank printed last is shown as such, and is part of no diagnosis if it reports no error."""

from __future__ import annotations

from core_launcher import feed, training

from transom_cli.core import events as ev
from transom_cli.core import launcher
from transom_cli.core.events import RankExit
from transom_cli.core.operator.actions import ReadLogs
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Request, State

STARTS = "rank 0/2 starts at step 10 on n1 w0=0.095303"
PEER = "RuntimeError: [pair.cc:553] Connection closed by peer"


def test_exits_with_one_code_read_the_same_whatever_was_printed_last() -> None:
    found = set()
    for last in ("", STARTS, "step 10 loss 6.2"):
        state, _ = feed(
            training(),
            launcher.RanksExited(11.0, 0, (RankExit(0, "n1", 1, None, 11.0),)),
            launcher.Tick(13.0),
            launcher.LaunchEnded(14.0, 0),
        )
        read = launcher.LogsRead(15.0, 0, "unknown", "", "rank-0.log (its last line)", last=last)
        _, actions = feed(state, read)
        journal = {a.what: a for a in actions if isinstance(a, launcher.Journal)}
        found.add((journal["diagnosed"].words, journal["diagnosed"].decided.fingerprint))
        shown = journal["examined"].words if "examined" in journal else ""
        assert shown == (f"rank-0.log (its last line): {last}" if last else "")
    assert [words for words, _ in found] == ["rank 0 on n1 ended with exit code 1"]


def test_what_ranks_print_that_the_launcher_ended_for_a_hang_is_no_cause() -> None:
    for cause, line in (("hang", ""), ("", PEER)):
        state, actions = State(request=Request(num_nodes=2)), ()
        for event in (
            ev.Started(0.0, 1),
            ev.Submitted(1.0, "submit", 7, released=True),
            ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=("n1", "n2"), batch_host="n1"),
            ev.OutcomeSeen(9.0, "7.0", "failed", "no rank has stepped", nodes=("n1", "n2"), cause=cause),
        ):
            state, actions = decide(state, event)
        (read,) = [action for action in actions if isinstance(action, ReadLogs)]
        state, _ = decide(state, ev.Examined(10.0, read.key, "network_fabric", PEER, "rank-0.log"))
        assert state.incident is not None and state.incident.log_line == line
        assert [m.words for m in state.incident.marks if m.what == "examined"] == [f"rank-0.log: {PEER}"] * bool(line)

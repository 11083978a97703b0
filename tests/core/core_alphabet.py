"""Events as they may come, in any order: of our job and of others', late, doubled, out of place."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.operator import actions as act

NODES = ("n1", "n2", "n3", "n4")
STATES = ("RUNNING",) * 6 + ("PENDING",) * 3  # the ends of a run are rare, or no story would go deep
STATES += ("SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
STATES += ("PREEMPTED", "OUT_OF_MEMORY", "UNKNOWN")
REASONS = ("", "Resources", "launch_failed_requeued_held", "JobHeldUser", "ReqNodeNotAvail, n1 down", "BadConstraints")

jobs = st.sampled_from((7, 7, 7, 8, 9))
predecessors = st.sampled_from((0,) * 9 + (7, 8))
counts = st.integers(0, 3)
nodes = st.sampled_from(NODES)
some_nodes = st.lists(nodes, unique=True, max_size=3).map(tuple)
attempts = st.builds("{}.{}".format, jobs, counts)
keys = st.one_of(
    st.builds("i{}/{}".format, st.integers(1, 3), st.sampled_from(("restart", "restart/2", "examine", "isolate/n1"))),
    st.builds("i{}/probe/{}/{}".format, st.integers(1, 3), nodes, st.integers(1, 2)),
    st.sampled_from(("submit", "patch/1", "cancel/7.0", "release/7.0", "finish/7.0")),
    st.builds("idle/7.{}/{}/{}".format, counts, nodes, st.sampled_from(("1", "2", "drain", "exclude"))),
)
exits = st.builds(
    ev.RankExit,
    st.integers(0, 3),
    nodes,
    st.sampled_from((0, 1, 2, 15, 93, None)),
    st.sampled_from((None, None, 9, 15)),
    st.floats(0, 9),
)
at = st.just(0.0)  # the player stamps them
faults = st.lists(
    st.builds(
        ev.NodeFault,
        st.sampled_from((*NODES, "x9")),
        st.sampled_from(("xid", "ecc")),
        st.sampled_from(("FAIL", "SUSPECT", "SUSPECT")),
        st.just("e"),
    ),
    max_size=3,
).map(tuple)
no_faults: st.SearchStrategy[tuple[ev.NodeFault, ...]] = st.just(())
EVENTS: dict[type[ev.Event], st.SearchStrategy[ev.Event]] = {
    ev.Started: st.builds(ev.Started, at, st.integers(1, 9)),
    ev.Tick: st.builds(ev.Tick, at),
    ev.Submitted: st.builds(ev.Submitted, at, st.just("submit"), st.just(7)),
    ev.JobSeen: st.builds(
        ev.JobSeen,
        at,
        jobs,
        counts,
        st.sampled_from(STATES),
        completing=st.booleans(),
        held=st.booleans(),
        reason=st.sampled_from(REASONS),
        nodes=st.one_of(st.just(NODES[:3]), some_nodes),
        batch_host=nodes,
        exit_code=st.sampled_from((None, 0, 1, 2, 93)),
        lost_nodes=some_nodes,
        succeeds=predecessors,
        held_why=st.sampled_from(("", "", "no progress")),
        by_launcher=st.booleans(),
    ),
    ev.JobGone: st.builds(
        ev.JobGone,
        at,
        jobs,
        st.sampled_from(("",) * 6 + ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")),
        st.sampled_from((None, 0, 1, 93)),
        st.sampled_from((None, 0, 9)),
        st.sampled_from(("", "ann")),
    ),
    ev.SlurmLost: st.builds(ev.SlurmLost, at, st.just("timed out")),
    ev.SlurmBack: st.builds(ev.SlurmBack, at),
    ev.LaunchSeen: st.builds(
        ev.LaunchSeen,
        at,
        attempts,
        st.integers(0, 1),
        some_nodes,
        st.integers(1, 8),
        some_nodes,
        predecessors,
        st.one_of(no_faults, faults),
        st.sampled_from(("", "", "1", "2")),
    ),
    ev.JobStepDone: st.builds(ev.JobStepDone, at, attempts, st.sampled_from(("1", "2"))),
    ev.RecoverySeen: st.builds(
        ev.RecoverySeen,
        at,
        attempts,
        st.just("l1"),
        st.sampled_from(("seen", "seen", "evidence", "diagnosed", "swapped", "recovered")),
        st.just("words"),
        st.sampled_from(("", "hang", "rank_killed", "node_silent", "maintenance", "node_fault")),
        some_nodes,
        st.one_of(no_faults, faults),
    ),
    ev.OutcomeSeen: st.builds(
        ev.OutcomeSeen,
        at,
        attempts,
        st.sampled_from(("done", "failed", "failed", "stopped", "left")),
        st.just("why"),
        st.lists(exits, max_size=3).map(tuple),
        some_nodes,
        nodes=st.one_of(st.just(()), st.just(NODES[:3])),
        cause=st.sampled_from(("", "hang", "time_limit", "isolated_nodes", "preflight", "preflight", "node_fault")),
        suspects=some_nodes,
        blamed=some_nodes,
        faults=st.one_of(no_faults, faults),
    ),
    ev.NodeSilent: st.builds(
        ev.NodeSilent, at, attempts, st.sampled_from((*NODES, "x9")), st.just(11.0), st.booleans()
    ),
    ev.NodeBack: st.builds(ev.NodeBack, at, attempts, nodes),
    ev.Stalled: st.builds(
        ev.Stalled,
        at,
        attempts,
        st.builds(
            ev.Stall, st.integers(-1, 9), st.just(9.0), st.just(8.0), st.just((1,)), some_nodes, stopped=st.booleans()
        ),
    ),
    ev.StallEnded: st.builds(ev.StallEnded, at, attempts),
    ev.StepSeen: st.builds(ev.StepSeen, at, attempts, st.integers(0, 20), st.booleans()),
    ev.CheckpointSeen: st.builds(ev.CheckpointSeen, at, st.integers(0, 20)),
    ev.SavesSeen: st.builds(
        ev.SavesSeen, at, attempts, st.integers(0, 3), st.integers(0, 20), st.just("no space"), st.integers(-1, 20)
    ),
    ev.Examined: st.builds(
        ev.Examined,
        at,
        keys,
        st.sampled_from(("user_code", "network_fabric", "dependency_import", "unknown")),
        st.just("Boom"),
        st.just("l"),
    ),
    ev.Probed: st.builds(ev.Probed, at, keys, nodes, st.sampled_from(("PASS", "FAIL", "UNKNOWN")), st.just("e")),
    ev.Isolated: st.builds(ev.Isolated, at, keys, nodes, st.sampled_from(("drained", "excluded")), st.just("")),
    ev.Restarted: st.builds(ev.Restarted, at, keys, jobs, counts, st.sampled_from(("requeued", "already"))),
    ev.Acted: st.builds(ev.Acted, at, keys),
    ev.ActionFailed: st.builds(
        ev.ActionFailed, at, keys, st.sampled_from(("slurm_refused",) * 5 + ("job_cancelled",)), st.just("no")
    ),
    ev.Withheld: st.builds(ev.Withheld, at, keys),
    ev.SubmissionAnswered: st.builds(
        ev.SubmissionAnswered, at, st.just("submit"), st.sampled_from((0, 7)), st.integers(1, 3)
    ),
    ev.StopRequested: st.builds(ev.StopRequested, at, st.just("ann")),
    ev.LiftRequested: st.builds(
        ev.LiftRequested, at, st.just("ann"), st.sampled_from(("lift-1", "lift-2", "lift-3")), some_nodes
    ),
    ev.RequeueRequested: st.builds(
        ev.RequeueRequested, at, st.just("ann"), st.sampled_from(("requeue-1", "requeue-2"))
    ),
    ev.FilesRestored: st.builds(ev.FilesRestored, at, st.just(("run.toml",))),
    ev.Resumed: st.builds(ev.Resumed, at, st.just("ann")),
    ev.ResumeRequested: st.builds(ev.ResumeRequested, at, st.just("ann"), st.sampled_from(("resume-1", "resume-2"))),
}
common = [s for cls, s in EVENTS.items() if cls not in (ev.StopRequested, ev.Withheld)]  # see test_observe
events = st.one_of(*common)


@dataclass(frozen=True)
class Answer:
    """Of the `which`-th outstanding action; `how` chooses among its possible answers."""

    which: int
    how: int


answers = st.builds(Answer, st.integers(0, 20), st.integers(0, 9))
pauses = st.sampled_from((0.0, 0.0, 0.1, 1.0, 5.0, 60.0, 1000.0))


def answer(action: act.Action, how: int, now: float, restarts: int) -> ev.Event:
    """What the hands may say. Every tenth answer is a refusal; probes fail as often as not."""
    if how == 9:
        return ev.ActionFailed(now, action.key, "slurm_refused", "no")
    if isinstance(action, act.Submit):
        return ev.Submitted(
            now, action.key, 7 + 10 * int(action.key.partition("/")[2] or 0)
        )  # a resumed run has a new job
    if isinstance(action, act.Probe):
        return ev.Probed(now, action.key, action.node, ("FAIL", "FAIL", "FAIL", "PASS", "UNKNOWN")[how % 5], "e")
    if isinstance(action, act.ReadLogs):
        return ev.Examined(now, action.key, ("unknown", "network_fabric", "user_code")[how % 3], "Boom", "rank-0.log")
    if isinstance(action, act.Isolate):
        return ev.Isolated(now, action.key, action.node, "drained" if how % 2 else "excluded", "")
    if isinstance(action, act.Restart):
        if how == 8:  # a successor
            return ev.Restarted(now, action.key, action.job_id + 1, 0, "successor")
        return ev.Restarted(now, action.key, action.job_id, restarts + (0 if how == 7 else 1), "requeued")
    return ev.Acted(now, action.key)

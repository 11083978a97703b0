"""Moments of a run's life that a person may look at, by name. Each makes its run directory and reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from view_made import JOB, NOW, Made, names

from transom_cli.ckpt.progress import CHECKING, WRITING, Part
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.core import events as ev
from transom_cli.core.log_lines import fingerprint
from transom_cli.core.policy import Rule
from transom_cli.health.gpu.reading import Ecc, Heat, Rows
from transom_cli.health.gpu.xid import GpuEvent
from transom_cli.slurm.port import Job, JobState, Node
from transom_cli.view.model import RunView
from transom_cli.view.slurm_reasons import with_answer, with_error, with_operator_job, with_starvation

LOST = "10.0.4.9:6818: no slurmd listens on it"
FAILED = "rank 3 on gpu000 ended with exit code 1"
KEY_ERROR = "KeyError: 'learning_rate'"
CRASH_LOOP = Rule("crash-loop", "stop", category=("user_code",), repeats=3)
DOWN = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
LOSS_LINE = "ValueError: loss is not finite at step 18431"


def healthy(folder: Path) -> RunView:
    made = Made(folder, nodes=4).began().stepped().saved()
    coming = NextSaves(18431, every=1, persist=50, durable=18450)
    made.memory(rhythm="every step; one of 50 is made durable", coming=coming)
    return made.beats(loss=1.8312).operator().view()


def saving(folder: Path) -> RunView:
    """A checkpoint is being written, and one before it is still being copied."""
    made = Made(folder, nodes=4).began().stepped().saved()
    coming = NextSaves(18440, every=40, persist=10, durable=18800)
    writing = Part(WRITING, 18400, "/ckpt", 1 << 30, 3 << 30, NOW - 14)
    copying = Part(WRITING, 18000, "/archive/llama", 2 << 30, 3 << 30, NOW - 95)
    made.memory(18400, 15.0, "every 40 steps; one of 10 is made durable", coming, (writing, copying))
    return made.beats().operator().view()


def restoring(folder: Path) -> RunView:
    made = Made(folder, nodes=64).began()
    made.seen(
        (200.0, ev.CheckpointSeen(0, 18000)),
        (70.0, ev.JobSeen(0, JOB, 0, "PENDING", reason="None")),
        (69.0, ev.JobSeen(0, JOB, 1, "RUNNING", nodes=made.nodes, batch_host="gpu000")),
        (30.0, ev.LaunchSeen(0, f"{JOB}.1", 0, made.nodes, 512)),
    )
    part = Part(CHECKING, 18000, "/ckpt", 5 << 30, 21 << 30, NOW - 11)
    return made.memory(-1, parts=(part,), restarts=1).beats(-1, attempt=f"{JOB}.1", phase="restore").operator().view()


def ranks_restore(folder: Path) -> RunView:
    """With a Checkpointer of their own."""
    made = Made(folder, nodes=2).seen(
        (50.0, ev.Started(0, 1)),
        (49.0, ev.Submitted(0, "submit", JOB, True)),
        (40.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=("gpu000", "gpu001"), batch_host="gpu000")),
        (30.0, ev.LaunchSeen(0, f"{JOB}.0", 0, ("gpu000", "gpu001"), 16)),
    )
    return made.beats(-1, age=24.0, phase="restore").operator().view()


def total_not_known(folder: Path) -> RunView:
    return Made(folder, nodes=2, settings="").began(0.4).stepped(600, a_step=0.31).beats(640).operator().view()


def one_node_of_many(folder: Path) -> RunView:
    """64 nodes: one was lost and replaced, one is quiet, two are slow, and a rank diverges."""
    made = Made(folder, nodes=64, settings='steps = 120000\n[job]\ntime = "1-00:00:00"\n').began().stepped().saved()
    made.seen(
        (5000.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "seen", "no step for 48.0 s")),
        (4990.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "diagnosed", "NCCL timeout, no node at fault", "hang")),
        (4985.0, ev.LaunchSeen(0, f"{JOB}.0", 1, made.nodes, 512)),
        (4780.0, ev.StepSeen(0, f"{JOB}.0", 16400)),
    ).stepped(18400)
    made.report("slow_node", "a node is slow; rank 248 on gpu031 spends 0.71 s in forward, usual is 0.3 s", "gpu031")
    made.report("slow_node", "a node is slow; rank 352 on gpu044 waits least for the others", "gpu044")
    made.found("gpu050", "host:ecc", "suspect", "GPU 3 has 14 uncorrected ECC errors")
    return made.memory().beats(late={"gpu017": 48.0}).operator().view()


def gpus(folder: Path) -> RunView:
    """16 nodes with GPUs: hot and throttled ones, a lost one, one that is missing, and what was told long ago."""
    made = Made(folder, nodes=16, settings="").began().stepped().saved()
    made.report("slow_node", "a node is slow; rank 31 on gpu003 waits least for the others", "gpu003")
    made.found("gpu005", "gpu_lost", "fail", "GPU 6 (00000000:8F:00.0): GPU is lost")
    odd = {
        "gpu003": {3: {"heat": Heat(88, 87, 92)}, 4: {"heat": Heat(85, 87, 92)}},
        "gpu004": {i: {"reasons": 0x48, "heat": Heat(86, 87, 92)} for i in range(3)},
        "gpu005": {6: {"trouble": "GPU is lost", "trouble_code": 15, "heat": Heat(), "reasons": None, "busy": None}},
        "gpu006": {1: {"heat": Heat(84, 87, 92)}},
        "gpu007": {0: {"reasons": 0x20}},
        "gpu009": {2: {"ecc": Ecc(3, 3, 12, 12), "rows": Rows(0, 1, pending=True, failed=False)}},
    }
    events = {"gpu008": GpuEvent("xid", "GPU-gpu008-5", xid=79, wall=NOW - 240.0)}
    made.gpus(odd, ago={"gpu007": 371.0, "gpu009": 371.0}, events=events, missing={"gpu010": 1})
    return made.memory().beats(late={"gpu004": 48.0}).operator().view()


def spares(folder: Path) -> RunView:
    """gpu001 died, and a spare took its place; another stands by."""
    made = Made(folder, nodes=6, spares=2).began(idle=("gpu004", "gpu005"))
    made.seen(
        (700.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "seen", "rank 11 on gpu001 killed by SIGKILL")),
        (699.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "diagnosed", "no answer from gpu001", "node_silent", ("gpu001",))),
        (698.9, ev.RecoverySeen(0, f"{JOB}.0", "l1", "swapped", "gpu004 for gpu001", "node_silent", ("gpu001",))),
        (698.8, ev.LaunchSeen(0, f"{JOB}.0", 1, _without(made, 1, 5), 32, ("gpu001", "gpu005"))),
        (698.0, ev.Probed(0, f"idle/{JOB}.0/gpu001/1", "gpu001", "FAIL", LOST)),
        (697.0, ev.Probed(0, f"idle/{JOB}.0/gpu001/2", "gpu001", "FAIL", LOST)),
        (696.0, ev.Isolated(0, f"idle/{JOB}.0/gpu001/drain", "gpu001", "drained", "")),
        (688.0, ev.StepSeen(0, f"{JOB}.0", 18100)),
        (60.0, ev.StepSeen(0, f"{JOB}.0", 18372)),
    )
    return made.saved().beats(only=_without(made, 1)).operator().view()


def shrunk(folder: Path) -> RunView:
    """gpu001 died before the first step, and the run continues without it."""
    made = Made(folder, nodes=4, fewest=2).began()
    out = ("seen", "gpu001 has been silent for 15 s, its slurmd does not answer, and no rank has made a step")
    made.seen(
        (701.0, ev.NodeSilent(0, f"{JOB}.0", "gpu001", 10.0, True)),
        (700.9, ev.Probed(0, f"idle/{JOB}.0/gpu001/1", "gpu001", "FAIL", LOST)),
        (700.8, ev.Probed(0, f"idle/{JOB}.0/gpu001/2", "gpu001", "FAIL", LOST)),
        (700.7, ev.Isolated(0, f"idle/{JOB}.0/gpu001/drain", "gpu001", "drained", "")),
        (700.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", *out, "hang", ("gpu001",))),
        (699.5, ev.RecoverySeen(0, f"{JOB}.0", "l1", "evidence", "rank 0 on gpu000, state S, in poll")),
        (699.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "diagnosed", "no answer from gpu001; no rank has made a step",
                                "node_silent", ("gpu001",))),
        (698.9, ev.RecoverySeen(0, f"{JOB}.0", "l1", "swapped", "continues on 3 of 4 nodes, without gpu001",
                                "node_silent", ("gpu001",))),
        (698.8, ev.LaunchSeen(0, f"{JOB}.0", 1, _without(made, 1), 24, ("gpu001",))),
        (688.0, ev.StepSeen(0, f"{JOB}.0", 18100)),
        (60.0, ev.StepSeen(0, f"{JOB}.0", 18372)),
    )  # fmt: skip
    return made.saved().beats(only=_without(made, 1)).operator().view()


def submitting(folder: Path) -> RunView:
    return Made(folder).seen((2.0, ev.Started(0, 1))).operator().view()


def pending(folder: Path) -> RunView:
    made = Made(folder).seen((4000.0, ev.Started(0, 1)), (3990.0, ev.Submitted(0, "submit", JOB, True)))
    made.seen((3980.0, ev.JobSeen(0, JOB, 0, "PENDING", reason="Priority")))
    job = Job(JOB, JobState.PENDING, reason="Resources", start="2026-11-22T09:40:00", num_nodes=4)
    return with_answer(made.operator().view(), job)


def pending_without_an_answer(folder: Path) -> RunView:
    return replace(with_error(pending(folder), "slurm_load_jobs error: Socket timed out"), slurm_start=None)


def starting(folder: Path) -> RunView:
    made = Made(folder).seen((95.0, ev.Started(0, 1)), (94.0, ev.Submitted(0, "submit", JOB, True)))
    made.seen(
        (30.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes)),
        (21.0, ev.LaunchSeen(0, f"{JOB}.0", 0, made.nodes, 32)),
    )
    return made.beats(-1, only=made.nodes[:3], phase="start").operator().view()


def examining(folder: Path) -> RunView:
    """A node is silent, and was asked once."""
    made = Made(folder).began().stepped().saved()
    made.seen((12.0, ev.NodeSilent(0, f"{JOB}.0", "gpu002", 11.0)))
    made.seen((9.0, ev.Probed(0, "i1/probe/gpu002/1", "gpu002", "FAIL", LOST)))
    return made.beats(late={"gpu002": 23.0}).operator().view()


def backing_off(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved(18000)
    for again, before in enumerate((900.0, 500.0), 1):
        _fails(made, again, before)
        made.seen((before - 70.0, ev.Restarted(0, f"i{again}/restart", JOB, again, "requeued")))
        made.seen((before - 90.0, ev.JobSeen(0, JOB, again, "RUNNING", nodes=made.nodes)))
        made.seen((before - 160.0, ev.StepSeen(0, f"{JOB}.{again}", 18001)))
    return _fails(made, 3, 6.0).operator().view()


def starting_again(folder: Path) -> RunView:
    return _node_lost(Made(folder)).operator().view()


def recovered(folder: Path) -> RunView:
    made = _node_lost(Made(folder))
    made.nodes = (*made.nodes[:2], made.nodes[3], "gpu009")
    made.seen((200.0, ev.JobSeen(0, JOB, 1, "RUNNING", nodes=made.nodes)))
    made.seen((180.0, ev.StepSeen(0, f"{JOB}.1", 18301)), (120.0, ev.StepSeen(0, f"{JOB}.1", 18327)))
    return made.beats(18379, attempt=f"{JOB}.1").operator().view()


def preflight(folder: Path) -> RunView:
    """The nodes are being checked; 12 of 64 have answered."""
    made = Made(folder, nodes=64).seen((95.0, ev.Started(0, 1)), (94.0, ev.Submitted(0, "submit", JOB, True)))
    made.seen((4.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes)))
    count = made.run.attempt(JOB, 0).preflight
    count.parent.mkdir(parents=True)
    count.write_text(json.dumps({"checked": 12, "of": 64}))
    return made.operator().view()


def crash_looping(folder: Path) -> RunView:
    """The same KeyError at the same step, twice; the third launch has begun to train."""
    made = Made(folder, settings="steps = 100\n", rules=(CRASH_LOOP,)).began(0.05)
    for launch, before in enumerate((120.0, 60.0), 1):
        _key_error(made, launch, before)
        made.seen((before - 9.0, ev.LaunchSeen(0, f"{JOB}.0", launch, made.nodes, 32)))
        made.seen((before - 19.0, ev.StepSeen(0, f"{JOB}.0", 6)))
    return made.beats(6).operator().view()


def stopped_crash_loop(folder: Path) -> RunView:
    made = Made(folder, settings="steps = 100\n", rules=(CRASH_LOOP,)).began(0.05)
    for launch, before in enumerate((120.0, 90.0), 1):
        _key_error(made, launch, before)
        made.seen((before - 9.0, ev.LaunchSeen(0, f"{JOB}.0", launch, made.nodes, 32)))
        made.seen((before - 19.0, ev.StepSeen(0, f"{JOB}.0", 6)))
    exits = (ev.RankExit(3, "gpu000", 1, None, step=7),)
    made.seen((50.0, ev.OutcomeSeen(0, f"{JOB}.0", "failed", "rank 3 ended", exits, nodes=made.nodes, step=7)))
    made.seen((49.0, ev.Examined(0, "i3/examine", "user_code", KEY_ERROR, "rank-3.log")))
    made.seen((30.0, ev.JobSeen(0, JOB, 0, "CANCELLED")))
    return made.operator(None).view()


def failing(folder: Path) -> RunView:
    """A rule has ended the run, and Slurm still removes the job's processes."""
    once = Rule("once", "stop", category=("user_code",))
    made = Made(folder, rules=(once,)).began().stepped().saved(18300, 400.0)
    exits = (ev.RankExit(3, "gpu000", 1, None),)
    made.seen((8.0, ev.OutcomeSeen(0, f"{JOB}.0", "failed", "rank 3 ended", exits, nodes=made.nodes)))
    made.seen((7.0, ev.Examined(0, "i1/examine", "user_code", KEY_ERROR, "rank-3.log")))
    return made.seen((4.0, ev.JobSeen(0, JOB, 0, "RUNNING", completing=True))).operator().view()


def starved(folder: Path) -> RunView:
    """gpu002 is drained, another run drained gpu003: two nodes are left for three."""
    made = _node_lost(Made(folder, nodes=3))
    made.seen((200.0, ev.JobSeen(0, JOB, 1, "PENDING", reason=DOWN)))
    nodes = [Node(name, "idle", drain=name in ("gpu002", "gpu003")) for name in names(4)]
    view = with_answer(made.operator().view(), Job(JOB, JobState.PENDING, reason=DOWN, num_nodes=3, restarts=1))
    return with_starvation(view, nodes, {"gpu003": "first-20261121-101112-abcd"})


def leaving(folder: Path) -> RunView:
    """The time limit is near: all ranks have saved and are gone."""
    made = Made(folder, settings='steps = 120000\n[job]\ntime = "06:13:00"\n').began().stepped().saved(18430, 4.0)
    leave = ev.RecoverySeen(0, f"{JOB}.0", "", "leaving", "all ranks save at step 18430", "time_limit")
    return made.seen((8.0, leave)).beats(18430, dead=dict.fromkeys(made.nodes, "X")).operator().view()


def launcher_got_sigterm(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved(18400, 9.0)
    leave = ev.RecoverySeen(0, f"{JOB}.0", "", "leaving", "all ranks save at step 18430", "stop_request")
    return made.seen((3.0, leave)).beats().operator().view()


def continues(folder: Path) -> RunView:
    """The time limit has ended the attempt; the job waits for its next start."""
    made, why = Made(folder).began().stepped().saved(18430, 40.0), "the time limit is near; step 18430 is durable"
    made.seen(
        (38.0, ev.RecoverySeen(0, f"{JOB}.0", "", "leaving", "all ranks save at step 18430", "time_limit")),
        (
            30.0,
            ev.OutcomeSeen(0, f"{JOB}.0", "left", why, cause="time_limit"),
        ),
        (28.0, ev.Restarted(0, "i1/restart", JOB, 1, "requeued")),
        (27.0, ev.JobSeen(0, JOB, 1, "PENDING", reason="Resources")),
    )
    return made.operator().view()


def held(folder: Path) -> RunView:
    made = Made(folder).began().stepped(18400, before=1920.0).saved(18400, 1900.0)
    made.seen((860.0, ev.StepSeen(0, f"{JOB}.0", 18859)))
    made.seen((840.0, ev.JobSeen(0, JOB, 1, "PENDING", held=True, reason="launch_failed_requeued_held")))
    job = Job(JOB, JobState.PENDING, held=True, reason="launch_failed_requeued_held", restarts=1)
    return with_answer(made.operator().view(), job)


def held_by_its_launcher(folder: Path) -> RunView:
    """While there was no operator."""
    made = Made(folder).began().stepped().saved()
    attempt = made.run.attempt(JOB, 0)
    attempt.path.mkdir(parents=True)
    attempt.outcome.write_text(json.dumps({"why": f"{FAILED}; 4 attempts in a row without a newer checkpoint"}))
    handed = {"type": "requeued", "wall": NOW - 300, "how": "held", "job_id": JOB, "restarts": 1}
    attempt.launcher_journal.write_text(json.dumps(handed) + "\n")
    return made.operator(None).view()


def unknown(folder: Path) -> RunView:
    """The operator was killed, and the nodes have told nothing since."""
    made = Made(folder).began().stepped(before=560.0).saved().beats(ago=551.0).operator(None)
    return with_answer(made.view(), Job(JOB, JobState.RUNNING, nodes=made.nodes))


def unknown_and_slurm_too(folder: Path) -> RunView:
    made = Made(folder).began().stepped(before=560.0).saved().beats(ago=551.0).operator(None)
    return with_error(made.view(), "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


def without_an_operator(folder: Path) -> RunView:
    return Made(folder).began().stepped().saved().beats().operator(None).view()


def own_script(folder: Path) -> RunView:
    """No launcher runs in it."""
    made = Made(folder)
    made.run.script.write_text("#!/bin/bash\n# launch the training\nsrun python train.py\n")
    made.seen(
        (50.0, ev.Started(0, 1)),
        (49.0, ev.Submitted(0, "submit", JOB, True)),
        (40.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes, batch_host="gpu000")),
    )
    return made.operator().view()


def operator_waits(folder: Path) -> RunView:
    """`--operator job`, in a partition where no core is free yet."""
    made = Made(folder)
    made.run.operator_job.write_text("48212\n")
    return with_operator_job(made.view(), Job(48212, JobState.PENDING, reason="Priority"))


def slurm_is_silent(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved().beats()
    made.seen((45.0, ev.SlurmLost(0, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")))
    return made.operator().view()


def not_a_number(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved().beats(loss=float("nan"))
    return made.report("nan_loss", "the loss is not a number since step 18422").operator().view()


def a_rank_is_gone(folder: Path) -> RunView:
    return Made(folder).began().stepped().saved().beats(dead={"gpu003": "X"}).operator().view()


def finishing(folder: Path) -> RunView:
    made = Made(folder, settings="steps = 18430\n").began().stepped().saved(18430, 9.0)
    made.seen((5.0, ev.OutcomeSeen(0, f"{JOB}.0", "done", "", nodes=made.nodes, step=18430)))
    return made.beats(phase="done").operator().view()


def done(folder: Path) -> RunView:
    made = Made(folder, settings="steps = 120000\n").began(80.0).saved(120000, 7210.0)
    made.seen((7200.0, ev.StepSeen(0, f"{JOB}.0", 120000)))
    made.seen((7190.0, ev.JobSeen(0, JOB, 0, "COMPLETED", exit_code=0)))
    return made.operator(None).view()


def failed(folder: Path) -> RunView:
    """A mistake of the user's, before the first step."""
    made = Made(folder).seen((95.0, ev.Started(0, 1)), (94.0, ev.Submitted(0, "submit", JOB, True)))
    exits = (ev.RankExit(3, "gpu000", 1, None),)
    made.seen(
        (60.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=made.nodes)),
        (55.0, ev.LaunchSeen(0, f"{JOB}.0", 0, made.nodes, 32)),
        (40.0, ev.OutcomeSeen(0, f"{JOB}.0", "failed", FAILED, exits, nodes=made.nodes)),
        (
            39.0,
            ev.Examined(
                0, "i1/examine", "dependency_import", "ModuleNotFoundError: No module named 'tokeniser'", "rank-3.log"
            ),
        ),
        (38.0, ev.Acted(0, f"cancel/{JOB}.0", "cancelled")),
        (37.0, ev.JobSeen(0, JOB, 0, "CANCELLED")),
    )
    return made.operator(None).view()


def given_up(folder: Path) -> RunView:
    """A loop without progress, that ends with the code for it."""
    made = Made(folder, max_without_progress=1).began().stepped().saved(18400, 2000.0)
    for again, before in enumerate((900.0, 500.0), 1):
        _fails(made, again, before)
        made.seen((before - 70.0, ev.Restarted(0, f"i{again}/restart", JOB, again, "requeued")))
        made.seen((before - 90.0, ev.JobSeen(0, JOB, again, "RUNNING", nodes=made.nodes)))
        made.seen((before - 160.0, ev.StepSeen(0, f"{JOB}.{again}", 18401)))
    _fails(made, 3, 100.0)
    made.seen((30.0, ev.JobSeen(0, JOB, 2, "CANCELLED")))
    return made.operator(None).view()


def no_checkpoint_restores(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved()
    exits = (ev.RankExit(0, "gpu000", 15, None),)
    made.seen((60.0, ev.OutcomeSeen(0, f"{JOB}.0", "failed", "rank 0 ended", exits, nodes=made.nodes)))
    made.seen((59.0, ev.Examined(0, "i1/examine", "user_code", "NoCheckpoint: 1 checkpoint exists", "rank-0.log")))
    made.seen((50.0, ev.JobSeen(0, JOB, 0, "FAILED", exit_code=15)))
    return made.operator(None).view()


def stopping(folder: Path) -> RunView:
    return Made(folder).began().stepped().saved().seen((4.0, ev.StopRequested(0, "ada on login1"))).operator().view()


def stopped(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved().seen((64.0, ev.StopRequested(0, "ada on login1")))
    return made.seen((40.0, ev.JobSeen(0, JOB, 0, "CANCELLED"))).operator(None).view()


def hostile(folder: Path) -> RunView:
    """Escape sequences wherever others' words stand."""
    bad = "\x1b[2J\x1b]0;owned\x07 \r\n\x9b31m\u202e"
    made = Made(folder).began().stepped().saved()
    made.report("slow_node", f"slow {bad}", "gpu001").found("gpu002", "host:x", "fail", f"bad {bad}")
    made.seen((90.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "seen", f"seen {bad}")))
    made.seen((80.0, ev.RecoverySeen(0, f"{JOB}.0", "l1", "diagnosed", f"why {bad}", "hang", (f"gpu001{bad}",))))
    view = made.beats().operator(host=f"login{bad}").view()
    view = replace(view, verdict=f"held {bad}", slurm_state="PENDING", slurm_reason=f"Odd{bad}", slurm_lost=bad)
    view = replace(view, slurm_silent_since=view.now - 90)
    return replace(view, excluded=(("gpu009", "drained", f"by {bad}"),), memory_protection=bad, save_schedule=bad)


def slow(folder: Path) -> RunView:
    made = Made(folder).began().stepped().saved()
    made.report("slow_node", "a node is slow; rank 8 on gpu001 spends 0.71 s in forward, usual is 0.3 s", "gpu001")
    return made.beats().operator().view()


def hang(folder: Path) -> RunView:
    """No rank steps, and nobody knows why yet."""
    made = Made(folder).began().stepped().saved()
    made.seen((20.0, ev.Stalled(0, f"{JOB}.0", ev.Stall(18430, 90.0, 45.0))))
    return made.beats(age=90.0).operator().view()


def _fails(made: Made, number: int, before: float) -> Made:
    exits = (ev.RankExit(3, "gpu000", 1, None, step=18431),)
    attempt = f"{JOB}.{number - 1}"
    made.seen((before, ev.OutcomeSeen(0, attempt, "failed", FAILED, exits, nodes=made.nodes, step=18431)))
    made.seen((before - 1.0, ev.Examined(0, f"i{number}/examine", "user_code", LOSS_LINE, "rank-3.log")))
    return made.seen((before - 30.0, ev.Tick(0))) if before > 30.0 else made


def _key_error(made: Made, number: int, before: float) -> None:
    """The launcher handles the fault and relaunches."""
    decided = ev.Decided("anything-else", "relaunch", "user_code", fingerprint("user_code", KEY_ERROR, made.nodes))
    words = f"rank 3 on gpu000 ended with exit code 1: {KEY_ERROR}"
    name, attempt = f"l{number}", f"{JOB}.0"
    made.seen(
        (before + 1, ev.StepSeen(0, attempt, 7)),
        (before, ev.RecoverySeen(0, attempt, name, "seen", "rank 3 on gpu000 ended with exit code 1")),
        (before - 2.0, ev.RecoverySeen(0, attempt, name, "diagnosed", words, "rank_failed", decided=decided)),
    )


def _node_lost(made: Made) -> Made:
    """gpu002 was drained, and the job waits for its next start."""
    made.began().stepped().saved(18300, 400.0)
    return made.seen(
        (290.0, ev.NodeSilent(0, f"{JOB}.0", "gpu002", 11.0)),
        (289.0, ev.Probed(0, "i1/probe/gpu002/1", "gpu002", "FAIL", LOST)),
        (287.0, ev.Probed(0, "i1/probe/gpu002/2", "gpu002", "FAIL", LOST)),
        (286.0, ev.Isolated(0, "i1/isolate/gpu002", "gpu002", "drained", "")),
        (280.0, ev.Restarted(0, "i1/restart", JOB, 1, "requeued")),
    )


def _without(made: Made, *numbers: int) -> tuple[str, ...]:
    return tuple(node for i, node in enumerate(made.nodes) if i not in numbers)


SCENES: dict[str, Callable[[Path], RunView]] = {
    scene.__name__: scene
    for scene in (
        healthy, total_not_known, one_node_of_many, gpus, spares, shrunk, submitting,
        pending, pending_without_an_answer,
        starting, preflight, crash_looping, stopped_crash_loop, failing, starved, leaving, launcher_got_sigterm,
        continues, saving,
        restoring, ranks_restore, examining, backing_off, starting_again, recovered, held,
        held_by_its_launcher, unknown, unknown_and_slurm_too, without_an_operator, operator_waits, slurm_is_silent,
        own_script, not_a_number, a_rank_is_gone, finishing, done, failed, given_up, no_checkpoint_restores, stopping,
        stopped, slow, hang, hostile,
    )
}  # fmt: skip

"""Texts that a real Slurm 22.05 printed (samples/22.05, names changed), and answers that make no sense."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transom_cli.slurm import accounting, parse
from transom_cli.slurm.port import JobState, SlurmUnknown

SAMPLES = Path(__file__).parent / "samples" / "22.05"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def with_fields(text: str, **fields: str) -> str:
    for key, value in fields.items():
        text, found = re.subn(rf" {key}=\S*", f" {key}={value}", text, count=1)
        assert found
    return text


def test_running_job_with_keys_in_its_free_text() -> None:
    job = parse.parse_show_job(sample("job_running.txt"))
    assert job.job_id == 1
    assert job.state is JobState.RUNNING and not job.completing and not job.held
    assert job.name == "na me=x Reason=foo"
    assert job.comment == "transom:r1:i1 a=b Reason=c"
    assert job.reason == ""
    assert job.nodes == ("node1", "node2", "node3")
    assert job.batch_host == "node1"
    assert job.excluded == ("node4",)
    assert (job.num_nodes, job.cpus_per_task, job.restarts, job.requeue) == (3, 1, 0, True)
    assert job.exit_code is None
    assert (job.user, job.partition) == ("trainer", "main")


def test_requeued_and_held_differs_from_released() -> None:
    held = parse.parse_show_job(sample("job_requeued_held.txt"))
    released = parse.parse_show_job(sample("job_waiting.txt"))
    assert held.held and held.reason == "job_requeued_in_held_state"
    assert not released.held
    assert held.state is released.state is JobState.PENDING
    assert held.restarts == released.restarts == 1
    assert held.nodes == () and held.batch_host == ""


def test_a_job_whose_reservation_has_gone_is_held() -> None:
    """As 22.05 printed it: the state is a flag's alone."""
    gone = with_fields(sample("job_waiting.txt"), JobState="RESV_DEL_HOLD", Priority="0")
    job = parse.parse_show_job(gone.replace("Reason=None Dep", "Reason=Reservation_r6_was_deleted Dep"))
    assert (job.state, job.held, job.reason) == (JobState.PENDING, True, "Reservation_r6_was_deleted")


def test_what_a_job_asks_of_its_nodes() -> None:
    waiting = sample("job_waiting.txt")
    assert parse.parse_show_job(waiting).requirements == ()
    asks = with_fields(waiting, Features="h100&ib", ReqNodeList="node[1-2]")
    asks = asks.replace(" DelayBoot=", " Reservation=r1 DelayBoot=").rstrip("\n") + " Switches=1@1-00:05:00 Power= \n"
    assert parse.parse_show_job(asks).output == parse.parse_show_job(waiting).output
    assert parse.parse_show_job(asks).requirements == (
        ("reservation", "r1"),
        ("constraint", "h100&ib"),
        ("nodelist", "node[1-2]"),
        ("switches", "1@1-00:05:00"),
    )


def test_when_a_waiting_job_is_expected_to_start() -> None:
    waiting = sample("job_waiting.txt")
    assert parse.parse_show_job(waiting).start == "2026-11-21T03:46:33"
    assert parse.parse_show_job(with_fields(waiting, StartTime="Unknown")).start == ""
    assert parse.parse_show_job(sample("job_requeued_held.txt")).start == ""
    assert parse.parse_show_job(sample("job_running.txt")).start == ""


@pytest.mark.parametrize(
    ("name", "state", "code", "signal"),
    [
        ("job_failed.txt", JobState.FAILED, 7, 0),
        ("job_killed.txt", JobState.FAILED, 0, 9),
        ("job_cancelled.txt", JobState.CANCELLED, 0, 0),
        ("job_pending.txt", JobState.PENDING, None, None),
    ],
)
def test_exit_codes_are_there_once_a_job_has_ended(
    name: str, state: JobState, code: int | None, signal: int | None
) -> None:
    job = parse.parse_show_job(sample(name))
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)


def test_a_job_name_of_two_lines() -> None:
    job = parse.parse_show_job(sample("job_two_lines.txt"))
    assert job.name == "two\nlines"
    assert job.comment == "pipe|x"
    assert job.exit_signal == 15


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        # as seen on a real cluster while an epilog kept the job completing
        (JobState.PENDING, {"Priority": "0", "Reason": "job_requeued_in_held_state", "RunTime": "00:00:00"}),
        (JobState.PENDING, {"RunTime": "00:00:00"}),  # scontrol requeue: the times are the next start's
        (JobState.PENDING, {"RunTime": "00:00:00", "EndTime": "Unknown"}),  # the same without a time limit
        (JobState.UNKNOWN, {"RunTime": "00:00:01", "EndTime": "2026-11-21T03:44:31", "ExitCode": "0:15"}),
        (JobState.UNKNOWN, {"RunTime": "00:00:00", "EndTime": "2026-11-21T03:44:30"}),
        (JobState.FAILED, {"RunTime": "INVALID", "Reason": "NonZeroExitCode", "ExitCode": "7:0"}),
        (JobState.TIMEOUT, {"RunTime": "1-00:10:00", "Reason": "TimeLimit"}),
        (JobState.NODE_FAIL, {"RunTime": "00:10:00", "Reason": "NodeDown"}),
    ],
)
def test_completing_hides_the_base_state(state: JobState, fields: dict[str, str]) -> None:
    text = sample("job_running.txt").replace("na me=x Reason=foo", "train")
    job = parse.parse_show_job(with_fields(text, JobState="COMPLETING", **fields))
    assert job.completing
    assert job.state is state


def test_squeue_records_with_any_text_in_them() -> None:
    held, running = parse.parse_squeue(sample("squeue.txt"))
    assert held.held and held.restarts == 1 and held.reason == "job_requeued_in_held_state"
    assert held.comment == "transom:r1:i1 a=b Reason=c"
    assert running.name == "two\nlines" and running.comment == "pipe|x"
    assert running.nodes == ("node1", "node2", "node3", "node4") and running.batch_host == "node1"


def test_squeue_reports_exit_codes_and_signals() -> None:
    assert parse._squeue_exit("4021") == (0, 53), "Slurm could not start the script: no exit code"
    jobs = {job.job_id: job for job in parse.parse_squeue(sample("squeue_ended.txt"))}
    assert (jobs[3].state, jobs[3].exit_code, jobs[3].exit_signal) == (JobState.FAILED, 7, 0)
    assert (jobs[4].exit_code, jobs[4].exit_signal) == (0, 9)
    assert jobs[3].comment == ""


def test_a_script_that_slurm_could_not_start_has_no_exit_code() -> None:
    """22.05 prints 4021 where scontrol says 0:53: its upper half is no exit code, least of all one of transom's."""
    killed, failed = "\x1f1\x1f9\x1f", "\x1f1\x1f4021\x1f"
    text = sample("squeue_ended.txt")
    assert text.count(killed) == 1
    (job,) = [one for one in parse.parse_squeue(text.replace(killed, failed)) if one.job_id == 4]
    assert (job.exit_code, job.exit_signal) == (0, 53)


def test_squeue_of_a_user_without_jobs() -> None:
    assert parse.parse_squeue("") == []


def test_nodes_with_their_flags() -> None:
    idle, drained, mixed, down = parse.parse_show_nodes(sample("nodes.txt"))
    assert idle.usable and (idle.name, idle.address, idle.port) == ("node1", "127.0.0.1", 27011)
    assert (idle.gpus, idle.cpus, idle.memory, idle.partitions) == (2, 2, 2000, ("main",))
    assert drained.drain and drained.state == "idle" and not drained.usable
    assert (drained.reason, drained.reason_user) == ("transom: gpu lost (r1) = a", "root")
    assert mixed.state == "mixed" and mixed.usable and mixed.reason == ""
    assert down.state == "down" and down.reason == "it's gone" and not down.usable


@pytest.mark.parametrize(
    ("word", "base", "drain", "silent"),
    [
        ("IDLE+DRAIN*", "idle", True, True),
        ("MIXED+COMPLETING*", "mixed", False, True),
        ("IDLE+COMPLETING+NOT_RESPONDING", "idle", False, True),
        ("DOWN*+DRAIN", "down", True, True),
        ("ALLOCATED", "allocated", False, False),
        ("IDLE~", "idle", False, False),
        ("DRAINING", "draining", True, False),
    ],
)
def test_node_states_are_parsed(word: str, base: str, drain: bool, silent: bool) -> None:
    (node,) = parse.parse_show_nodes(f"NodeName=n1 State={word} ThreadsPerCore=1\n")
    assert (node.state, node.drain, node.not_responding) == (base, drain, silent)


@pytest.mark.parametrize(
    ("word", "state", "completing"),
    [
        ("R", JobState.RUNNING, False),
        ("CANCELLED by 1000", JobState.CANCELLED, False),
        ("CANCELLED+", JobState.CANCELLED, False),
        ("FAILED+COMPLETING", JobState.FAILED, True),
        ("CG", JobState.UNKNOWN, True),
        ("CONFIGURING", JobState.RUNNING, False),
        ("REQUEUE_HOLD", JobState.PENDING, False),
        ("SPECIAL_EXIT", JobState.PENDING, False),
        ("RESV_DEL_HOLD", JobState.PENDING, False),
        ("RD", JobState.PENDING, False),
        ("SOMETHING_NEW", JobState.UNKNOWN, False),
    ],
)
def test_job_states_are_parsed(word: str, state: JobState, completing: bool) -> None:
    assert parse.parse_state(word) == (state, completing)


def test_node_lists() -> None:
    assert parse.parse_nodes("gpu[001-003,007]") == ("gpu001", "gpu002", "gpu003", "gpu007")
    assert parse.parse_nodes("r[1-2]n[1-2],x") == ("r1n1", "r1n2", "r2n1", "r2n2", "x")
    for none in ("", "(null)", "n/a", "None assigned"):
        assert parse.parse_nodes(none) == ()


def test_accounting_keeps_every_start() -> None:
    text = (
        "7|NODE_FAIL|0:0|100|150|gpu[1-2]|\n7|CANCELLED by 1000|0:15|160|170|gpu[2-3]|\n"
        "7|RUNNING|0:0|180|Unknown|gpu3|\n"
    )
    first, second, third = accounting.parse_sacct(text, 7)
    assert first.state is JobState.NODE_FAIL and first.nodes == ("gpu1", "gpu2")
    assert (first.began, first.ended, first.by) == (100.0, 150.0, None)
    assert (second.state, second.exit_signal, second.by) == (JobState.CANCELLED, 15, 1000)
    assert (third.exit_code, third.began, third.ended) == (None, 180.0, None)


def test_accounting_of_a_start_that_was_shrunk_and_requeued() -> None:
    text = (
        "1|RESIZING|0:0|5|6|node[1-3]|\n1|RESIZING|0:0|6|7|node[1-2]|\n1|REQUEUED|0:0|7|9|node1|\n"
        "1|RUNNING|0:0|20|Unknown|node[1-2,4]|\n"
    )
    first, second = accounting.parse_sacct(text, 1)
    assert (first.state, first.nodes) == (JobState.PENDING, ("node1", "node2", "node3"))
    assert (first.began, first.ended, first.resized, second.resized) == (5.0, 9.0, (6.0, 7.0), ())
    assert second.nodes == ("node1", "node2", "node4")
    later = accounting.parse_sacct("1|RESIZING|0:0|15|31|n[1-3]|\n1|REQUEUED|0:0|15|32|n[1,3]|\n", 1)
    assert [(one.began, one.ended, one.resized) for one in later] == [(15.0, 32.0, (31.0,))], "as 24.11 has it"


def test_shrunk_start_is_listed_while_its_job_waits() -> None:
    """22.05 makes the record of what was left of it that of the waiting job."""
    shrunk, waits = accounting.parse_sacct("1|RESIZING|0:0|5|6|n[1-3]|\n1|PENDING|0:0|Unknown|Unknown|n[1,3]|\n", 1)
    assert (shrunk.state, shrunk.nodes, shrunk.ended) == (JobState.UNKNOWN, ("n1", "n2", "n3"), 6.0)
    assert (waits.began, waits.ended) == (None, None)


def test_what_waits_or_was_cancelled_in_the_queue_has_not_begun() -> None:
    """22.05 shows a waiting job's former nodes; a cancelled one's start is its end."""
    waits, never = accounting.parse_sacct(
        "1|PENDING|0:0|Unknown|Unknown|node1|\n2|CANCELLED by 0|0:0|9|9|None assigned|\n", 1, 2
    )
    assert (waits.state, waits.nodes, waits.began, waits.ended) == (JobState.PENDING, (), None, None)
    assert (never.state, never.nodes, never.began, never.ended, never.by) == (JobState.CANCELLED, (), None, 9.0, 0)


def test_owner_is_read_from_the_submission() -> None:
    """With the user's own text: a folder of two lines, and arguments of the script that look like ours."""
    line = "sbatch --comment=mine --comment=transom:demo --chdir=/a b\nc|d /job.sbatch --comment=other|x\n"
    both = accounting.parse_sacct(f"7|FAILED|7:0|5|6|n1|{line}7|COMPLETED|0:0|7|8|n2|sbatch x\n", 7)
    assert [(one.comment, one.nodes) for one in both] == [("transom:demo", ("n1",)), ("", ("n2",))]
    (theirs,) = accounting.parse_sacct("7|FAILED|7:0|5|6|n1|sbatch --comment=mine x\n", 7)
    assert theirs.comment == "mine"


def test_several_jobs_come_in_one_answer_and_others_elements_are_left_out() -> None:
    text = "7|RESIZING|0:0|5|6|n1|\n8|FAILED|7:0|5|6|n2|\n9|FAILED|7:0|5|6|n2|\n7|COMPLETED|0:0|6|8|n1|\n"
    result = accounting.parse_sacct(text, 7, 8)
    assert [(start.job_id, start.began) for start in result] == [(8, 5.0), (7, 5.0)]


@pytest.mark.parametrize(("text", "job_id"), [("12\n", 12), ("12;cluster\n", 12), ("a plugin speaks\n12\n", 12)])
def test_submitted(text: str, job_id: int) -> None:
    assert parse.parse_submitted(text) == job_id


@pytest.mark.parametrize(
    "read",
    [
        lambda: parse.parse_squeue("slurm: \x1b[31mhello\n"),
        lambda: parse.parse_squeue(sample("squeue.txt").replace("node[1-4]", "node[1-", 1)),
        lambda: parse.parse_squeue(sample("squeue.txt")[:60]),
        lambda: parse.parse_show_job(""),
        lambda: parse.parse_show_job(sample("job_running.txt").replace("Restarts=0", "Restarts=x")),
        lambda: parse.parse_show_job(sample("job_running.txt")[:300]),
        lambda: parse.parse_show_nodes("hello\n"),
        lambda: accounting.parse_sacct("7|RUNNING|0:0|1|2\n", 7),
        lambda: accounting.parse_sacct("", 7),
        lambda: parse.parse_submitted(""),
        lambda: parse.parse_submitted("Submitted batch job 12, perhaps\n"),
        lambda: parse.parse_nodes("@group"),
    ],
)
def test_nonsense_is_unknown_and_quoted(read) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SlurmUnknown) as raised:
        read()
    assert raised.value.why and raised.value.hint
    assert "\x1b" not in str(raised.value)


def test_partitions_have_their_nodes_also_those_that_are_powered_down() -> None:
    text = (
        "PartitionName=debug AllowGroups=ALL AllocNodes=ALL Default=YES Nodes=node[1-2],c1 State=UP TotalNodes=3\n"
        "PartitionName=empty AllocNodes=ALL MaxNodes=UNLIMITED Nodes=(null) State=UP TotalNodes=0\n"
    )
    assert parse.parse_show_partitions(text) == {"debug": ("c1", "node1", "node2"), "empty": ()}

"""Text that people and sites choose, with field names, spaces and brackets in it, as a real Slurm prints it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transom_cli.slurm import parse
from transom_cli.slurm.port import JobState

# by a real 22.05; the job's owner chose name, account, network, folder and comment, an administrator the AdminComment
JOB = (
    r"JobId=150001 JobName=na UserId=x(1) GroupId=y(2) UserId=carol o.neil(52003) GroupId=domain users(52000)"
    r" MCS_label=N/A Priority=4294901759 Nice=0 Account=acc priority=0 QOS=(null) WCKey=w JobState=FAILED Restarts=7"
    r" JobState=PENDING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0"
    r" RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A SubmitTime=2026-11-24T06:28:09 EligibleTime=2026-11-24T06:28:09"
    r" AccrueTime=Unknown StartTime=Unknown EndTime=Unknown Deadline=N/A SuspendTime=None SecsPreSuspend=0"
    r" LastSchedEval=2026-11-24T06:28:09 Scheduler=Main Partition=debug AllocNode:Sid=localhost:6374"
    r" ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1"
    r" ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=200M,node=1,billing=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*"
    r" MinCPUsNode=1 MinMemoryCPU=200M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK"
    r" Contiguous=0 Licenses=(null) Network=n Restarts=9 NodeList=node7 Command=/home/carol/job x.sbatch"
    r" WorkDir=/home/carol/wd Comment=q NodeList=node9 AdminComment=a Comment=evil b  Comment=transom:r1:i1 Comment=x"
    r"  StdErr=/home/carol/wd Comment=q/slurm.out StdIn=/dev/null StdOut=/home/carol/wd Comment=q/slurm.out Power= "
    "\n"
)
NODE = (
    "NodeName=node2 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=2.65 AvailableFeatures=(null)"
    " ActiveFeatures=(null) Gres=gpu:2 NodeAddr=10.0.0.2 NodeHostName=localhost Port=30449 Version=22.05.8"
    " OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=16000 State=IDLE+DRAIN ThreadsPerCore=1"
    " MCS_label=N/A Partitions=debug  BootTime=2026-11-24T06:02:24 ExtSensorsTemp=n/s"
)
WHOSE = ("root", "CORP\\dave", "carol o.neil", "dave@corp.example")
RELEASES = sorted((Path(__file__).parent / "samples").glob("2*"))


def test_job_full_of_field_names() -> None:
    job = parse.parse_show_job(JOB)
    assert (job.job_id, job.state, job.restarts, job.held) == (150001, JobState.PENDING, 0, False)
    assert (job.name, job.user) == ("na UserId=x(1) GroupId=y(2)", "carol o.neil")
    assert (job.nodes, job.num_nodes, job.partition) == ((), 1, "debug")
    assert job.comment.split()[0] == "transom:r1:i1"
    assert job.command.split()[0] == "/home/carol/job"


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
@pytest.mark.parametrize("user", ["DOM\\user", "user@dom.example", "o.neil (lab 7)", "user"])
@pytest.mark.parametrize("group", ["domain users", "DOM\\domain users", "lab (7)", "staff"])
def test_users_and_groups_of_active_directory(release: Path, user: str, group: str) -> None:
    text = (release / "job_running.txt").read_text()
    odd = re.sub(r"UserId=\S+ GroupId=\S+", lambda _: f"UserId={user}(1000) GroupId={group}(513)", text)
    job, usual = parse.parse_show_job(odd), parse.parse_show_job(text)
    assert job.user == user
    assert (job.state, job.nodes, job.name, job.comment, job.excluded) == (
        usual.state, usual.nodes, usual.name, usual.comment, usual.excluded,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Account", "a b JobState=FAILED"),
        ("QOS", "high Restarts=3"),
        ("Features", "h100&[ib|roce]*2"),
        ("Licenses", "matlab@db:3"),
        ("Network", "x Requeue=0 Command=/bin/false"),
        ("WorkDir", "/home/DOM\\user/a UserId=x(1) dir"),
    ],
)
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_one_hostile_field_changes_no_other(release: Path, field: str, value: str) -> None:
    text = (release / "job_running.txt").read_text()
    odd, found = re.subn(rf" {field}=\S*", lambda _: f" {field}={value}", text, count=1)
    job, usual = parse.parse_show_job(odd), parse.parse_show_job(text)
    assert found == 1
    for name in ("state", "restarts", "requeue", "nodes", "excluded", "name", "user", "comment", "num_nodes"):
        assert getattr(job, name) == getattr(usual, name), name


@pytest.mark.parametrize("user", WHOSE)
@pytest.mark.parametrize(
    "after",
    [
        "",
        " Comment=c State=DOWN* Reason=x [a@b]",
        " Comment=drained before [root@2026-11-20T01:02:03]",
        " Extra=e State=DOWN* Reason=nope",
        " InstanceId=i-0123 InstanceType=p5.48xlarge",
        " Comment=c Extra=e InstanceId=i-0123 ReservationName=r1",
    ],
)
@pytest.mark.parametrize(
    "reason", ["transom: gpu lost (r1)", "bad [x@y] Comment=z State=DOWN Port=1", "Not responding"]
)
def test_drained_node_keeps_reason_and_state(reason: str, user: str, after: str) -> None:
    (node,) = parse.parse_show_nodes(f"{NODE} Reason={reason} [{user}@2026-11-24T06:28:09]{after}\n")
    assert (node.name, node.address, node.port) == ("node2", "10.0.0.2", 30449)
    assert (node.state, node.drain, node.not_responding) == ("idle", True, False)
    assert (node.reason, node.reason_user) == (reason, user)


@pytest.mark.parametrize("after", ["Comment=c Reason=x [a@2026-11-20T01:02:03]", "Extra=State=DOWN Reason=y", ""])
def test_node_without_reason_has_none(after: str) -> None:
    healthy = NODE.replace("IDLE+DRAIN", "IDLE")
    (node,) = parse.parse_show_nodes(f"{healthy} {after}".rstrip() + "\n")
    assert (node.reason, node.reason_user, node.state, node.usable) == ("", "", "idle", True)


def test_reason_without_a_user() -> None:
    (node,) = parse.parse_show_nodes(f"{NODE} Reason=it's gone Extra=x\n")
    assert (node.reason, node.reason_user) == ("it's gone", "")

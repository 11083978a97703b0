"""Parse Slurm's output into the port's data classes. Pure: one function for each kind of output.

Text that people and sites choose (names of users and groups too) may contain spaces, equals signs, newlines and whole
fields of Slurm's, so nothing splits on it: `squeue` is given control characters as separators, and in the output of
`scontrol show` such text is located by the fixed fields around it. Unexpected output raises SlurmUnknown, which quotes
the line.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from transom_cli.slurm.port import Job, JobState, Node, SlurmUnknown

FIELD, RECORD = "\x1f", "\x1e"
_COLUMN_WORDS = (
    "JobID State Reason RestartCnt Requeue NodeList BatchHost NumNodes exit_code PriorityLong "
    "TimeUsed StartTime EndTime Partition UserName Name Command Comment"
)
_COLUMNS = tuple(_COLUMN_WORDS.split())
SQUEUE_FORMAT = ",".join(f"{column}:{FIELD}" for column in _COLUMNS[:-1]) + f",{_COLUMNS[-1]}:{RECORD}"

_EMPTY = frozenset({"", "(null)", "N/A", "n/a", "None", "None assigned", "(none)"})
_JOB = re.compile(
    r"JobId=(?P<id>\d+) (?:\S+=\S+ )*?JobName=(?P<name>.*?) UserId=(?P<user>(?:(?! GroupId=).)*)\(\d+\)"
    r" GroupId=(?:(?! UserId=).)*?\(\d+\) (?P<body>MCS_label=\S* Priority=\d+ .*?) OverSubscribe=.*?"
    r" Command=(?P<tail>.*)",
    re.DOTALL,
)
_COMMAND = re.compile(r"(.*?) WorkDir=", re.DOTALL)
# Ours, whatever other comments, the paths, and a site's addition to ours contain; else the last one.
_COMMENT = re.compile(r"(?:.*? Comment=(?=transom:)|.* Comment=)(.*?) (?:StdErr|StdIn|StdOut|Power)=", re.DOTALL)
_SWITCHES = re.compile(r".* Switches=(\d+@[\d:-]+)", re.DOTALL)
_ONE_SWITCH = re.compile(r"SwitchName=(\S+) .*?\bNodes=(\S+)")
_BLOCK = re.compile(r"BlockName=(\S+) .*?\bNodes=(\S+)")
_REQUIREMENTS = (("reservation", "Reservation"), ("constraint", "Features"), ("nodelist", "ReqNodeList"))
# No free text follows it.
_OUTPUT = re.compile(r".* StdOut=(.*?)(?: Switches=\d+@\S+)?(?: Power=.*)?$", re.DOTALL)
# A node's free text comes last. Only the first field can be trusted to be one.
_NODE_TEXT = re.compile(r" (Reason|Comment|Extra|InstanceId|InstanceType|ReservationName)=")
_NODE_REASON = re.compile(r"(.*?) \[([^\]]+)@(\d{4}-[^\]\s]+|Unknown)\](?: |$)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")
_PART = re.compile(r"\b(Array|Het)JobId=")
_SHORT_STATES = {
    "PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "CD": "COMPLETED", "CA": "CANCELLED", "F": "FAILED",
    "TO": "TIMEOUT", "NF": "NODE_FAIL", "PR": "PREEMPTED", "BF": "BOOT_FAIL", "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY", "CG": "COMPLETING", "CF": "CONFIGURING", "RD": "RESV_DEL_HOLD",
}  # fmt: skip
# Slurm prints a flag instead of the base state; these flags imply it.
_FLAG_BASE = {
    "CONFIGURING": JobState.RUNNING, "RESIZING": JobState.RUNNING, "SIGNALING": JobState.RUNNING,
    "STOPPED": JobState.SUSPENDED, "REQUEUED": JobState.PENDING, "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING, "SPECIAL_EXIT": JobState.PENDING, "RESV_DEL_HOLD": JobState.PENDING,
}  # fmt: skip
_ENDED_BY_REASON = {
    "NonZeroExitCode": JobState.FAILED, "TimeLimit": JobState.TIMEOUT, "NodeDown": JobState.NODE_FAIL,
    "OutOfMemory": JobState.OUT_OF_MEMORY, "JobLaunchFailure": JobState.FAILED,
    "RaisedSignal": JobState.FAILED,  # RaisedSignal:9(Killed) since 24.11; NonZeroExitCode before
}  # fmt: skip


def unexpected_output(text: str, reading: str) -> SlurmUnknown:
    """Return the error for output that is not what Slurm is documented to print."""
    return SlurmUnknown(
        f"Slurm's answer to `{reading}` cannot be parsed",
        clean(text)[:400] or "(an empty answer)",
        f"run `{reading}` by hand, and check that all Slurm commands on this host have the same version",
    )


def clean(text: str) -> str:
    """Make Slurm's text safe to show: control characters and terminal escapes become spaces, lines stay."""
    lines = ("".join(c if c.isprintable() else " " for c in line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def parse_nodes(expression: str, reading: str = "a node list") -> tuple[str, ...]:
    """Expand `gpu[001-003,007]` to names, in Slurm's order. () for each of Slurm's words for none."""
    if expression.strip() in _EMPTY:
        return ()
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # slow; `status` may need none

    if re.search(r"[^\w\[\],.:-]", expression):
        raise unexpected_output(expression, reading)
    try:
        return tuple(NodeSet(expression, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise unexpected_output(f"{expression}: {error}", reading) from error


def fold_nodes(names: Iterable[str]) -> str:
    """Fold names to `gpu[001-003,007]`. Names that no node can have are joined with commas."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    given = tuple(names)
    try:
        return str(NodeSet.fromlist(given, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(given)


def parse_state(word: str) -> tuple[JobState, bool]:
    """Parse `RUNNING`, `R`, `CANCELLED by 1000`, `COMPLETING`, `REQUEUE_HOLD` ... into (base state, COMPLETING).

    COMPLETING alone hides the base state, which is then UNKNOWN, like any state that is not known here.
    """
    flags = [_SHORT_STATES.get(flag, flag) for flag in word.split(" by ")[0].rstrip("+*").upper().split("+")]
    completing = "COMPLETING" in flags
    for flag in flags:
        if flag in JobState.__members__:
            return JobState[flag], completing
    for flag in flags:
        if flag in _FLAG_BASE:
            return _FLAG_BASE[flag], completing
    return JobState.UNKNOWN, completing


def _base_under_completing(reason: str, priority: int, used: str, start: str, end: str) -> JobState:
    """Return the base state of a job that is printed as COMPLETING.

    An ended job ran from its start to its end. For a requeued job Slurm has set the run time to 0, and start and end
    to those of the next start, one time limit apart.
    """
    if priority == 0 or reason == "job_requeued_in_held_state":
        return JobState.PENDING
    if _seconds_used(used) == 0:
        try:
            length = datetime.fromisoformat(end) - datetime.fromisoformat(start)
        except ValueError:  # Unknown, N/A, NONE: no end
            return JobState.PENDING
        if length.total_seconds() > 1:
            return JobState.PENDING
    return _ENDED_BY_REASON.get(reason.partition(":")[0], JobState.UNKNOWN)


def _seconds_used(text: str) -> int:
    if not re.fullmatch(r"(\d+-)?\d+(:\d+)*", text):  # INVALID, if the clock was set back
        return -1
    days, _, clock = text.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds + 86400 * int(days or 0)


def exit_pair(text: str) -> tuple[int, int]:
    code, _, signal = text.partition(":")
    return int(code), int(signal or 0)


def _squeue_exit(text: str) -> tuple[int, int]:
    """22.05 prints the wait status; 24.11 and later print code:signal, like scontrol."""
    if ":" in text:
        return exit_pair(text)
    signal = int(text) & 0x7F
    return 0 if signal else int(text) >> 8, signal  # above a signal's bits is no exit code (4021: 0:53)


def make_job(raw: Mapping[str, str], exit_pair: tuple[int, int], excluded: tuple[str, ...], reading: str) -> Job:
    """Build a job from Slurm's fields, from whichever interface they come.

    Args:
        raw: Id, State, Reason, Priority, Used, Start, End, Restarts, Requeue ("1"), Nodes, NumNodes, Name, Comment,
            Partition, User and optionally BatchHost and Command, as Slurm prints them.

    Raises:
        ValueError, KeyError: a field is missing or unexpected.
    """
    reason = "_".join(raw["Reason"].strip("()").split())
    priority = int(raw["Priority"])
    state, completing = parse_state(raw["State"])
    if completing and state is JobState.UNKNOWN:
        state = _base_under_completing(reason, priority, raw["Used"], raw["Start"], raw["End"])
    return Job(
        job_id=int(raw["Id"]),
        state=state,
        completing=completing,
        held=state is JobState.PENDING and priority == 0,
        reason="" if reason in _EMPTY else reason,
        restarts=int(raw["Restarts"]),
        requeue=raw["Requeue"] == "1",
        nodes=parse_nodes(raw["Nodes"], reading),
        batch_host=_value(raw.get("BatchHost", "")),
        num_nodes=int(re.match(r"\d+", raw["NumNodes"]).group()),  # type: ignore[union-attr]
        excluded=excluded,
        exit_code=exit_pair[0] if state.ended else None,
        exit_signal=exit_pair[1] if state.ended else None,
        name=raw["Name"],
        comment=_value(raw["Comment"].strip()),
        partition=raw["Partition"],
        user=raw["User"],
        command=_value(raw.get("Command", "").strip()),
    )


def _value(text: str) -> str:
    return "" if text in _EMPTY else text


def parse_squeue(text: str) -> list[Job]:
    """Parse `squeue -h -O SQUEUE_FORMAT`. `Job.excluded` stays empty: squeue has no column for it."""
    jobs = []
    text = re.sub(r"\A\s*CLUSTER: \S*\n", "", text)  # with --clusters, some releases print this even without headers
    for record in text.split(RECORD + "\n"):
        if not record:
            continue
        values = record.split(FIELD)
        try:
            raw = dict(zip(_COLUMNS, values, strict=True))
            raw |= {"Id": raw["JobID"], "Restarts": raw["RestartCnt"], "Nodes": raw["NodeList"],
                    "Priority": raw["PriorityLong"], "Used": raw["TimeUsed"], "Start": raw["StartTime"],
                    "End": raw["EndTime"], "User": raw["UserName"]}  # fmt: skip
            jobs.append(make_job(raw, _squeue_exit(raw["exit_code"]), (), "squeue"))
        except (ValueError, KeyError, AttributeError) as error:
            raise unexpected_output(record, "squeue") from error
    return jobs


_TERMS = ("JobID", "Comment", "Partition", "Account", "QOS", "Reservation")
TERMS_FORMAT = ",".join(f"{column}:{FIELD}" for column in _TERMS[:-1]) + f",{_TERMS[-1]}:{RECORD}"


def parse_terms(text: str) -> list[tuple[int, str, dict[str, str]]]:
    """Parse `squeue -h -O TERMS_FORMAT`: job ID, comment, and the sbatch options that decide where a job may run."""
    records = [record.split(FIELD) for record in text.split(RECORD + "\n") if record]
    try:
        return [
            (int(job_id), comment.strip(), {k.lower(): v for k, v in zip(_TERMS[2:], rest, strict=True) if _value(v)})
            for job_id, comment, *rest in records
        ]
    except ValueError as error:
        raise unexpected_output(text, "squeue") from error


def parse_show_job(text: str) -> Job:
    """Parse `scontrol show job -o ID`: one job. Its paths may contain newlines, so the whole text is one record."""
    reading = "scontrol show job -o"
    found = _JOB.match(text)
    if not found:
        raise unexpected_output(text, reading)
    body = dict(re.findall(r"(\S+?)=(\S*)", found["body"]))
    comment, output = _COMMENT.match(found["tail"]), _OUTPUT.match(found["tail"].strip())
    command = _COMMAND.match(found["tail"])
    try:
        raw = {"Id": found["id"], "Name": found["name"], "User": found["user"], "State": body["JobState"],
               "Comment": comment[1] if comment else "", "Reason": body["Reason"], "Priority": body["Priority"],
               "Restarts": body["Restarts"], "Requeue": body["Requeue"], "Nodes": body.get("NodeList", ""),
               "BatchHost": body.get("BatchHost", ""), "NumNodes": body["NumNodes"], "Used": body["RunTime"],
               "Start": body["StartTime"], "End": body["EndTime"],
               "Partition": body["Partition"], "Command": command[1] if command else ""}  # fmt: skip
        excluded = parse_nodes(body.get("ExcNodeList", ""), reading)
        cpus = body.get("CPUs/Task", "")
        job = make_job(raw, exit_pair(body["ExitCode"]), excluded, reading)
        return replace(
            job,
            cpus_per_task=int(cpus) if cpus.isdecimal() else 1,
            output=_value(output[1].strip()) if output else "",
            start=expected_start(job, body["StartTime"]),
            requirements=_requirements(body, found["tail"]),
            suspended_at=_value(body.get("SuspendTime", "")),
            part_of=part[1].lower() if (part := _PART.search(text, 0, found.start("name"))) else "",
        )
    except (ValueError, KeyError, AttributeError) as error:
        raise unexpected_output(text, reading) from error


def _requirements(body: Mapping[str, str], tail: str) -> tuple[tuple[str, str], ...]:
    switches = _SWITCHES.match(tail)
    found = [(flag, _value(body.get(key, ""))) for flag, key in _REQUIREMENTS]
    return tuple((flag, value) for flag, value in (*found, ("switches", switches[1] if switches else "")) if value)


def expected_start(job: Job, printed: str) -> str:
    """Return when a pending job is expected to start. For a held job Slurm prints when it could have started."""
    waits = job.state is JobState.PENDING and not job.held and printed != "Unknown"
    return printed if waits else ""


def parse_show_nodes(text: str) -> list[Node]:
    """Parse `scontrol show node -o`: one node per line. `IDLE+DRAIN*` is idle, draining and not responding."""
    return [_parse_node(line) for line in text.splitlines() if line.strip()]


def _parse_node(line: str) -> Node:
    fixed, key, text = (*_NODE_TEXT.split(line, 1), "", "")[:3]
    # The operating system's name is free text, but contains none of these keys.
    body = dict(re.findall(r"(?:^| )(NodeName|State|NodeAddr|Port|Gres|CPUTot|RealMemory|Partitions)=(\S+)", fixed))
    if not {"NodeName", "State"} <= body.keys():
        raise unexpected_output(line, "scontrol show node -o")
    if key != "Reason":
        return make_node(body)
    by = _NODE_REASON.match(text)
    if by is None:
        return make_node(body, _value(_NODE_TEXT.split(text, 1)[0].strip()))
    return make_node(body, _value(by[1]), by[2], by[3])


def make_node(body: Mapping[str, str], reason: str = "", reason_user: str = "", reason_at: str = "") -> Node:
    """Build a node from Slurm's fields: NodeName, State with flags and marks, optionally NodeAddr and Port."""
    base, *flags = body["State"].upper().split("+")
    marks = "".join(mark for part in (base, *flags) for mark in part[len(part.rstrip("*~#!%$@^-")) :])
    flags = [flag.rstrip("*~#!%$@^-") for flag in flags]
    return Node(
        name=body["NodeName"],
        state={"ALLOC": "allocated"}.get(base.rstrip("*~#!%$@^-"), base.rstrip("*~#!%$@^-").lower()),
        drain=bool({"DRAIN", "DRAINED", "DRAINING"} & {base.rstrip("*~#!%$@^-"), *flags}),
        not_responding="*" in marks or "NOT_RESPONDING" in flags,
        reason=reason,
        reason_user=reason_user,
        reason_at=reason_at,
        address=body.get("NodeAddr", ""),
        port=int(body.get("Port", "6818")) if body.get("Port", "6818").isdigit() else 6818,
        gpus=sum(int(n) for n in _GPUS.findall(body["Gres"])) if "Gres" in body else None,
        cpus=_more_than_one(body.get("CPUTot", "")),
        memory=_more_than_one(body.get("RealMemory", "")),
        partitions=tuple(filter(None, body.get("Partitions", "").split(","))),
    )


def parse_show_partitions(text: str) -> dict[str, tuple[str, ...]]:
    """Parse `scontrol show partition -o`: the nodes of each partition."""
    found = (dict(re.findall(r"(?:^| )(PartitionName|Nodes)=(\S+)", line)) for line in text.splitlines())
    return {one["PartitionName"]: tuple(parse_nodes(one.get("Nodes", ""))) for one in found if "PartitionName" in one}


def _more_than_one(text: str) -> int | None:
    """Return a node's count; None if it is 1, Slurm's default for a node whose line does not say."""
    return int(text) if text.isdecimal() and int(text) > 1 else None


def parse_submitted(text: str) -> int:
    """Parse `sbatch --parsable`: `ID` or `ID;cluster` on the last line (plugins may print before it).

    Also accepts sbatch's usual message, since some sites' wrappers drop the option.
    """
    lines = text.strip().splitlines()
    form = r"(?:Submitted batch job )?(\d+)(?:;.*| on cluster \S+)?"
    found = re.fullmatch(form, lines[-1].strip()) if lines else None
    if not found:
        raise unexpected_output(text, "sbatch --parsable")
    return int(found[1])


def switches_of(text: str, expand: Callable[[str], Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Parse `scontrol show topology`, a tree or blocks: what is above each node, the widest first.

    Args:
        expand: returns the names behind a list such as `n[1-4]`. Raises ValueError if there are none.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for line in text.splitlines():
        named = _ONE_SWITCH.match(line.strip()) or _BLOCK.match(line.strip())
        if named is not None:
            nodes = tuple(expand(named[2]))
            for node in nodes:
                found.setdefault(node, []).append((-len(nodes), named[1]))
    return {node: tuple(name for _, name in sorted(above)) for node, above in found.items()}

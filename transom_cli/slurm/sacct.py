"""What `sacct` prints, as the starts that it tells of. Pure; the differences between releases stand in the samples."""

from __future__ import annotations

import re
from dataclasses import replace

from transom_cli.slurm.parse import exit_pair, nonsense, parse_nodes, parse_state
from transom_cli.slurm.port import JobState, SlurmUnknown, Start
from transom_cli.slurm.tags import run_tag

SACCT_FORMAT = "JobIDRaw,State,ExitCode,Start,End,NodeList,SubmitLine"
SACCT_TIMES = {"SLURM_TIME_FORMAT": "%s"}  # seconds since the epoch: a local time is told twice in a night of autumn

_TAGGED = run_tag("")
_SACCT = re.compile(r"^(\d+)\|([^|\n]+)\|(\d+:\d+)\|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|", re.MULTILINE)


def parse_sacct(text: str, *job_ids: int) -> list[Start]:
    """`sacct -D -X -P -n -o SACCT_FORMAT -j IDS` with SACCT_TIMES, as `Slurm.history` tells it.

    Accounting opens a new record at each change of a job's size (RESIZING); the records of one start are told as
    one, with all nodes that it had (`slurm.overwritten` tells what 22.05 makes of them). Silence is SlurmUnknown:
    accounting hears of a job late, so an empty answer says nothing about it.
    """
    found: list[Start] = []
    shrunk: dict[int, Start] = {}  # by job, a start that goes on in the next record
    records = list(_SACCT.finditer(text))
    if text.strip() and (not records or records[0].start() > 0):
        raise nonsense(text, "sacct")
    ends = (*(record.start() for record in records[1:]), len(text))
    for record, end in zip(records, ends, strict=False):
        start, resizing = _parse_start(record, text[record.end() : end])
        before = shrunk.pop(start.job_id, None)
        if before is not None and start.began is not None:
            start = _one_start(before, start)
        elif before is not None:  # 22.05, while the job waits: the record of its last start is the waiting one's
            found.append(before)
        if resizing:
            shrunk[start.job_id] = replace(start, state=JobState.UNKNOWN)
        else:
            found.append(start)
    found = [one for one in found if one.job_id in job_ids]  # an array's first id stands for all of its elements
    if not found:
        jobs = ",".join(map(str, job_ids))
        raise SlurmUnknown(f"Accounting has no job {jobs} (yet)", "sacct printed nothing", f"sacct -D -j {jobs}")
    return found


def _parse_start(record: re.Match[str], submitted: str) -> tuple[Start, bool]:
    """And whether the next record of this job tells more of it. submitted: sbatch's line, a user's own text in it."""
    job, state, exit_text, begin, end, node_list = record.groups()
    base, _ = parse_state(state)
    code, signal = exit_pair(exit_text) if base.ended else (None, None)
    began, ended = _moment(begin), _moment(end)
    nodes = parse_nodes(node_list, "sacct") if began is not None else ()  # 22.05 shows a waiting job's former ones
    by = re.fullmatch(r"CANCELLED by (\d+)", state)
    told = Start(int(job), base, code, signal, nodes, began if nodes else None, ended, int(by[1]) if by else None)
    comments = re.findall(r"--comment=(\S+)", submitted)  # the script's own arguments stand behind sbatch's
    comment = next((one for one in comments if one.startswith(_TAGGED)), comments[0] if comments else "")
    return replace(told, comment=comment), state == "RESIZING"


def _one_start(shrunk: Start, rest: Start) -> Start:
    nodes = tuple(dict.fromkeys((*shrunk.nodes, *rest.nodes)))
    at = shrunk.ended or rest.began or 0.0  # 24.11 has the new record begin where the old one did
    return replace(rest, nodes=nodes, began=shrunk.began, resized=(*shrunk.resized, at))


def _moment(text: str) -> float | None:
    return float(text) if text.isdecimal() and text != "0" else None

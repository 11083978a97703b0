"""Record what the ranks of a launch do on this node, before the launch is killed.

For every rank n on this node, the incident's folder gets:

    rank-<n>.proc.json   facts from /proc: state, system call, threads, memory, descriptors, cgroup
    rank-<n>.stack.txt   py-spy's dump, or one line that says why there is none; then those of the rank's DataLoader
                         workers, if it waits for them
    rank-<n>.flight/     PyTorch's flight recorder dumps, copied as they are and never unpickled
    ras-<node>.txt       what NCCL's RAS says about all communicators of the job

torchrun itself, which is not a rank, is `launcher-<node>`. /proc is read first, because py-spy pauses the process.
"""

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from transom_cli.core import stacks
from transom_cli.files import make_private, publish_text
from transom_cli.heartbeat import paths
from transom_cli.supervise.agent import flight_recorder, nccl_ras, procfs, pyspy
from transom_cli.supervise.agent.processes import CHILD, RANK, Member, find

PARALLEL = 8
WORKERS = 4  # of a DataLoader, whose stacks are taken
_WAITS = "torch/utils/data/dataloader.py"  # in the stack of a rank that waits for its workers
_LAST = 0.5  # seconds kept back for writing down what py-spy found

Entry = dict[str, Any]


def take(
    attempt_dir: Path, launch: int, node: str, folder: Path, timeout: float, *, beats_dir: str | None = None
) -> list[Entry]:
    """Record evidence of every rank of the launch on this node, `PARALLEL` at a time, in at most `timeout` seconds.

    Flight recorder dumps are copied at the same time as the stacks are taken: afterwards there might be no time left.

    Args:
        folder: The incident's (`AttemptDir.evidence`). It is created with mode 0700; the agents of all nodes share it.
        beats_dir: The node's heartbeat directory; by default, the one that the ranks' wrappers use.

    Returns:
        One entry per rank, sorted by rank: rank (None: torchrun), pid (0: the process is gone and left a dump),
        state (proc(5); "X": gone), stack ("native", "python" or "none"), note (what failed, or ""; "timed out" if
        the rank was not finished in time), top (the innermost frames of the main thread). If even the process table
        cannot be read in time, the only entry says so.

    Never raises OSError: if the folder cannot be written, the entries are returned without files. A thread that hangs
    in a dead file system is abandoned.
    """
    deadline = time.monotonic() + timeout
    pool = ThreadPoolExecutor(PARALLEL + 2, thread_name_prefix="evidence")
    try:
        looking = pool.submit(_prepare, attempt_dir, launch, node, folder)
        wait([looking], timeout=timeout)
        if not looking.done():
            return [_entry(None, 0, "?", "timed out while reading the process table")]
        members, workers, trouble = looking.result()
        until = deadline - min(_LAST, timeout / 4)
        beats = beats_dir or _beats_dir(attempt_dir, node)
        copying = pool.submit(flight_recorder.copy_all, beats, launch, folder, until) if beats and not trouble else None
        jobs = [pool.submit(_one, m, workers.get(m.pid, []), folder, _stem(m, node), trouble, until) for m in members]
        asking = pool.submit(_ask_nccl, members, folder / f"ras-{node}.txt", until) if not trouble else None
        everything: list[Future[Any]] = [*jobs, *(one for one in (copying, asking) if one)]
        wait(everything, timeout=max(0.0, deadline - time.monotonic()))
        entries = [j.result() if j.done() else _late(m) for m, j in zip(members, jobs, strict=True)]
        if copying is not None:
            _add_flights(entries, copying)
        return sorted(entries, key=lambda e: (e["rank"] is None, e["rank"] or 0))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def choose(members: list[Member]) -> list[Member]:
    """Choose a process per rank: the one that sends heartbeats, else the innermost Python, else the wrapper's child."""
    best: dict[int | None, tuple[tuple[bool, bool, int], Member]] = {}
    for at, member in enumerate(m for m in members if m.kind == RANK):  # parents come before children
        worth = (member.beats, member.python, at if member.python else -at)
        if member.rank not in best or worth > best[member.rank][0]:
            best[member.rank] = worth, member
    return [member for _, member in best.values()]


def _prepare(
    attempt_dir: Path, launch: int, node: str, folder: Path
) -> tuple[list[Member], dict[int, list[Member]], str]:
    """Return the ranks, their children in Python by the rank's PID, and why the folder cannot be used, or ""."""
    found = find(attempt_dir, launch, node)
    members, workers = choose(found), dict[int, list[Member]]()
    for one in found:
        if one.kind == CHILD and one.python:
            workers.setdefault(one.process.ppid, []).append(one)
    try:
        make_private(folder)
        folder.chmod(0o700)
    except OSError as error:
        return members, workers, f"cannot write to {folder}: {error.strerror}"
    return members, workers, ""


def _one(member: Member, workers: list[Member], folder: Path, stem: str, trouble: str, deadline: float) -> Entry:
    facts = procfs.facts(member.process)
    state = str(facts["state"])
    notes = [trouble, _write(folder / f"{stem}.proc.json", _json(member, facts), trouble)]
    dumped = pyspy.dump(member.process, deadline)
    stack, text = folder / f"{stem}.stack.txt", dumped.text or f"{dumped.note}\n"
    notes += [dumped.note, _write(stack, text, trouble)]
    if workers and _WAITS in dumped.text:
        half = (time.monotonic() + deadline) / 2  # slow ones must not cost what is known of the rank
        below = [found for one in workers[:WORKERS] if (found := pyspy.dump(one.process, half).text)]
        notes.append(_write(stack, "\n".join((text, *below)), trouble) if below else "")
    entry = _entry(member.rank, member.pid, state, "; ".join(dict.fromkeys(n for n in notes if n)))
    return entry | {"stack": dumped.kind, "top": stacks.top(stacks.parse(dumped.text).main)}


def _json(member: Member, facts: dict[str, object]) -> str:
    head = {"schema": 1, "rank": member.rank, "pid": member.pid, "start": member.process.start, "wall": time.time()}
    return json.dumps(head | facts, indent=1) + "\n"


def _ask_nccl(members: list[Member], path: Path, deadline: float) -> None:
    """Save NCCL's own view of the job. py-spy pauses processes meanwhile, but not for long."""
    answer = nccl_ras.ask([(m.rank, m.pid) for m in members if m.rank is not None], deadline)
    if answer:
        _write(path, answer.decode(errors="replace"), "")


def _write(path: Path, text: str, trouble: str) -> str:
    """Return why the file was not written, or "". Do nothing if the folder cannot be used."""
    if trouble:
        return ""
    try:
        publish_text(path, text)
    except OSError as error:
        return f"cannot write {path.name}: {error.strerror}"
    return ""


def _add_flights(entries: list[Entry], copying: Future[dict[int, str]]) -> None:
    """Add the results of copying dumps. A rank may be gone, so that its dump is all that remains of it."""
    if not copying.done():
        for entry in entries:
            _note(entry, "flight recorder dumps: timed out")
        return
    by_rank = {entry["rank"]: entry for entry in entries}
    for rank, what in copying.result().items():
        if rank not in by_rank:
            entries.append(_entry(rank, 0, "X", what))
        else:
            _note(by_rank[rank], what)


def _note(entry: Entry, what: str) -> None:
    entry["note"] = "; ".join(x for x in (entry["note"], what) if x)


def _beats_dir(attempt_dir: Path, node: str) -> str:
    try:
        return paths.beats_dir(str(attempt_dir), node)
    except OSError:
        return ""


def _stem(member: Member, node: str) -> str:
    return f"launcher-{node}" if member.rank is None else f"rank-{member.rank}"


def _late(member: Member) -> Entry:
    return _entry(member.rank, member.pid, member.process.state, "timed out")


def _entry(rank: int | None, pid: int, state: str, note: str) -> Entry:
    return {"rank": rank, "pid": pid, "state": state, "stack": pyspy.NONE, "note": note, "top": ""}

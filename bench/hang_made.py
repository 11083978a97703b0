"""Compose hangs: a small simulation of ranks that call collectives, and the dumps that they would leave.

A training of tensor- and data-parallel groups runs one program of collectives. One rank (or several of a node) gets
stuck, skips a call, or calls something else; the others continue until they wait. The simulation computes how far each
gets: with blocking calls (gloo), or with a GPU queue that the processor fills until it waits for the GPU (NCCL). The
dumps use the documented formats of py-spy, faulthandler and torch's flight recorder; tests/diagnose has real ones.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STUCK = ("data loader", "checkpoint write", "user lock", "CUDA sync")
CALLS = ("missing collective", "mismatched collective")
NOBODY = ("communication", "all in the loader")
PER_NODE = 8


@dataclass(frozen=True)
class Call:
    group: str
    op: str
    shape: tuple[int, ...]
    sync: bool = False  # the processor waits for its GPU afterwards


@dataclass
class RankMade:
    """One rank of the simulation: its program, how much of it was called and how much ended, and what kept it."""

    program: list[Call]
    stop: int = 1 << 30  # it never makes the call of this number: it is stuck before
    called: int = 0
    over: int = 0
    ids: list[tuple[str, int]] = field(default_factory=list)  # of each call: group, number in it


@dataclass(frozen=True)
class Hang:
    """culprits: () where it is nobody's. blocking: calls block, as gloo's do."""

    fault: str
    ranks: list[RankMade]
    groups: dict[str, tuple[int, ...]]
    culprits: tuple[int, ...]
    blocking: bool
    rng: random.Random
    tool: str  # native: py-spy with native frames, where it could; python: without; faulthandler


def hang(fault: str, world: int, seed: int) -> Hang:
    """The same seed gives the same hang. If an omitted call is not missed, another one is omitted."""
    tries = (_hang(fault, world, random.Random(f"{fault}/{world}/{seed}/{again}")) for again in range(100))
    return next(made for made in tries if made.culprits == () or any(rank.over < rank.called for rank in made.ranks))


def _hang(fault: str, world: int, rng: random.Random) -> Hang:
    groups = _groups(world, rng.choice((2, 4, PER_NODE)))
    ranks = [RankMade(list(_program(rank, groups))) for rank in range(world)]
    length = len(ranks[0].program)
    culprits: tuple[int, ...] = (rng.randrange(world),)
    if fault in STUCK and rng.random() < 0.3:  # several of one node
        first = culprits[0] // PER_NODE * PER_NODE
        culprits = tuple(sorted(rng.sample(range(first, min(first + PER_NODE, world)), rng.randint(2, 3))))
    at = rng.randrange(length // 3, 2 * length // 3)
    if fault in NOBODY:
        culprits = ()
    if fault == "all in the loader":
        for rank in ranks:
            rank.stop = at
    for culprit in culprits:
        program = ranks[culprit].program
        if fault in STUCK:
            ranks[culprit].stop = at
        elif fault == "missing collective":
            del program[at]
        else:
            old = program[at]
            program[at] = rng.choice(
                (Call(old.group, old.op, (*old.shape, 3)), Call(old.group, "broadcast", old.shape, old.sync))
            )
    made = Hang(
        fault,
        ranks,
        groups,
        culprits,
        rng.random() < 0.4,
        rng,
        rng.choice(("native", "native", "python", "faulthandler")),
    )
    _run(made, at if fault == "communication" else None)
    return made


def _groups(world: int, size: int) -> dict[str, tuple[int, ...]]:
    groups = {"0": tuple(range(world))}
    for first in range(0, world, size):
        groups[f"tp{first}"] = tuple(range(first, first + size))
    for lane in range(size):
        groups[f"dp{lane}"] = tuple(range(lane, world, size))
    return groups


def _program(rank: int, groups: dict[str, tuple[int, ...]]) -> Iterator[Call]:
    mine = {name[:2]: name for name, members in groups.items() if rank in members}
    for step in range(3):
        for layer in (64, 128):
            yield Call(mine["tp"], "all_reduce", (layer, 8))
        yield Call(mine["dp"], "reduce_scatter", (4096,))
        yield Call(mine["dp"], "all_gather", (512,))
        yield Call("0", "all_reduce", (1,), sync=True)
        if step == 1:
            yield Call("0", "barrier", (), sync=True)


def _run(made: Hang, broken: int | None) -> None:
    """Until nothing moves any more. broken: from this call on, the collectives of one group never end."""
    dead = made.ranks[made.rng.randrange(len(made.ranks))].program[broken].group if broken is not None else ""
    arrived: dict[tuple[str, int], dict[int, Call]] = {}
    numbers: list[dict[str, int]] = [{} for _ in made.ranks]
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(made.ranks):
            while rank.called < min(len(rank.program), rank.stop) and _free(made, rank):
                call = rank.program[rank.called]
                seq = numbers[number][call.group] = numbers[number].get(call.group, 0) + 1
                rank.ids.append((call.group, seq))
                arrived.setdefault((call.group, seq), {})[number] = call
                rank.called += 1
                moved = True
        for number, rank in enumerate(made.ranks):
            while rank.over < rank.called and _ends(made, number, rank, arrived, dead, broken):
                rank.over += 1
                moved = True


def _free(made: Hang, rank: RankMade) -> bool:
    if rank.called == rank.over:
        return True
    return not made.blocking and not rank.program[rank.called - 1].sync


def _ends(
    made: Hang,
    number: int,
    rank: RankMade,
    arrived: dict[tuple[str, int], dict[int, Call]],
    dead: str,
    broken: int | None,
) -> bool:
    """All have called the same; what a rank's GPU does before is over by then or ends with it."""
    group, seq = rank.ids[rank.over]
    calls = arrived[group, seq]
    if group == dead and broken is not None and rank.over >= broken:
        return False
    if len(calls) < len(made.groups[group]) or len({(c.op, c.shape) for c in calls.values()}) > 1:
        return False
    return all(
        made.ranks[other].over >= made.ranks[other].ids.index((group, seq)) for other in calls if other != number
    )


# ---- dumps -----------------------------------------------------------------------------------------------------------

HELPERS = (
    ("pin_memory", ["select (selectors.py:415)", "_pin_memory_loop (torch/utils/data/_utils/pin_memory.py:51)"]),
    ("Thread-2", ["wait (threading.py:331)", "run (tensorboard/summary/writer/event_file_writer.py:244)"]),
    ("", ["epoll_wait (libc.so.6)", "0x7f3c1e (libuv.so.1)"]),
)
MAIN = ["train (train.py:{n})", "main (train.py:310)", "<module> (train.py:402)"]
TORCH = "torch/distributed/distributed_c10d.py"
PLACES: dict[str, tuple[list[str], ...]] = {
    "data loader": (
        ["wait (threading.py:331)", "get (queue.py:180)", "_try_get_data (torch/utils/data/dataloader.py:1243)",
         "__next__ (torch/utils/data/dataloader.py:708)"],
        ["read (libc.so.6)", "_read (PIL/ImageFile.py:210)", "__getitem__ (dataset.py:41)",
         "fetch (torch/utils/data/_utils/fetch.py:52)", "__next__ (torch/utils/data/dataloader.py:708)"],
        ["get_batch (data.py:77)"],
    ),
    "checkpoint write": (
        ["write (libc.so.6)", "_write_item (torch/distributed/checkpoint/filesystem.py:300)",
         "save_checkpoint (train.py:88)"],
        ["__exit__ (torch/serialization.py:780)", "save (torch/serialization.py:944)", "save (model.py:19)"],
        ["fsync (libc.so.6)", "save_checkpoint (io.py:54)"],
    ),
    "user lock": (
        ["PyThread_acquire_lock_timed (libpython3.11.so.1.0)", "update_metrics (metrics.py:12)"],
        ["acquire (filelock/_api.py:207)", "tokenizer (tok.py:8)"],
        ["_wait_for_tstate_lock (threading.py:1116)", "join (threading.py:1096)", "flush (logger.py:30)"],
    ),
    "CUDA sync": (
        ["cuStreamSynchronize (libcuda.so.535.104)", "synchronize (torch/cuda/__init__.py:890)"],
        ["synchronize (torch/cuda/streams.py:227)", "timed (profile.py:14)"],
    ),
    "own code": (["evaluate (eval.py:{n})"],),
}  # fmt: skip


def stack(made: Hang, number: int) -> str:
    """As py-spy or faulthandler would write it: at a random depth of the same call, with other threads around."""
    rng, rank = made.rng, made.ranks[number]
    native = made.tool == "native" and rng.random() < 0.9
    if made.fault == "all in the loader" or (
        number in made.culprits and made.fault in STUCK and rank.called == rank.stop
    ):
        fault = "data loader" if made.fault == "all in the loader" else made.fault
        calls = rng.choice(PLACES[fault]) if made.fault in STUCK else PLACES[fault][0]
    elif rank.over < rank.called:
        last = rank.program[rank.called - 1]
        if made.blocking:
            calls = [f"{last.op} ({TORCH}:{rng.randint(2000, 4000)})", "wrapper (torch/distributed/c10d_logger.py:83)"]
        else:
            calls = ["cuStreamSynchronize (libcuda.so.535.104)", "_local_scalar_dense_cuda (libtorch_cuda.so)"]
            calls = [*calls[rng.randint(0, 1) :], "clip (train.py:150)"]
    else:
        calls = PLACES["own code"][0]
    frames = [line.replace("{n}", str(rng.randint(100, 140))) for line in [*calls, *MAIN]]
    frames = [line for line in frames if native or ".so" not in line]
    return _faulthandler(frames, rng) if made.tool == "faulthandler" else _pyspy(frames, rng)


def _pyspy(frames: Sequence[str], rng: random.Random) -> str:
    lines = [f"Process {rng.randint(1000, 99999)}: python train.py", "Python v3.11.7 (/usr/bin/python3.11)", ""]
    threads = [("MainThread", list(frames)), *rng.sample(HELPERS, rng.randint(0, 3))]
    for name, calls in threads:
        lines.append(f"Thread {rng.randint(1000, 99999)} (idle){f': {chr(34)}{name}{chr(34)}' if name else ''}")
        lines += [f"    {call}" for call in calls]
    return "\n".join(lines) + "\n"


def _faulthandler(frames: Sequence[str], rng: random.Random) -> str:
    def lines(calls: Sequence[str]) -> Iterator[str]:
        for call in calls:
            function, _, place = call[:-1].partition(" (")
            file, _, line = place.partition(":")
            if line:
                packaged = file.startswith(("torch/", "PIL/", "filelock/", "tensorboard/"))
                where = "/opt/venv/lib/python3.11/site-packages/" if packaged else "/home/u/job/"
                standard = file in ("threading.py", "queue.py", "selectors.py")
                yield f'  File "{"/usr/lib/python3.11/" if standard else where}{file}", line {line} in {function}'

    helper = ["select (selectors.py:415)", "run (threading.py:982)", "_bootstrap (threading.py:1002)"]
    first = f"Thread 0x{rng.getrandbits(47):016x} (most recent call first):"
    main = f"Current thread 0x{rng.getrandbits(47):016x} (most recent call first):"
    return "\n".join([first, *lines(helper), "", main, *lines(frames)]) + "\n"


def flight(made: Hang, number: int) -> bytes:
    """torch's dump as NCCL's watchdog writes it; the ring has lost what came before."""
    rank = made.ranks[number]
    base, timed = 1000 + 10 * len(made.ranks), made.rng.random() < 0.5
    begun = 1_700_000_000_000_000_000 + number * 1_000_000
    entries = []
    for at, (group, seq) in enumerate(rank.ids):
        call, done = rank.program[at], at < rank.over
        state = "completed" if done else "started" if timed and at == rank.over else "scheduled"
        made_at = begun + at * 10_000_000
        entries.append(
            entry(group, base + seq, call.op, call.shape, state, record=base + at, created=made_at, timed=timed)
        )
    groups = {name: members for name, members in made.groups.items() if number in members}
    return dump(entries, groups)


def entry(
    group: str,
    seq: int,
    op: str,
    shape: Sequence[int] = (4,),
    state: str = "completed",
    *,
    record: int = 0,
    created: int = 1_700_000_000_000_000_000,
    timed: bool = False,
    out: Sequence[int] | None = None,
    dtype: str = "Float",
    p2p: bool = False,
) -> dict[str, object]:
    """One call, as version 2.10 has it. out: the output's shape, default the input's."""
    done = state == "completed"
    return {
        "record_id": record, "pg_id": 0, "process_group": (group, f"{group}_desc"), "collective_seq_id": seq,
        "p2p_seq_id": int(p2p), "op_id": record, "profiling_name": f"nccl:{op}", "time_created_ns": created,
        "input_sizes": [list(shape)], "output_sizes": [list(shape if out is None else out)], "input_dtypes": [dtype],
        "output_dtypes": [dtype], "state": state, "retired": done, "is_p2p": p2p,
        "time_discovered_started_ns": created + 1000 if timed and state != "scheduled" else None,
        "time_discovered_completed_ns": created + 2000 if done else None, "timeout_ms": 600000,
        "frames": [{"name": "train", "filename": "/home/u/job/train.py", "line": 120}],
    }  # fmt: skip


def dump(entries: Sequence[object], groups: dict[str, tuple[int, ...]], version: str = "2.10") -> bytes:
    config = {
        name: {"name": name, "desc": f"{name}_desc", "ranks": str(list(members))} for name, members in groups.items()
    }
    values = {"version": version, "pg_config": config, "pg_status": {}, "entries": list(entries)}
    return pickle.dumps(values, protocol=2)


def write(made: Hang, folder: Path, *, lost: float = 0.0) -> None:
    """As the agents keep it. lost: the share of dumps that are missing."""
    for number in range(len(made.ranks)):
        if made.rng.random() >= lost:
            (folder / f"rank-{number}.stack.txt").write_text(stack(made, number))
        if made.rng.random() >= lost:
            (folder / f"rank-{number}.flight").mkdir()
            (folder / f"rank-{number}.flight" / f"flight-0-{number}").write_bytes(flight(made, number))

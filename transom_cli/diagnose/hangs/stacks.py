"""Find out from stacks where each rank's main thread is, and which ranks are at another place than the others. Pure.

A stack is read from its innermost frame outwards. The first frame of a known place decides: a collective, the data
loader, a checkpoint. A lock, a sleep or a file decides only if no outer frame says more, since a data loader that waits
for its workers waits in a queue too. Library frames below the training's own code are folded, so that two ranks sampled
at different depths of one call are at one place. Line numbers and addresses are ignored.

The places are then clustered, as in ByteRobust (SOSP'25): in a job that steps together, most ranks are where they wait
and a few are where the trouble is. The kind of place counts before the number of ranks: those in a collective wait for
those that are not.
"""

import enum
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from transom_cli.core.stacks import Frame, Thread, top
from transom_cli.diagnose.clue import Category, Clue, Culprit

RUNS_SHOWN = 8  # runs of consecutive ranks


def rank_names(ranks: Iterable[int]) -> str:
    """Return `rank 5` or `ranks 0-4, 6 and 7 more`: short for any number of ranks."""
    runs: list[list[int]] = []
    numbers = sorted(set(ranks))
    for rank in numbers:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [f"{a}" if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs[:RUNS_SHOWN]]
    left = sum(b - a + 1 for a, b in runs[RUNS_SHOWN:])
    return f"rank{'s' * (len(numbers) != 1)} {', '.join(parts)}{f' and {left} more' if left else ''}"


def ranks_do(ranks: Iterable[int], plural: str, singular: str) -> str:
    """Return `rank 5 waits` or `ranks 0-3 wait`."""
    several = len(set(ranks := tuple(ranks))) != 1
    return f"{rank_names(ranks)} {plural if several else singular}"


class Kind(str, enum.Enum):
    """What a main thread does. The value completes the sentence "the rank is in <value>"."""

    COLLECTIVE = "a collective"
    PEER = "a send or receive"
    STORE = "a rendezvous or store"
    DEVICE = "a wait for its GPU"
    BACKWARD = "the backward pass"
    LOADER = "the data loader"
    CHECKPOINT = "a checkpoint"
    COMPILE = "a compilation"
    IMPORT = "an import"
    STORAGE = "file input or output"
    LOCK = "a lock, thread or child process"
    SLEEP = "a sleep"
    OWN = "the training's own code"
    UNKNOWN = "an unknown place"


WAITING = frozenset({Kind.COLLECTIVE, Kind.PEER, Kind.STORE})
"""Places where a rank waits for other ranks."""
PERHAPS = frozenset({Kind.DEVICE, Kind.BACKWARD})
"""Places where a rank may wait for others, inside a kernel or a hook that no stack shows."""

_SAVES = r"(?:(?:save|write|load|restore)\w*_?(?:checkpoint|ckpt)|(?:checkpoint|ckpt)\w*_?(?:save|write|load|restore))"
# kind, function, file. The frame closest to the innermost one decides.
_TELLING = tuple(
    (kind, re.compile(function, re.IGNORECASE), re.compile(file))
    for kind, function, file in (
        (Kind.STORE, r"init_process_group|_store_based_barrier|new_\w*group\w*|.*rendezvous.*|monitored_barrier"
                     r"|split_group", r"torch/distributed/distributed_c10d\.py$"),
        (Kind.STORE, r".", r"torch/distributed/(?:rendezvous\.py$|elastic/)"),
        (Kind.STORE, r".*c10d::(?:\w+::)*\w*Store\b.*", r"."),
        (Kind.PEER, r"i?send\w*|i?recv\w*|batch_isend_irecv", r"torch/distributed/distributed_c10d\.py$"),
        (Kind.PEER, r".", r"(?:p2p_communication|pipe/p2p)\.py$"),
        (Kind.COLLECTIVE, r".", r"torch/distributed/(?:distributed_c10d|_functional_collectives|nn/functional"
                                r"|tensor/_collective_utils)\.py$"),
        (Kind.COLLECTIVE, r".*(?:c10d::|gloo::|ProcessGroup(?:NCCL|Gloo|MPI)|\bp?nccl[A-Z]\w+|\bMPI_[A-Z]\w+)", r"."),
        (Kind.COLLECTIVE, r".", r"lib(?:nccl|mpi)\b[^/]*\.so|(?:horovod|deepspeed)/(?:\w+/)?(?:mpi_ops|comm)\.py$"),
        (Kind.DEVICE, r"synchronize|wait_event|query|_sleep", r"torch/(?:cuda|xpu|npu)/(?:__init__|streams)\.py$"),
        (Kind.DEVICE, r"(?:cuda(?:Stream|Device|Event)\w*|cu(?:Stream|Event|Ctx|Memcpy|Launch)\w+|hip[A-Z]\w+"
                      r"|.*_local_scalar_dense_cuda.*|.*cuda::(?:\w+::)*\w*synchronize.*)", r"."),
        (Kind.DEVICE, r".", r"lib(?:cuda|cudart|amdhip64|hsa-runtime64)\b[^/]*\.so"),
        (Kind.LOADER, r".", r"(?:torch/utils/data|torchdata|nvidia/dali|webdataset|ffcv|grain|litdata)/"
                            r"|streaming/base/|datasets/(?:iterable|arrow)_dataset\.py$|dataloader\.py$|data_loader\.py$"),
        (Kind.LOADER, r"(?:get|next|load|fetch|read|wait_for)_?(?:next_)?(?:batch|sample|data)(?:es|s)?$", r"\.py$"),
        (Kind.CHECKPOINT, _SAVES, r"\.py$"),
        (Kind.CHECKPOINT, r".", r"torch/serialization\.py$|torch/distributed/checkpoint/|transom_cli/ckpt/|safetensors/"
                                r"|dist_checkpointing/|checkpoint_engine/|checkpointing\.py$"),
        (Kind.IMPORT, r"_find_and_load", r"importlib\._bootstrap"),
        (Kind.COMPILE, r".", r"torch/_inductor/|torch/_dynamo/convert_frame\.py$|triton/(?:compiler|runtime/jit)"),
    )
)  # fmt: skip
_WEAK = tuple(
    (kind, re.compile(function), re.compile(file))
    for kind, function, file in (
        (Kind.SLEEP, r"(?:clock_nanosleep|nanosleep|usleep|time_sleep|pysleep)\b", r"."),
        (Kind.LOCK, r"PyThread_acquire_lock\w*|(?:do_)?futex\w*|sem_\w*wait\w*|__new_sem_\w+"
                    r"|pthread_(?:mutex|cond|rwlock|join)\w*|wait4|waitpid|__lll_lock_wait", r"\.so|^[^/]*$"),
        (Kind.STORAGE, r"(?:__)?(?:p?(?:read|write)v?(?:64)?|open(?:at)?(?:64)?|f(?:data)?sync|rename(?:at)?"
                       r"|statx?|lstat|newfstatat|ftruncate|copy_file_range|sendfile)\b", r"\.so"),
        (Kind.LOCK, r".", r"(?:^|/)(?:threading|queue|subprocess|selectors|filelock/\w+)\.py$"
                          r"|(?:^|/)(?:multiprocessing|concurrent/futures|asyncio)/"),
        (Kind.STORAGE, r".", r"(?:^|/)(?:shutil|gzip|tarfile|zipfile|pathlib|tempfile)\.py$|(?:^|/)(?:fsspec|s3fs|boto3"
                             r"|botocore|h5py|pyarrow|PIL|zarr)/|numpy/lib/_?(?:npyio|format)"),
    )
)  # fmt: skip

_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD = re.compile(r"^.*/lib/python3\.\d+/|^<frozen ")
_LIBRARIES = re.compile(
    r"(?:torch|torchvision|torchdata|numpy|triton|horovod|multiprocessing|concurrent|asyncio|importlib)/"
    r"|(?:threading|queue|contextlib|selectors|subprocess|runpy|socket|ssl|functools|shutil|gzip|pathlib|tempfile"
    r"|_compression|pickle|codecs)\.py$|<"
)
_WRAPPERS = re.compile(
    r"torch/distributed/c10d_logger\.py$|torch/utils/_contextlib\.py$|functools\.py$|contextlib\.py$"
)


@dataclass(frozen=True)
class Place:
    """Where a thread is.

    Args:
        path: the training's own calls, outermost first, and the library function that the last one called, each as
            `function (file)`.
        words: the innermost calls with their lines, for display.
        native: whether the stack has frames of native libraries, which say more than the Python that called them.
        own_line: the innermost call of the training's own: `get_batch (data.py:13)`; "" if there is none.
    """

    kind: Kind
    path: tuple[str, ...]
    words: str
    native: bool = False
    own_line: str = ""


NOWHERE = Place(Kind.UNKNOWN, (), "")


def place(thread: Thread | None) -> Place:
    """Return where a thread is; `NOWHERE` for a thread without frames."""
    if thread is None or not thread.frames:
        return NOWHERE
    frames = tuple(replace(frame, file=short(frame.file)[0]) if frame.python else frame for frame in thread.frames)
    kind, telling = _kind(thread.frames)
    words = top(replace(thread, frames=_shown(frames, telling)))
    own = (one for one in frames if one.python and one.line and "/" not in one.file and not short(one.file)[1])
    native = any(not frame.python for frame in frames)
    return Place(kind, _path(thread.frames), words, native, own_line=str(next(own, "")))


def short(file: str) -> tuple[str, bool]:
    """Return a file's name for comparison, and whether it belongs to a library below the training's own code.

    For installed packages this is the path within them; for other files the name alone, since py-spy shortens paths and
    faulthandler does not.
    """
    inside = _PACKAGES.sub("", file)
    if inside != file:
        return inside, bool(_LIBRARIES.match(inside))
    standard = _STANDARD.sub("", file)
    if standard != file:
        return standard, True
    if _LIBRARIES.match(file) and not file.startswith("<string>"):  # py-spy's short form of installed packages
        return file, True
    return file.rpartition("/")[2], False


def _kind(frames: tuple[Frame, ...]) -> tuple[Kind, Frame | None]:
    """Return the kind, and the frame that decided it."""
    weak: tuple[Kind, Frame | None] = Kind.OWN, None
    for frame in frames:
        for kind, function, file in _TELLING:
            if function.match(_bare(frame)) and file.search(frame.file):
                return kind, frame
        if weak[1] is None:
            named = (k for k, function, file in _WEAK if function.match(_bare(frame)) and file.search(frame.file))
            weak = next(((kind, frame) for kind in named), weak)
    if weak[1] is None and any(frame.function.endswith("_engine_run_backward") for frame in frames):
        return Kind.BACKWARD, None
    return weak


def _shown(frames: tuple[Frame, ...], telling: Frame | None) -> tuple[Frame, ...]:
    """Return the Python calls, preceded by the deciding native one. A bare address says nothing."""
    if telling is None or telling.python:
        telling = frames[0] if not frames[0].python and not frames[0].function.startswith("0x") else None
    calls = tuple(frame for frame in frames if frame.python)
    return (telling, *calls) if telling is not None else calls or frames


def _bare(frame: Frame) -> str:
    """Strip the class: py-spy names methods `Class.method` from Python 3.11 on."""
    return frame.function.rpartition(".")[2] if frame.python else frame.function


def _path(frames: tuple[Frame, ...]) -> tuple[str, ...]:
    """Return the calls from the outermost to the first library function below the innermost call of the training."""
    python = [(_bare(frame), *short(frame.file)) for frame in reversed(frames) if frame.python]
    calls = [call for call in python if not _WRAPPERS.search(call[1])]
    last = max((at for at, (_, _, library) in enumerate(calls) if not library), default=len(calls))
    kept = [
        f"{name} ({file})" for at, (name, file, library) in enumerate(calls[: last + 2]) if not library or at > last
    ]
    kept = kept or [f"{name} ({file})" for name, file, _ in calls]
    return tuple(kept) or tuple(frame.function for frame in reversed(frames) if not frame.function.startswith("0x"))


CLUSTERS_SHOWN = 4
MANY = 2 / 3  # share of the ranks at one place that makes any place one where ranks wait
_SURE = {
    Kind.LOADER: (Category.DATA_LOADER, 0.85),
    Kind.CHECKPOINT: (Category.STORAGE_IO, 0.8),
    Kind.STORAGE: (Category.STORAGE_IO, 0.75),
}
"""The cause that a place suggests, with its confidence. For other places no category says more than "hang"."""


@dataclass(frozen=True)
class Stand:
    """One rank: where its main thread is. died: what its dump says about its death, or ""."""

    rank: int
    node: str
    place: Place
    died: str = ""


@dataclass(frozen=True)
class Cluster:
    """Ranks at one place. example: the innermost calls of one of them, with lines."""

    kind: Kind
    path: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    example: str

    def __str__(self) -> str:
        where = f"{self.kind.value}: {self.example}" if self.example else self.kind.value
        return f"{ranks_do(self.ranks, 'are', 'is')} in {where}"


@dataclass(frozen=True)
class OddRanks:
    """ranks: those at another place, () for none or undetermined. sure: 0 to 1. words: why."""

    ranks: tuple[int, ...]
    kind: Kind
    sure: float
    words: str


def cluster(stands: Iterable[Stand]) -> tuple[Cluster, ...]:
    """Cluster the ranks by place, the largest cluster first. A rank without a stack is at an unknown place.

    A stack without native frames joins those with the same Python calls and native frames: it does not show the library
    call that they show.
    """
    stands = tuple(stands)
    seen = Counter((s.place.path, s.place.kind) for s in stands if s.place.native)
    usual: dict[tuple[str, ...], Kind] = {}
    for (path, kind), _ in seen.most_common():
        usual.setdefault(path, kind)
    found: dict[tuple[Kind, tuple[str, ...]], list[Stand]] = {}
    for stand in stands:
        kind = stand.place.kind if stand.place.native else usual.get(stand.place.path, stand.place.kind)
        found.setdefault((kind, stand.place.path), []).append(stand)
    clusters = [
        Cluster(
            kind,
            path,
            tuple(sorted(s.rank for s in here)),
            tuple(sorted({s.node for s in here if s.node})),
            min(here, key=lambda s: s.rank).place.words,
        )
        for (kind, path), here in found.items()
    ]
    return tuple(sorted(clusters, key=lambda c: (-len(c.ranks), c.ranks)))


def find_odd_ranks(clusters: Sequence[Cluster]) -> OddRanks:
    """Return the ranks that the others wait for, as far as stacks show it. Ranks at an unknown place are ignored."""
    known = [c for c in clusters if c.kind is not Kind.UNKNOWN]
    total = sum(len(c.ranks) for c in known)
    if not known:
        return OddRanks((), Kind.UNKNOWN, 0.0, "no stack shows where its rank is")
    waits = [c for c in known if c.kind in WAITING]
    perhaps = [c for c in known if c.kind in PERHAPS]
    elsewhere = [c for c in known if c.kind not in WAITING and c.kind not in PERHAPS]
    if elsewhere and (waits or perhaps):
        sure = _SURE.get(elsewhere[0].kind, (None, 0.75))[1]
        return _few(elsewhere, total, sure if waits else sure - 0.1, "the others wait")
    if waits and perhaps:
        one = min(waits, perhaps, key=_size)
        sure = 0.6 if one is perhaps else 0.4
        return _few(one, total, sure, f"the others are in {(perhaps if one is waits else waits)[0].kind.value}")
    if any(c.kind is Kind.PEER for c in known):
        return OddRanks(
            (), known[0].kind, 0.3, "all wait for each other, in sends and receives about which stacks say no more"
        )
    if len(known) == 1:
        where = known[0].kind
        sure = 0.3 if where in WAITING | PERHAPS else 0.6 if where in _SURE or where is Kind.SLEEP else 0.45
        everyone = total > 1 and len(clusters) == 1
        who = "all ranks are" if everyone else ranks_do(known[0].ranks, "are", "is")
        return OddRanks((), where, sure, f"{who} in {where.value}")
    if all(c.kind in WAITING for c in known):
        if len(known) == 2 and len(known[1].ranks) == 1 and total > 2:  # it skipped a collective, or is a victim of one
            return _few(known[1:], total, 0.4, "the others wait in another collective")
        return OddRanks(
            (), known[0].kind, 0.3, "all wait, in several collectives: stacks do not show who was late to which"
        )
    if len(known[0].ranks) >= MANY * total:
        return _few(known[1:], total, 0.5, "the others are at another place")
    return OddRanks((), known[0].kind, 0.2, "no place has so many more ranks than the others that it shows who waits")


def _size(clusters: Sequence[Cluster]) -> int:
    return sum(len(c.ranks) for c in clusters)


def _few(suspects: Sequence[Cluster], total: int, sure: float, others: str) -> OddRanks:
    """Blame the suspects, unless they are the larger part: most of a job is not held up by a fault of one rank."""
    ranks = tuple(sorted(rank for c in suspects for rank in c.ranks))
    kinds = Counter({c.kind: len(c.ranks) for c in suspects})
    kind = kinds.most_common(1)[0][0]
    words = f"{ranks_do(ranks, 'are', 'is')} in {kind.value}, {others}"
    if len(kinds) > 1:
        words = f"{'; '.join(str(c) for c in suspects[:3])}; {others}"
    if 2 * len(ranks) > total:
        return OddRanks((), kind, min(sure, 0.5), f"{words}: too many for a fault of one rank")
    return OddRanks(ranks, kind, sure, words)


def describe_clusters(clusters: Sequence[Cluster]) -> tuple[str, ...]:
    """Describe the largest clusters, one sentence each."""
    return tuple(str(c) for c in clusters if c.kind is not Kind.UNKNOWN)[:CLUSTERS_SHOWN]


def category(kind: Kind) -> Category:
    """Return the cause that the place of a rank suggests, given that others wait for it."""
    return _SURE.get(kind, (Category.NCCL_HANG, 0.0))[0]


def clue(stands: Sequence[Stand]) -> Clue | None:
    """Return what the stacks show on their own. None without stacks."""
    clusters = cluster(stands)
    if not any(c.kind is not Kind.UNKNOWN for c in clusters):
        return None
    found = find_odd_ranks(clusters)
    nodes = {stand.rank: stand.node for stand in stands}
    evidence = [found.words, *describe_clusters(clusters)]
    evidence += [f"rank {stand.rank}: {stand.died}" for stand in stands if stand.died][:4]
    blind = [stand.rank for stand in stands if stand.place.kind is Kind.UNKNOWN]
    if blind:
        evidence.append(f"no stack of {rank_names(blind)}")
    return Clue(
        "stacks",
        category(found.kind) if found.ranks or found.kind in _SURE else Category.NCCL_HANG,
        found.sure,
        tuple(dict.fromkeys(evidence)),
        culprits=tuple(Culprit(nodes[rank], rank) for rank in found.ranks),
    )

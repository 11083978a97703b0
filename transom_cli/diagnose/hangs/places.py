"""Where a rank's main thread stands: in a collective, in the data loader, in a checkpoint, ... Pure.

A stack is read from its innermost frame outwards. The first frame of a telling place decides; a lock, a sleep or a
file decides only where no frame outside it tells more: a data loader's wait for its workers is a wait in a queue too.
Frames of the libraries below the training's own code are folded, so that two ranks which were sampled at different
depths of one call stand at one place. Line numbers and addresses count for nothing.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace

from transom_cli.core.stacks import Frame, Thread, top


class Kind(str, enum.Enum):
    """What a main thread does. The value is how a person reads it: "stands in <value>"."""

    COLLECTIVE = "a collective"
    PEER = "a send or receive"
    STORE = "a rendezvous or store"
    DEVICE = "a wait for its GPU"
    BACKWARD = "the backward pass"
    LOADER = "the data loader"
    CHECKPOINT = "a checkpoint"
    COMPILE = "a compilation"
    STORAGE = "file input or output"
    LOCK = "a lock, thread or child process"
    SLEEP = "a sleep"
    OWN = "the training's own code"
    UNKNOWN = "an unknown place"


WAITING = frozenset({Kind.COLLECTIVE, Kind.PEER, Kind.STORE})
"""Whoever stands there waits for other ranks."""
PERHAPS = frozenset({Kind.DEVICE, Kind.BACKWARD})
"""Others may be waited for there, inside a kernel or a hook that no stack shows."""

_SAVES = r"(?:(?:save|write|load|restore)\w*_?(?:checkpoint|ckpt)|(?:checkpoint|ckpt)\w*_?(?:save|write|load|restore))"
# kind, function, file. What holds decides where it stands nearest to the innermost frame.
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
    """kind; path: the training's own calls, outermost first, and the library function that the last of them called,
    each `function (file)`; words: the innermost calls with their lines, for a person; native: whether the stack has
    frames of libraries, which tell more than the Python that called them."""

    kind: Kind
    path: tuple[str, ...]
    words: str
    native: bool = False


NOWHERE = Place(Kind.UNKNOWN, (), "")


def place(thread: Thread | None) -> Place:
    """Where a thread stands. `NOWHERE` for one without frames."""
    if thread is None or not thread.frames:
        return NOWHERE
    frames = tuple(replace(frame, file=short(frame.file)[0]) if frame.python else frame for frame in thread.frames)
    kind, telling = _kind(thread.frames)
    words = top(replace(thread, frames=_shown(frames, telling)))
    return Place(kind, _path(thread.frames), words, native=any(not frame.python for frame in frames))


def short(file: str) -> tuple[str, bool]:
    """A file's name as it is compared, and whether it belongs to a library below the training's own code.

    Of installed packages their path within; of other files the name alone, since py-spy shortens paths and
    faulthandler does not.
    """
    inside = _PACKAGES.sub("", file)
    if inside != file:
        return inside, bool(_LIBRARIES.match(inside))
    standard = _STANDARD.sub("", file)
    if standard != file:
        return standard, True
    if _LIBRARIES.match(file) and not file.startswith("<string>"):  # as py-spy shortens what is installed
        return file, True
    return file.rpartition("/")[2], False


def _kind(frames: tuple[Frame, ...]) -> tuple[Kind, Frame | None]:
    """The kind, and the frame that told it."""
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
    """The Python calls, and before them the native one that tells; an address alone tells nothing."""
    if telling is None or telling.python:
        telling = frames[0] if not frames[0].python and not frames[0].function.startswith("0x") else None
    calls = tuple(frame for frame in frames if frame.python)
    return (telling, *calls) if telling is not None else calls or frames


def _bare(frame: Frame) -> str:
    """py-spy writes methods of 3.11 and later as `Class.method`."""
    return frame.function.rpartition(".")[2] if frame.python else frame.function


def _path(frames: tuple[Frame, ...]) -> tuple[str, ...]:
    """From the outermost call to the first library function below the innermost call of the training's own."""
    python = [(_bare(frame), *short(frame.file)) for frame in reversed(frames) if frame.python]
    calls = [call for call in python if not _WRAPPERS.search(call[1])]
    last = max((at for at, (_, _, library) in enumerate(calls) if not library), default=len(calls))
    kept = [
        f"{name} ({file})" for at, (name, file, library) in enumerate(calls[: last + 2]) if not library or at > last
    ]
    kept = kept or [f"{name} ({file})" for name, file, _ in calls]
    return tuple(kept) or tuple(frame.function for frame in reversed(frames) if not frame.function.startswith("0x"))

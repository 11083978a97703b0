"""Names inside a checkpoints directory. Pure.

    step-<n>                                a published checkpoint
    step-<n>.bad-<k>                        set aside: step-<n> was published again, and this one did not verify
    step-<n>.undone-<k>                     set aside: the training was rolled back to before it (restore.rollback)
    .tmp-step-<n>-<attempt>-<nonce>         being written by that attempt
    .trash-step-<n>-<attempt>-<nonce>       being deleted by that attempt
    .fence                                  the newest launch that was started over the directory (fence)
    .setbacks                               all rollbacks of the training (restore.rollback)
    .copies-of                              the main directory whose copies it has (directory)
    .saved                                  that something was saved, and where (saved_marker)
    .mirrors                                what is in object storage (tiers.record)
    .sealed                                 the newest sealed checkpoint in a framework's own format (seal)
    .memory                                 tells this directory from an earlier one of the same name (snapshot)

`<attempt>` is `<job id>.<restart>.<launch>` under transom, and otherwise `local-<host>-<pid>`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

MANIFEST = "manifest.json"
DCP_METADATA = ".metadata"
IMPORTED = "imported.json"
FENCE = ".fence"
MEMORY = ".memory"
SAVED = ".saved"
SEALED = ".sealed"
ROLLBACKS = ".setbacks"
COPIES_OF = ".copies-of"
SEAL = "transom-seal.json"  # in a sealed folder
SEALS = ".transom-seals"  # beside sealed files

_FRAMEWORKS = tuple(
    re.compile(form)
    for form in (
        r"checkpoint[-_](\d+)",  # Hugging Face, accelerate
        r"global_step_?(\d+)",  # DeepSpeed, verl
        r"iter_(\d+)",  # Megatron
        r"step[-_](\d+)",  # torchtitan, accelerate's examples
        r".*\bstep=(\d+).*\.ckpt",  # Lightning
    )
)

_DATA = re.compile(r"__(0|[1-9][0-9]*)_0\.distcp")
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")
_WORK = re.compile(r"\.(?:tmp|trash)-step-[0-9]+-(.+)-[0-9a-f]{8}")
_SLURM_ATTEMPT = re.compile(r"([0-9]+)\.([0-9]+)(?:\.([0-9]+))?")
_LOCAL_ATTEMPT = re.compile(r"local-(.+)-([0-9]+)")
_ATTEMPT = re.compile(r"[A-Za-z0-9_.-]{1,120}")


def step_name(step: int) -> str:
    return f"step-{step}"


def data_name(rank: int) -> str:
    """The name of a rank's data file, as DCP calls it."""
    return f"__{rank}_0.distcp"


def earlier_name(name: str, step: int) -> str:
    """The name that the data file `name` of the checkpoint of `step` has in later ones that still use it."""
    return name if _DATA.fullmatch(name) is None else f"{name.removesuffix('.distcp')}.{step_name(step)}.distcp"


def rank_of_data(name: str) -> int | None:
    """The rank whose data file this is; None if it is no data file."""
    found = _DATA.fullmatch(name)
    return int(found.group(1)) if found else None


def parse_step(name: str) -> int | None:
    """The step of a published checkpoint's directory name, else None."""
    found = _STEP.fullmatch(name)
    return int(found.group(1)) if found else None


def tmp_name(step: int, attempt: str, nonce: str) -> str:
    return f".tmp-step-{step}-{attempt}-{nonce}"


def trash_name(step: int, attempt: str, nonce: str) -> str:
    return f".trash-step-{step}-{attempt}-{nonce}"


def valid_attempt(name: str) -> bool:
    """Whether `name` may be part of a file's name."""
    return _ATTEMPT.fullmatch(name) is not None


def local_attempt(host: str, pid: int) -> str:
    return f"local-{re.sub(r'[^A-Za-z0-9_.]', '_', host)[:64]}-{pid}"


def age(attempt: str) -> tuple[int, int, int] | None:
    """A key that grows with attempts and launches: a successor has a higher job id. None outside transom."""
    found = _SLURM_ATTEMPT.fullmatch(attempt)
    if found is None:
        return None
    job, restart, launch = found.groups()
    return int(job), int(restart), int(launch or 0)


@dataclass(frozen=True)
class Here:
    """The writer that asks: its attempt, and what it knows about processes of this host."""

    attempt: str
    host: str
    alive: Callable[[int], bool]


def abandoned(name: str, here: Here) -> bool:
    """Whether `name` is a working directory whose writer is gone.

    True for an older attempt of this run (Slurm ended it before ours started; a successor has a higher job ID), for an
    older launch of ours (its launcher ended it), and for a process of this host that is gone. Everything else is left
    alone, including our own launch.
    """
    work = _WORK.fullmatch(name)
    if work is None:
        return False
    owner = work.group(1)
    theirs, ours = age(owner), age(here.attempt)
    if theirs is not None and ours is not None:
        return theirs < ours
    local = _LOCAL_ATTEMPT.fullmatch(owner)
    if local is None or owner == here.attempt:
        return False
    pid = int(local.group(2))
    return owner == local_attempt(here.host, pid) and not here.alive(pid)


def step_of(name: str) -> int | None:
    """The step in the name of a framework's checkpoint, else None."""
    matches = (form.fullmatch(name) for form in _FRAMEWORKS)
    return next((int(match[1]) for match in matches if match), None)

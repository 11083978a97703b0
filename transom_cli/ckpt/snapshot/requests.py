"""The requests that a snapshot daemon answers: of its own node's processes (`session`), and of other daemons
(`training`). Pure.

`rpc.verbs.decode` checks their types. A peer's request also has a field ``directory``, by which the daemon finds the
training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transom_cli.ckpt.publish import Keep


def _not_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} is {value}")


@dataclass(frozen=True)
class LaunchFields:
    """A `record.Launch`."""

    attempt: str
    token: str


@dataclass(frozen=True)
class Step:
    step: int


@dataclass(frozen=True)
class Look:
    """For a process that is no rank."""

    directory: str
    token: str


@dataclass(frozen=True)
class Listen:
    """``key``: hex, the secret of the launch's daemons. ``port``: 0 for any. ``address``: "" for all of this host."""

    launch: LaunchFields
    directory: str
    token: str
    node: str
    key: str
    port: int = 0
    address: str = ""


@dataclass(frozen=True)
class Join:
    """``places``: address and port of each node's daemon. ``also``: further directories and URLs, and every how many
    checkpoints one is copied there. ``upload_rate``: bytes per second to URLs. ``rate``: bytes per second for parity.
    ``domains``: failure domain by node."""

    launch: LaunchFields
    directory: str
    token: str
    node: str
    key: str
    rank: int
    places: dict[str, tuple[str, int]]
    protect: str = "none"
    rate: float | None = None
    domains: dict[str, str] = field(default_factory=dict)
    also: tuple[tuple[str, int], ...] = ()
    upload_rate: float | None = None


@dataclass(frozen=True)
class Lend:
    """One descriptor: a memfd of ``size`` bytes. ``write``: the rank writes into it now."""

    index: int
    size: int
    write: bool


@dataclass(frozen=True)
class Take:
    """``index``: the buffer that a former daemon had given out. ``words``: also return new lines for the trainer."""

    patience: float
    index: int | None = None
    words: bool = False


@dataclass(frozen=True)
class Drop:
    index: int


@dataclass(frozen=True)
class Hold:
    """One parcel: the segments as JSON. ``index``: set to repeat what a former daemon knew."""

    step: int
    file: str
    size: int
    sum: str
    index: int | None = None


@dataclass(frozen=True)
class Commit:
    """One parcel: the manifest, whose size is ``manifest``, and torch's metadata. ``same``: a committed step that has
    the same metadata; then the parcel has the manifest alone."""

    step: int
    manifest: int
    reserve: tuple[str, ...]
    restored: bool = False
    same: int | None = None


@dataclass(frozen=True)
class PlanChanges:
    """What to write of the rank's share in an incremental checkpoint. One parcel: ``blob`` bytes, and the segments as
    JSON."""

    step: int
    file: str
    size: int
    sum: str
    blob: int

    def __post_init__(self) -> None:
        _not_negative(size=self.size, blob=self.blob)


@dataclass(frozen=True)
class PlanIncrement:
    """An incremental checkpoint that refers to step ``base``. One parcel: ``manifest`` bytes, ``metadata`` bytes of
    torch's own, and the links as JSON."""

    step: int
    base: int | None
    manifest: int
    metadata: int

    def __post_init__(self) -> None:
        _not_negative(manifest=self.manifest, metadata=self.metadata)


@dataclass(frozen=True)
class Secure:
    """``by``: the node whose daemon writes the checkpoint."""

    step: int
    by: str
    attempt: str


@dataclass(frozen=True)
class Plan:
    """When the training saves, in words, and which saves come next (`schedule.coming.Coming`)."""

    rhythm: str
    coming: dict[str, Any]


@dataclass(frozen=True)
class Keeping:
    attempt: str
    keep: int
    keep_every: int | None
    keep_best: int = 0
    monitor: str = "loss"
    mode: str = "min"

    @property
    def retention(self) -> Keep:
        return Keep(self.keep, self.keep_every, self.keep_best, self.monitor, self.mode)


@dataclass(frozen=True, kw_only=True)
class Persist(Keeping):
    """``metrics``: of the step, by name. ``requested``: write it though a newer step may come."""

    step: int
    requested: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trust(Keeping):
    """One parcel: the manifest of a checkpoint in ``directory`` that the rank has read in full."""

    directory: str


@dataclass(frozen=True)
class Outcome:
    """``by``: the node whose daemon writes the checkpoint."""

    by: str
    step: int
    patience: float


@dataclass(frozen=True)
class By:
    by: str


@dataclass(frozen=True)
class GetRecord:
    """``manifest``, ``metadata``: their sizes in bytes."""

    node: str
    step: int
    manifest: int
    metadata: int

    def __post_init__(self) -> None:
        _not_negative(manifest=self.manifest, metadata=self.metadata)


@dataclass(frozen=True)
class Fetch:
    """A share by the record's entry. ``check``: the daemon computes the checksum of what is held here."""

    step: int
    file: str
    size: int
    sum: str
    check: bool = True


@dataclass(frozen=True)
class Rewind:
    """``step``: where the training continues; None: from its start."""

    step: int | None


@dataclass(frozen=True)
class Rescue:
    """``attempt``: in whose name the checkpoint is published. ``seconds``: until the reply."""

    directory: str
    step: int
    attempt: str
    seconds: float


# Of other daemons


@dataclass(frozen=True)
class Read:
    """``size`` bytes of a share from byte ``start``."""

    step: int
    file: str
    start: int
    size: int

    def __post_init__(self) -> None:
        _not_negative(start=self.start, size=self.size)


@dataclass(frozen=True)
class ReadRow:
    """``size`` bytes of a parity row from byte ``start``. ``nodes``: the group's."""

    step: int
    nodes: tuple[str, ...]
    stripe: int
    row: int
    start: int
    size: int

    def __post_init__(self) -> None:
        _not_negative(stripe=self.stripe, row=self.row, start=self.start, size=self.size)


@dataclass(frozen=True)
class Write:
    """Write these shares into the working directory ``work``."""

    step: int
    work: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class WriteChanges:
    """Write what ranks have planned of their shares into the working directory ``work``. ``sums``: xxh3_128 by file."""

    step: int
    work: str
    sums: dict[str, str]


@dataclass(frozen=True)
class Protect:
    """``group``: a `parity.Group` as JSON."""

    step: int
    group: dict[str, Any]


@dataclass(frozen=True)
class Protected:
    """``left_out``: nodes whose shares the parity does not cover."""

    step: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class PersistFor:
    """``attempt``: in whose name the checkpoint is published."""

    step: int
    attempt: str


@dataclass(frozen=True)
class Release:
    step: int
    why: str


@dataclass(frozen=True)
class Ended:
    step: int
    state: str
    trouble: str = ""

"""A summary of what a node's snapshot daemon holds of one training, and the combination of all nodes' summaries. Pure.

As JSON (`core.codec`) an account is the answer to "state", and the content of a status file (`status_file`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.ckpt.snapshot.protection import NONE
from transom_cli.plural import several

BEING_PROTECTED = "being protected"


@dataclass(frozen=True)
class Held:
    """A rank's share on the node."""

    rank: int
    file: str
    size: int  # bytes


@dataclass(frozen=True)
class Step:
    """A committed step."""

    step: int
    created: str  # when it was committed, as its manifest has it: UTC, ISO 8601
    attempt: str
    world_size: int
    size: int  # bytes in all of its files, on all nodes
    shares: int  # that its record names, on all nodes
    here: tuple[Held, ...]
    uses: tuple[str, ...]  # for what it is kept until that is done: "being protected", "being made durable"


@dataclass(frozen=True)
class Account:
    directory: str
    steps: tuple[Step, ...]  # newest first
    protect: str  # the requested protection, as `protection.parse` reads it
    protected: int | None  # the newest step that is
    left_out: tuple[str, ...]  # nodes whose shares its parity does not cover
    parity: int  # bytes
    slots: int  # bytes
    nodes: int  # that take part in the training
    rhythm: str = ""  # when it saves and why, in words; of rank 0's node
    coming: NextSaves | None = None  # and as planned
    under_way: tuple[Part, ...] = ()  # what is written and restored, as far as it is on this node


@dataclass(frozen=True)
class InMemory:
    """A step, as all nodes that answered hold it."""

    step: int
    created: str
    attempt: str
    world_size: int
    size: int  # bytes
    nodes: tuple[str, ...]  # with its record
    of: int  # nodes that take part
    missing: int  # shares that none of them holds; parity may give them back
    protection: str  # in words
    uses: tuple[str, ...]

    @property
    def committed(self) -> float | None:
        """Seconds since the epoch, by the clock of rank 0's node."""
        try:
            return datetime.fromisoformat(self.created).timestamp()
        except ValueError:
            return None

    @property
    def where(self) -> str:
        lacking = f", {self.missing} of its shares missing" if self.missing else ""
        return f"memory, {len(self.nodes)} of {several(self.of, 'node')}{lacking}"


def together(accounts: Mapping[str, Account]) -> list[InMemory]:
    """The steps in memory, newest first, from the accounts of one training by node."""
    by_commit: dict[tuple[int, str, str], dict[str, Step]] = {}
    for node, account in accounts.items():
        for step in account.steps:
            by_commit.setdefault((step.step, step.created, step.attempt), {})[node] = step
    of = max((account.nodes for account in accounts.values()), default=0)
    found = []
    for (number, created, attempt), steps in sorted(by_commit.items(), reverse=True):
        held = {share.file for step in steps.values() for share in step.here}
        uses = tuple(sorted({use for step in steps.values() for use in step.uses}))
        one = next(iter(steps.values()))
        words = _protection(number, uses, [accounts[node] for node in steps])
        missing = max(0, one.shares - len(held))
        found.append(
            InMemory(number, created, attempt, one.world_size, one.size, tuple(sorted(steps)), of, missing, words, uses)
        )
    return found


def newest_whole(trainings: Iterable[Mapping[str, Account]]) -> InMemory | None:
    """Return the newest complete step of each training, by node."""
    whole = [step for accounts in trainings for step in together(accounts) if not step.missing]
    return max(whole, key=lambda step: step.step, default=None)


def _protection(step: int, uses: tuple[str, ...], accounts: list[Account]) -> str:
    scheme = accounts[0].protect
    if scheme == str(NONE):
        return "one copy"
    by = [account for account in accounts if account.protected == step]
    if by:
        out = sorted({node for account in by for node in account.left_out})
        return f"{scheme}, protected" + (f" but for {', '.join(out)}" if out else "")
    return f"{scheme}, {BEING_PROTECTED if BEING_PROTECTED in uses else 'one copy'}"

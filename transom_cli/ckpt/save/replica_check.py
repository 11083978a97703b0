"""The comparison of replicas, from save to save: of everything at first, and of a part when that was equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed.checkpoint.metadata import MetadataIndex

from transom_cli.ckpt.failures import RanksDiffer
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.layout import Layout, Signature
from transom_cli.ckpt.save.replicas import (
    Proof,
    Short,
    buffers_note,
    checked_each_save,
    differences,
    prove,
    prove_some,
    refusal,
    shared,
)
from transom_cli.ckpt.state import State
from transom_cli.ckpt.tree import Flat


@dataclass(frozen=True)
class Comparison:
    """Result of comparing replicas. whole: a rank compared everything. complete: all ranks did. note: a warning."""

    refused: RanksDiffer | None = None
    trouble: str = ""
    note: str = ""
    whole: bool = False
    complete: bool = False


def compare(ranks: Ranks, proof: Proof | None, checksums: list[Short | None]) -> Comparison:
    """Compare what the checkpoint stores once for all ranks. A collective."""
    found = differences(ranks, proof, checksums)
    whole = any(short is not None and not short[3] for short in checksums)
    complete = all(short is not None and not short[3] for short in checksums)
    if found:
        refused = refusal(found)
        return Comparison(refused, f"{refused.what}: {found[0].text}", whole=whole, complete=complete)
    note = buffers_note(proof, checksums) if proof is not None else ""
    return Comparison(note=note, whole=whole, complete=complete)


class ReplicaCheck:
    """Which checksums this rank makes in a save. refusal: set when ranks differ, until it is raised."""

    def __init__(self, ranks: Ranks, state: State, say: Callable[[str], None]) -> None:
        self._ranks, self._state, self._say = ranks, state, say
        self.refusal: RanksDiffer | None = None
        self._equal: Signature | None = None  # replicas of this signature were found equal on all ranks
        self._equal_as: Signature | None = None  # the whole signature that it belongs to
        self._each_save: list[MetadataIndex] = []  # what is compared at each save
        self._noted: set[str] = set()

    def forget(self) -> None:
        """Compare everything at the next save."""
        self._equal, self._equal_as = None, None

    def proof(self, flat: Flat, layout: Layout) -> Proof | None:
        """Make the checksums. Nothing may write to the values meanwhile."""
        if self._ranks.size == 1:
            return None
        about = self._equal
        if layout.signature is not self._equal_as:
            about = shared(layout.signature)
            if about == self._equal:
                self._equal_as = layout.signature
                self._each_save = checked_each_save(flat, layout, self._state.stepped())
        if about is not None and layout.signature is self._equal_as:
            return prove_some(flat, about, self._each_save)
        assert about is not None
        return prove(flat, layout, about, self._state.broadcast(), self._ranks.size)

    def compared(self, proof: Proof | None, found: Comparison) -> None:
        """Note what the ranks found. If one rank compared everything, all do so until all have found it equal."""
        self.refusal = found.refused
        if found.refused is not None or proof is None or found.whole:
            self.forget()
        if proof is not None and found.complete and found.refused is None:
            self._equal = proof.about
        if found.note and found.note not in self._noted:
            self._noted.add(found.note)
            self._say(found.note)

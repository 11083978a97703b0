"""After a restore: is what the trainer will train with the state that was saved?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

import torch

from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.proof import (
    Difference,
    Proof,
    Undecodable,
    decode,
    differences,
    is_unavailable,
    listed,
    storage_of,
    summed_in,
)
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.state import RANKS, State, undisturbed
from transom_cli.ckpt.tree import Flat
from transom_cli.plural import several


@dataclass(frozen=True)
class Proven:
    """reason: why not to train with it, or "". differs: the state is not the saved one. note: for the report."""

    reason: str = ""
    differs: bool = False
    proven: bool = False
    note: str = ""


def memory_of(state: State) -> dict[str, Any]:
    """Where this rank's tensors are, by name. Without those that cannot be read: the load reports them."""
    try:
        with undisturbed():
            flat, _ = state.read()
    except Exception:
        return {}
    found = {name: storage_of(value) for name, value in flat.items() if isinstance(value, torch.Tensor)}
    return {name: where for name, where in found.items() if where is not None}


def check(
    text: str, state: State, ranks: Ranks, unproven: Sequence[str] = (), before: Mapping[str, Any] | None = None, *,
    per_rank: bool,
) -> Proven:  # fmt: skip
    """Compare the live state of all ranks with the proof of a manifest. A collective, with the same result on all.

    What was one tensor at the save must be one again if both are parameters of modules, or if they were one here before
    the load. Otherwise the trainer has made them separate, for example an entry that had held a model's tensor.

    Args:
        text: the manifest's proof.
        unproven: names or patterns of values that may differ.
        before: `memory_of` the state before it was loaded.
        per_rank: per-rank values were loaded too.
    """
    try:
        proof = decode(text)
    except Undecodable as error:
        return Proven(str(error))
    if proof is None:
        return Proven(note="; not proven: it carries no digests")
    flat: Flat = {}
    trouble, absent, apart = "", set[str](), list[str]()
    renamed: dict[str, str] = {}
    parameters: frozenset[str] = frozenset()
    own = f"{RANKS}.{ranks.rank}."
    try:
        with undisturbed():
            flat, _ = state.read()
        parameters = state.parameter_values()
        renamed = {name: now for name, now in state.renamed.items() if now in flat}
        unstored = state.unstored(flat)
        flat = state.with_stored_names(flat)
        flat = _stored_as(flat, own, proof)
        known = {name.split(".", 2)[-1] for name in proof.tensors if name.startswith(f"{RANKS}.")}
        apart = sorted(unstored.keys() - known)
        extra = {f"{own}{name}": value for name, value in unstored.items()}
        flat = {**flat, **{name: value for name, value in extra.items() if name in proof.tensors}}
        absent = {name for name in (*proof.tensors, *proof.values) if name.startswith(own) and _may_lack(name, flat)}
    except Exception as error:  # the other ranks wait
        trouble = f"the restored state cannot be read: {describe(error)}"
    answers = ranks.gather((trouble, absent, apart, renamed))
    if trouble := next((answer[0] for answer in answers if answer[0]), ""):
        return Proven(trouble)
    missing = {name for answer in answers for name in answer[1]}
    proof = proof.renamed({name: now for answer in answers for name, now in answer[3].items()})
    patterns = [re.compile(translate(one) + "|" + translate(f"{one}.*")) for one in unproven]

    def skip(name: str) -> bool:
        if name.startswith(f"{RANKS}."):
            if not per_rank or name in missing:
                return True
            name = name.split(".", 2)[2]
        return any(pattern.match(name) for pattern in patterns)

    def must_tie(name: str, other: str) -> bool:
        if name in parameters and other in parameters:
            return True
        were = before or {}
        return name in were and were[name] == were.get(other)

    total = summed_in(ranks.group)
    found = differences(proof, flat, ranks.gather, total, ranks=ranks.size, skip=skip, must_tie=must_tie)
    why = "the optimizer steps with a tensor that was not restored, and was stored at the save"
    found += [Difference(name, why) for name in sorted({n for answer in answers for n in answer[2]}) if not skip(name)]
    if found:
        return Proven(f"the state after loading is not the saved one: {listed(found)}", differs=True)
    return Proven(proven=True, note=f"; proven: {several(len(proof.tensors) + len(proof.values), 'value')}")


def _stored_as(flat: Flat, own: str, proof: Proof) -> Flat:
    """The same values by their names in the checkpoint: some may have been per rank at the save, or shared."""
    known = proof.values.keys() | proof.tensors.keys()

    def stored(name: str) -> str:
        other = name.removeprefix(own) if name.startswith(own) else f"{own}{name}"
        return other if name not in known and other in known else name

    return {stored(name): value for name, value in flat.items()}


def _may_lack(name: str, flat: Flat) -> bool:
    """A GPU's generator that is not here, or an optimizer's own parameter that is stored by now."""
    return name not in flat and (is_unavailable(name, flat) or ".param_groups.param-" in name)

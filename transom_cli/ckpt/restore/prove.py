"""After a restore: is what the trainer will train with the state that was saved?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate

from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.proof import Difference, Undecodable, decode, differences, is_unavailable, listed, summed_in
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


def check(text: str, state: State, ranks: Ranks, unproven: Sequence[str] = (), *, per_rank: bool) -> Proven:
    """Compare the live state of all ranks with the proof of a manifest. A collective, with the same result on all.

    Args:
        text: the manifest's proof.
        unproven: names or patterns of values that may differ.
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
    own = f"{RANKS}.{ranks.rank}."
    try:
        with undisturbed():
            flat, _ = state.read()
        unstored = state.unstored(flat)
        known = {name.split(".", 2)[-1] for name in proof.tensors if name.startswith(f"{RANKS}.")}
        apart = sorted(unstored.keys() - known)
        extra = {f"{own}{name}": value for name, value in unstored.items()}
        flat = {**flat, **{name: value for name, value in extra.items() if name in proof.tensors}}
        absent = {name for name in (*proof.tensors, *proof.values) if name.startswith(own) and _may_lack(name, flat)}
    except Exception as error:  # the other ranks wait
        trouble = f"the restored state cannot be read: {describe(error)}"
    answers = ranks.gather((trouble, absent, apart))
    if trouble := next((answer[0] for answer in answers if answer[0]), ""):
        return Proven(trouble)
    missing = {name for answer in answers for name in answer[1]}
    patterns = [re.compile(translate(one) + "|" + translate(f"{one}.*")) for one in unproven]

    def skip(name: str) -> bool:
        if name.startswith(f"{RANKS}."):
            if not per_rank or name in missing:
                return True
            name = name.split(".", 2)[2]
        return any(pattern.match(name) for pattern in patterns)

    found = differences(proof, flat, ranks.gather, summed_in(ranks.group), ranks=ranks.size, skip=skip)
    why = "the optimizer steps with a tensor that was not restored, and was stored at the save"
    found += [Difference(name, why) for name in sorted({n for answer in answers for n in answer[2]}) if not skip(name)]
    if found:
        return Proven(f"the state after loading is not the saved one: {listed(found)}", differs=True)
    return Proven(proven=True, note=f"; proven: {several(len(proof.tensors) + len(proof.values), 'value')}")


def _may_lack(name: str, flat: Flat) -> bool:
    """A GPU's generator that is not here, or an optimizer's own parameter that is stored by now."""
    return name not in flat and (is_unavailable(name, flat) or ".param_groups.param-" in name)

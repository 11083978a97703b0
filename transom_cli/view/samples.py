"""`transom explain --samples`: which samples each step of a run used, and the proof that each was used once. Pure."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Any

from transom_cli.core.samples import Proof, Steps
from transom_cli.plural import several


def sample_lines(run_id: str, proof: Proof) -> list[str]:
    if not proof.kept:
        why = "it needs `GlobalBatches` in the state of a `Checkpointer` (docs/elastic.md)"
        return [f"{run_id}: no record of samples: {why}"]
    last = proof.kept[-1]
    words = f"{run_id}: {several(proof.used, 'sample')} in {several(last.last, 'step')}, {_epochs(proof)}"
    verdict = "each sample once per epoch, in one order" if proof.exact else "not proven exact"
    lines = [f"{words}: {verdict}"]
    for (launch, world), group in groupby(proof.kept, key=lambda one: (one.launch, one.world)):
        some = list(group)
        lines.append(f"  {_steps(some[0], some[-1])} on {several(world, 'rank')}, launch {_launch(launch)}")
    for one in proof.undone:
        count = several(one.end - one.start, "sample")
        lines.append(f"  undone: steps {one.first:,} to {one.last:,} of launch {_launch(one.launch)} ({count})")
    lines += [f"  repeated: samples {first:,} to {end - 1:,}" for first, end in proof.repeated]
    lines += [f"  left out: samples {first:,} to {end - 1:,}" for first, end in proof.omitted]
    return [*lines, f"  {proof.broken}"] if proof.broken else lines


def sample_document(proof: Proof) -> dict[str, Any]:
    return {**asdict(proof), "used": proof.used, "exact": proof.exact}


def _epochs(proof: Proof) -> str:
    whole, part = divmod(proof.kept[-1].end, proof.size)
    return f"{several(whole, 'whole epoch')}" + (f" and {part:,} of {proof.size:,} samples" if part else "")


def _steps(first: Steps, last: Steps) -> str:
    return f"steps {first.first:,} to {last.last:,}: samples {first.start:,} to {last.end - 1:,}"


def _launch(name: str) -> str:
    attempt, _, launch = name.rpartition(".")
    return f"{launch} of attempt {attempt}"

"""The parameter groups of optimizers, over all ranks.

With pipeline parallelism each rank's optimizer has the parameters of its own stage. A checkpoint stores a group once,
with the names of all its parameters, so that any split of the stages can restore it.
"""

from __future__ import annotations

from typing import Any

import xxhash

from transom_cli.ckpt.ranks import Ranks

Names = dict[str, list[list[str]]]  # by optimizer: the names of each group's parameters


def exchange(own: Names, ranks: Ranks) -> Names:
    """Return the groups of all ranks together; {} if all ranks have the same. A collective."""
    digest = xxhash.xxh3_128_hexdigest(repr(own).encode("utf-8", "surrogateescape"))
    digests = ranks.gather(digest)
    if len(set(digests)) == 1:
        return {}
    answers = ranks.to_first(own if digests.index(digest) == ranks.rank else {})
    together: Names = ranks.from_first(_union(answers) if answers is not None else None)
    return together


def _union(answers: list[Names]) -> Names:
    found: dict[str, list[dict[str, None]]] = {}  # a dict for each group: its keys are ordered
    for names in answers:
        for optimizer, groups in names.items():
            together = found.setdefault(optimizer, [])
            together.extend({} for _ in range(len(groups) - len(together)))
            for all_of_group, group in zip(together, groups, strict=False):
                all_of_group.update(dict.fromkeys(group))
    return {optimizer: [list(group) for group in groups] for optimizer, groups in found.items()}


def widen(groups: list[dict[str, Any]], own: list[list[str]], together: list[list[str]]) -> list[dict[str, Any]]:
    """Name the parameters of all ranks in this rank's groups. Groups that changed since the exchange stay as they are:
    the comparison of the ranks (`save.replicas`) then reports them."""
    if [group["params"] for group in groups] != own:
        return groups
    return [{**group, "params": names} for group, names in zip(groups, together, strict=False)]

"""An optimizer's state under the names of its parameters, and back; and its parameter groups, over all ranks.

torch's `get_optimizer_state_dict` is not used: it makes a step with zero gradients if the optimizer has not stepped
yet, which leaves step counters at 1 and so changes the training. And `Optimizer.load_state_dict` casts state to the
parameter's dtype, which is undone here: a restored state is the saved one.

With pipeline parallelism each rank's optimizer has the parameters of its own stage. A checkpoint stores a group once,
with the names of all its parameters, so that any split of the stages can restore it.
"""

from collections.abc import Mapping
from typing import Any

import torch
import xxhash

from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.module_names import translation
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.tree import inner_tensors, local_part, moved
from transom_cli.plural import some

NAMED = 5  # parameters in a message
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


def usual(packed: Mapping[str, Any]) -> bool:
    """Whether an optimizer's `state_dict` has torch's own layout, with parameters by number."""
    groups, state = packed.get("param_groups"), packed.get("state")
    numbered = isinstance(groups, list) and all(
        isinstance(group, dict) and all(type(index) is int for index in group.get("params", ("",))) for group in groups
    )
    return numbered and isinstance(state, dict) and all(type(index) is int for index in state)


def named(
    optimizer: torch.optim.Optimizer, packed: Mapping[str, Any], names: Mapping[torch.Tensor, str]
) -> dict[str, Any]:
    """`{"state": {name: {...}}, "param_groups": [{..., "params": [name, ...]}]}`: the layout of DCP's own helpers.

    packed: its `state_dict`, of torch's own layout.
    """
    order = parameter_names(optimizer, names)
    return {
        "state": {order[index]: dict(value) for index, value in packed["state"].items()},
        "param_groups": [
            {**group, "params": [order[index] for index in group["params"]]} for group in packed["param_groups"]
        ],
    }


def write(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], tree: dict[str, Any],
    together: list[list[str]] | None = None,
) -> dict[str, str]:  # fmt: skip
    """Load `tree` into the optimizer. Raises StateMismatch if parameters or groups differ from the checkpoint.

    Args:
        together: the parameters of all ranks by group, if the ranks differ (`groups`).

    Returns:
        The names that the groups of the checkpoint have for parameters, by the names here.
    """
    order = parameter_names(optimizer, names)
    index = {name: i for i, name in enumerate(order)}
    groups: list[dict[str, Any]] = []
    saved_groups = tree["param_groups"]
    live_groups = together or [order_of for _, order_of in _by_group(optimizer, order)]
    if len(saved_groups) != len(live_groups):
        raise StateMismatch(
            f"The optimizer has {len(live_groups)} parameter groups, and the checkpoint {len(saved_groups)}"
        )
    renamed = translation({name for saved in saved_groups for name in saved["params"]}, set().union(*live_groups))
    for saved, live in zip(saved_groups, live_groups, strict=True):
        theirs = [renamed(name) for name in saved["params"]]
        if sorted(live) != sorted(theirs):
            odd = sorted(set(live) ^ set(theirs))
            raise StateMismatch(f"A parameter group is not that of the checkpoint: they differ in {some(odd, NAMED)}")
    for saved, (start, mine) in zip(saved_groups, _by_group(optimizer, order), strict=False):
        groups.append({**saved, "params": list(range(start, start + len(mine)))})
    if "state" not in tree and (any(optimizer.state.values()) or to_come(optimizer)):
        raise StateMismatch("The checkpoint has no state of the optimizer, such as moments and step counters")
    state = {index[name]: value for name, value in tree.get("state", {}).items()}
    usual = {i: {k: None if _is_special(v) else v for k, v in values.items()} for i, values in state.items()}
    optimizer.load_state_dict({"state": usual, "param_groups": groups})
    _undo_casts(optimizer, state)
    return {renamed(name): name for saved in saved_groups for name in saved["params"]}


def group_names(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> list[list[str]]:
    """The names of each group's parameters."""
    return [mine for _, mine in _by_group(optimizer, parameter_names(optimizer, names))]


def _by_group(optimizer: torch.optim.Optimizer, order: list[str]) -> list[tuple[int, list[str]]]:
    """By group: the number of its first parameter, and the names of all."""
    found, start = [], 0
    for group in optimizer.param_groups:
        found.append((start, order[start : start + len(group["params"])]))
        start += len(group["params"])
    return found


def parameter_names(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> list[str]:
    """One name per parameter, in the optimizer's order. A parameter of no known module is named by its index."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [names.get(p, f"param-{i}") for i, p in enumerate(parameters)]


def parameters(optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
    live = [p for group in optimizer.param_groups for p in group["params"]]
    return dict(zip(parameter_names(optimizer, names), live, strict=True))


def to_come(optimizer: torch.optim.Optimizer) -> int:
    """Estimate the bytes of state that the first step will allocate: the parameters' bytes for each moment."""
    if optimizer.state:
        return 0
    moments = 2
    if isinstance(optimizer, torch.optim.SGD):
        moments = int(any(group.get("momentum") for group in optimizer.param_groups))
    elif isinstance(optimizer, (torch.optim.Adagrad, torch.optim.RMSprop)):
        moments = 1
    held = [local_part(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return moments * sum(p.numel() * p.element_size() for p in held)


def _undo_casts(optimizer: torch.optim.Optimizer, saved: dict[int, Any]) -> None:
    live = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in saved.items():
        held, device = optimizer.state[live[index]], local_part(live[index]).device
        held.update({key: _as_saved(held.get(key), value, device) for key, value in values.items()})


def _as_saved(now: Any, value: Any, device: torch.device) -> Any:
    """What `load_state_dict` made of a saved value, or the value itself if that has lost something, at any depth."""
    if isinstance(value, torch.Tensor):
        if _is_special(value):
            return moved(value, device)
        cast = isinstance(now, torch.Tensor) and (now.dtype != value.dtype or type(now) is not type(value))
        return value.to(device=now.device) if cast else now
    if isinstance(value, dict) and isinstance(now, dict):
        return {key: _as_saved(now.get(key), one, device) for key, one in value.items()}
    if type(value) in (list, tuple) and type(now) is type(value):
        return type(value)(_as_saved(*pair, device) for pair in zip(now, value, strict=True))
    return value if isinstance(value, str) else now  # torch stores the text of a generator


def _is_special(value: Any) -> bool:
    """Whether it is a tensor that `load_state_dict` would convert, such as one of 8 bits that counts as fp32."""
    return isinstance(value, torch.Tensor) and inner_tensors(local_part(value)) is not None

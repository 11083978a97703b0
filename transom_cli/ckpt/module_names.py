"""Names of parameters and buffers that do not depend on what a module is wrapped in.

torch's wrappers add a component to the names below them: `torch.compile` (`_orig_mod`), activation checkpointing
(`_checkpoint_wrapped_module`), FSDP1 (`_fsdp_wrapped_module`) and DDP (`module`). A training may use them in one run
and not in the next. So checkpoints hold *canonical* names, without these components, and a restore translates the
names of older checkpoints.

The first three are torch's own words. `module` is a word that a model may use itself: in the live model it is removed
where it belongs to a DDP module, and in a checkpoint only if no parameter here has the name that it is part of.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import torch

from transom_cli.ckpt.failures import StateMismatch
from transom_cli.errors import UsageError

WRAPPERS = frozenset(("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"))
_PARALLEL = "module"
_DDP = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The module below DDP, torch.compile and activation checkpointing."""
    while True:
        only = next(iter(module._modules)) if len(module._modules) == 1 else ""
        if only not in WRAPPERS and not isinstance(module, _DDP):
            return module
        if module._parameters or module._buffers or (inner := module._modules[only]) is None:
            return module  # a module of the trainer's own
        module = inner


def canonical(name: str, parallel: Collection[str] = ()) -> str:
    """Return `name` without the components of wrappers. parallel: names of DDP modules, without other wrappers."""
    if _PARALLEL not in name and not any(wrapper in name for wrapper in WRAPPERS):
        return name
    *above, last = name.split(".")
    parts = [part for part in above if part not in WRAPPERS]
    if parallel:
        parts = [p for i, p in enumerate(parts) if p != _PARALLEL or ".".join(parts[:i]) not in parallel]
    return ".".join([*parts, last])


class CanonicalNames:
    """The canonical names of one module's values. They are kept until a name appears that is new."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._known: dict[str, str] = {}

    def of(self, module: torch.nn.Module, given: Iterable[str]) -> dict[str, str]:
        """Map the names that the module gives to canonical ones.

        Raises:
            UsageError: two values would have the same name.
        """
        names = list(given)
        if not all(name in self._known for name in names):
            self._known = self._translated(module, names)
        return self._known

    def _translated(self, module: torch.nn.Module, names: list[str]) -> dict[str, str]:
        parallel = {
            ".".join(part for part in path.split(".") if part and part not in WRAPPERS)
            for path, inner in module.named_modules(remove_duplicate=False)
            if isinstance(inner, _DDP)
        }
        found: dict[str, str] = {}
        first: dict[str, str] = {}
        for name in names:
            found[name] = short = canonical(name, parallel)
            if first.setdefault(short, name) != name:
                raise UsageError(
                    f"Two values of `{self._entry}` would both be saved as `{short}`",
                    f"they are {first[short]} and {name}; names of wrappers such as _orig_mod are left out",
                    "rename one of the modules",
                )
        return found


def translation(stored: Collection[str], live: Collection[str]) -> Callable[[str], str]:
    """Return the translation of a checkpoint's names, of one module or optimizer, to those of the live one.

    Raises:
        StateMismatch: two names of the checkpoint would be one here.
    """
    bare: dict[str, list[str]] = {}
    for name in live:
        bare.setdefault(_without_parallel(name), []).append(name)
    found: dict[str, str] = {}
    for name in stored:
        short = canonical(name)
        if short not in live and len(matching := bare.get(_without_parallel(short), [])) == 1:
            short = matching[0]
        found[name] = short
    _refuse_merged(found)
    return lambda name: found.get(name, name)


def _without_parallel(name: str) -> str:
    above, dot, last = name.rpartition(".")
    return ".".join(part for part in above.split(".") if part != _PARALLEL) + dot + last


def _refuse_merged(found: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, short in found.items():
        if first.setdefault(short, name) != name:
            raise StateMismatch(f"{first[short]} and {name} of the checkpoint are both {short} in this training")

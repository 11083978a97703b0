"""Wrappers may be switched on and off between runs: names in a checkpoint do not depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ckpt_made import names_in
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.module_names import canonical, translation
from transom_cli.ckpt.state import State
from transom_cli.errors import UsageError

WRAPPED = {
    "plain": lambda block: block,
    "compiled": lambda block: torch.compile(block, backend="eager"),
    "recomputed": checkpoint_wrapper,
    "both": lambda block: torch.compile(checkpoint_wrapper(block), backend="eager"),
    "parallel": nn.DataParallel,
}


def trained(wrap: str, seed: int, *, whole: str = "plain") -> dict:
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2)]
    model = WRAPPED[whole](nn.Sequential(*(WRAPPED[wrap](block) for block in blocks)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for tensor in (*model.parameters(), *model.buffers()):  # without a forward pass, which would compile
        tensor.grad = torch.randn_like(tensor) if tensor.requires_grad else tensor.add_(seed).grad
    optimizer.step()
    return {"model": model, "optim": optimizer}


def content(state: dict) -> list[list]:
    parameters = list(state["model"].parameters())
    moments = [state["optim"].state[p][key] for p in parameters for key in ("exp_avg", "exp_avg_sq", "step")]
    return [tensor.tolist() for tensor in (*parameters, *state["model"].buffers(), *moments)]


def saved(state: dict, directory: Path) -> None:
    checkpointer = Checkpointer(state, directory, every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)


def restored(state: dict, directory: Path) -> int | None:
    checkpointer = Checkpointer(state, directory, every=1)
    try:
        return checkpointer.restore()
    finally:
        checkpointer.close()


@pytest.mark.parametrize("wrap", [wrap for wrap in WRAPPED if wrap != "plain"])
@pytest.mark.parametrize("whole", WRAPPED)
def test_names_do_not_depend_on_wrappers(wrap: str, whole: str) -> None:
    plain = State(trained("plain", 1), 0).read()
    found = State(trained(wrap, 1, whole=whole), 0).read()
    assert (list(found[0]), found[1]) == (list(plain[0]), plain[1])
    assert found[0]["optim.param_groups.0.params"] == plain[0]["optim.param_groups.0.params"]


def test_wrapper_can_be_switched_on_and_off_between_runs(directory: Path) -> None:
    state, off, on = trained("both", 1), trained("plain", 2), trained("compiled", 3, whole="recomputed")
    saved(state, directory)
    for again in (off, on):
        assert restored(again, directory) == 1
        assert content(again) == content(state)


def test_older_checkpoint_with_the_names_of_wrappers_restores(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before names were canonical, they were those that the module gave."""
    state = trained("both", 1, whole="parallel")
    with monkeypatch.context() as patched:
        patched.setattr(State, "_canonical_names", lambda self, name, what, module, given: {g: g for g in given})
        saved(state, directory)
    for then in ("plain", "compiled"):
        again = trained(then, 2)
        assert restored(again, directory) == 1
        assert content(again) == content(state)


@pytest.mark.parametrize("wrap", ["compiled", "recomputed", "both", "parallel"])
def test_names_of_wrappers_in_a_checkpoint_are_translated(wrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(State, "_canonical_names", lambda self, name, what, module, given: {g: g for g in given})
        older = State(trained(wrap, 1), 0).read()[1]
    for then in WRAPPED:
        live = State(trained(then, 2), 0)
        assert set(live.read()[1].values()) == set(live.translated(older).values())


def test_two_values_that_would_have_one_name_are_refused_by_name(directory: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self._orig_mod = nn.Linear(2, 2)

    for state in ({"model": Odd()}, {"model": nn.Sequential(Odd())}):
        with pytest.raises(UsageError, match=r"`model`.*`(0\.)?weight`(?s:.)*_orig_mod\.weight"):
            Checkpointer(state, directory, every=1)
    assert not directory.exists() or names_in(directory) == []


def test_module_of_the_trainers_own_name_is_no_wrapper() -> None:
    """A model may have a child called `module`; only that of DDP is left out."""
    model = nn.Sequential()
    model.add_module("module", nn.Linear(2, 2))
    live = State({"model": model}, 0)
    flat, paths = live.read()
    assert "model.module.weight" in flat
    assert live.translated(paths) == paths


def test_names_of_a_checkpoint_that_would_be_merged_are_refused() -> None:
    with pytest.raises(StateMismatch, match=r"a\._orig_mod\.w and a\.w|a\.w and a\._orig_mod\.w"):
        translation(["a._orig_mod.w", "a.w"], {"a.w"})
    with pytest.raises(StateMismatch):
        translation(["a.module.w", "a.w"], {"a.w"})
    both = translation(["a.module.w", "a.w"], {"a.w", "a.module.w"})
    assert (both("a.module.w"), both("a.w")) == ("a.module.w", "a.w")


def test_last_component_is_never_left_out() -> None:
    assert canonical("a._orig_mod") == "a._orig_mod"
    assert canonical("a._orig_mod.module.w", {"a"}) == "a.w"
    assert canonical("a.module.w") == "a.module.w"


def test_pattern_with_the_name_of_a_wrapper_still_declares(directory: Path) -> None:
    found = State(trained("compiled", 1), 0, ["model.0._orig_mod.*"]).read()[0]
    assert "ranks.0.model.0.0.weight" in found
    assert "model.1.weight" in found

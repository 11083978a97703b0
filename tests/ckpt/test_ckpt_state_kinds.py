"""Each kind of value is restored exactly, into the trainer's own objects, or refused by name when it is given."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ckpt_made import odd_tensors
from ckpt_subclasses import Eight, EightBitSGD, Marked
from torch import nn

from transom_cli.ckpt import in_place
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import NoCheckpointRestores, StateMismatch
from transom_cli.ckpt.inventory import Candidate, read_manifest
from transom_cli.ckpt.proof import decode
from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.save.serialize import Serializer
from transom_cli.errors import UsageError


@dataclasses.dataclass
class Settings:
    rate: float
    seen: dict


@pytest.fixture(autouse=True)
def declared():
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([Settings, Eight, Marked])
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(before)


def saved(state: dict, directory: Path) -> None:
    checkpointer = Checkpointer(state, directory, every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)
    proof = decode(read_manifest(Candidate(1, directory / "step-1")).proof)
    assert proof is not None and not proof.uncovered  # a restore compares values of every kind


def restored(state: dict, directory: Path, **options: Any) -> int | None:
    checkpointer = Checkpointer(state, directory, every=1, **options)
    try:
        return checkpointer.restore()
    finally:
        checkpointer.close()


def generators(seed: int) -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(seed),
        "numpy": np.random.default_rng(seed),
        "mt": np.random.Generator(np.random.MT19937(seed)),
        "legacy": np.random.RandomState(seed),
        "python": random.Random(seed),
    }


def draws(found: dict[str, Any]) -> list:
    return [
        torch.rand(3, generator=found["torch"]).tolist(),
        *(found[name].standard_normal(3).tolist() for name in ("numpy", "mt", "legacy")),
        found["python"].random(),
    ]


def test_generators_continue_in_the_objects_that_the_trainer_uses(directory: Path) -> None:
    made, again = generators(1), generators(2)
    draws(made)
    saved({**made, "nested": {"deep": [generators(3), 1]}}, directory)
    after = draws(made)
    held = {**again, "nested": {"deep": [inner := generators(4), 0]}}
    assert restored(held, directory) == 1
    assert draws(again) == after
    assert draws(inner) == draws(generators(3))
    assert held["torch"] is again["torch"]


def test_generator_of_another_kind_is_refused_by_name(directory: Path) -> None:
    saved({"draw": np.random.default_rng(1)}, directory)
    with pytest.raises(NoCheckpointRestores, match=r"draw is numpy\.random\.Generator\(PCG64\)"):
        restored({"draw": np.random.Generator(np.random.MT19937(1))}, directory)


def values(seed: int) -> dict[str, Any]:
    """Containers and objects that a trainer changes in place."""
    torch.manual_seed(seed)
    shared = [seed]
    return {
        "ema": {"a.weight": torch.randn(3), "deeper": {"b": [torch.randn(2), {"c": seed}]}, "empty": {}},
        "ordered": collections.OrderedDict(a=seed),
        "counts": collections.defaultdict(int, {f"k{seed}": seed}),
        "window": collections.deque([seed, seed + 1], maxlen=3),
        "array": np.full((2, 2), float(seed)),
        "settings": Settings(seed / 3, {"x": [seed]}),
        "numbered": {seed: torch.randn(2), (1, 2): seed},
        "names": {f"n{seed}", "all"},
        "tied": {"one": shared, "other": shared},
    }


def fixed(seed: int) -> dict[str, Any]:
    """What cannot be changed in place."""
    return {
        "number": seed, "real": seed / 7, "text": "t" * seed, "complex": 1j * seed, "none": None,
        "bytes": bytes([seed]),
        "scalar": np.float32(seed), "when": datetime.datetime(2020, 1, seed), "tuple": (seed, torch.full((2,), seed)),
        "kind": torch.float16, "objects": np.array([seed, "a", None], dtype=object), "nothing": (),
    }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and in_place._alike(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple, collections.deque)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def test_values_are_restored_exactly_and_into_the_same_objects(directory: Path) -> None:
    saved({**values(1), **fixed(1)}, directory)
    mine = values(2)
    state: dict[str, Any] = {**mine, **fixed(2)}
    leaf, inner = mine["ema"]["a.weight"], mine["ema"]["deeper"]["b"]
    assert restored(state, directory) == 1
    for name, value in {**values(1), **fixed(1)}.items():
        assert same(state[name], value) or name == "names", name
    assert state["names"] == {"n1", "all"}
    assert all(state[name] is value for name, value in mine.items())
    assert mine["ema"]["a.weight"] is leaf and mine["ema"]["deeper"]["b"] is inner
    assert mine["tied"]["one"] is mine["tied"]["other"]


def test_every_kind_of_dense_tensor_is_restored_exactly_in_a_dict_and_as_an_entry(directory: Path) -> None:
    odd = odd_tensors()
    odd["expanded rows"] = torch.randn(4, 3)[::2]
    odd["conjugate"] = torch.randn(3, dtype=torch.complex64).conj()
    odd["negative"] = torch._neg_view(torch.randn(3))
    saved({**odd, "in a dict": dict(odd)}, directory)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in odd.items()}
    nested = {name: torch.zeros_like(tensor) for name, tensor in odd.items()}
    held = dict(nested)
    assert restored({**zeros, "in a dict": nested}, directory) == 1
    for name, tensor in odd.items():
        for found in (zeros[name], held[name]):
            raw = [t.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for t in (found, tensor)]
            assert found.dtype == tensor.dtype and torch.equal(*raw), name


def test_sparse_tensors_are_restored_exactly(directory: Path) -> None:
    def made(scale: float) -> dict[str, Any]:
        model = nn.Linear(3, 3)
        model.register_buffer("graph", (torch.eye(3) * scale).to_sparse())
        return {
            "model": model,
            "coo": (torch.eye(3) * scale).to_sparse(),
            "csr": {"x": (torch.eye(3) * scale).to_sparse_csr()},
        }

    state, again = made(2.0), made(1.0)
    saved(state, directory)
    own = again["csr"]["x"]
    assert restored(again, directory) == 1
    assert torch.equal(again["model"].graph.to_dense(), torch.eye(3) * 2)
    assert torch.equal(again["coo"].to_dense(), torch.eye(3) * 2)
    assert torch.equal(own.to_dense(), torch.eye(3) * 2)


def trained(seed: int, steps: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(64, 64, bias=False)
    model.register_buffer("table", Eight.of(torch.randn(4, 8)))
    optimizer = EightBitSGD(model.parameters())
    for _ in range(steps):
        model.weight.grad = torch.randn_like(model.weight)
        optimizer.step()
    return {"model": model, "optim": optimizer}


def insides(state: dict[str, Any]) -> list[torch.Tensor]:
    held = [state["optim"].state[state["model"].weight]["momentum"], state["model"].table]
    assert all(type(one) is Eight for one in held), held
    return [inner for one in held for inner in (one.codes, one.scale)]


@pytest.mark.parametrize("steps", [0, 2])
def test_tensors_of_a_subclass_keep_class_size_and_bits(steps: int, directory: Path) -> None:
    """An optimizer's state of 8 bits was stored as fp32, and restored as that."""
    state = trained(1, 2)
    saved(state, directory)
    stored = safe_unpickle.metadata((directory / "step-1" / ".metadata").read_bytes()).state_dict_metadata
    assert stored["optim.state.weight.momentum.codes"].properties.dtype is torch.int8
    again = trained(2, steps)
    assert restored(again, directory) == 1
    assert all(map(torch.equal, insides(again), insides(state)))


def test_subclass_that_differs_in_more_than_tensors_is_refused_by_name(directory: Path) -> None:
    saved({"model": trained(1, 0)["model"]}, directory)
    model = trained(2, 0)["model"]
    model.table = Eight.of(torch.randn(4, 8), how="unsigned")
    with pytest.raises(NoCheckpointRestores, match=r"model\.table is Eight.*signed"):
        restored({"model": model}, directory)


def test_subclass_that_is_not_declared_is_reported_at_the_save(directory: Path, capfd: Any) -> None:
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([Settings])
    with pytest.raises(UsageError, match=r"`model\.table.*(?s:.*)Eight"):
        Checkpointer({"model": trained(1, 0)["model"]}, directory, every=1)
    model = nn.Linear(4, 4, bias=False)
    optimizer = EightBitSGD(model.parameters())
    checkpointer = Checkpointer({"model": model, "optim": optimizer}, directory, every=1)
    model.weight.grad = torch.ones(4, 4)
    optimizer.step()
    checkpointer.save(1)
    checkpointer.close(strict=True)
    assert "ckpt_subclasses.Eight, which a restore refuses to load" in capfd.readouterr().err
    model2 = nn.Linear(4, 4, bias=False)
    with pytest.raises(NoCheckpointRestores, match="Eight"):
        restored({"model": model2, "optim": EightBitSGD(model2.parameters())}, directory)


def test_simple_subclass_is_kept(directory: Path) -> None:
    def made(value: float) -> dict[str, Any]:
        return {
            "entry": torch.full((3,), value).as_subclass(Marked),
            "inside": {"x": torch.full((3,), value).as_subclass(Marked)},
        }

    state = made(0.0)
    saved(made(2.0), directory)
    assert restored(state, directory) == 1
    for found in (state["entry"], state["inside"]["x"]):
        assert type(found) is Marked and found.tolist() == [2.0] * 3


def test_description_of_a_subclass_is_serialized_once() -> None:
    from transom_cli.ckpt.state import State

    serializer, state = Serializer(), State(trained(1, 2), 0)
    key = "optim.state.weight.momentum.tensor subclass"
    assert serializer.serialize(key, state.read()[0][key]) is serializer.serialize(key, state.read()[0][key])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.empty(3, device="meta"), "meta device"),
        (lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
        (lambda: torch.ones(3).to_mkldnn(), "layout"),
        (lambda: torch.ones(1).expand(4), "expand"),
        (lambda: torch.zeros(3, dtype=torch.bits8), "bits8"),
    ],
)
def test_tensor_that_cannot_be_saved_is_refused_by_name(make: Any, why: str, directory: Path) -> None:
    with pytest.raises(UsageError, match=rf"`mine\.inner` cannot be checkpointed: .*{why}"):
        Checkpointer({"mine": {"inner": make()}}, directory, every=1)


def test_one_object_for_two_values_gets_neither_of_them_wrong() -> None:
    shared = [0]
    live = {"a": shared, "b": shared}
    in_place.put(live, {"a": [1], "b": [2]}, "x")
    assert live == {"a": [1], "b": [2]}


def test_value_that_contains_itself_is_restored() -> None:
    knot: list[Any] = [1]
    knot.append(knot)
    live: list[Any] = [2]
    assert in_place.put(live, knot, "x") is live
    assert live[0] == 1 and live[1] is live


def test_objects_with_a_way_of_their_own_are_replaced() -> None:
    import enum

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    assert in_place.put({"c": Color.RED}, {"c": Color.BLUE}, "x")["c"] is Color.BLUE
    assert Color.RED.value == 1
    with pytest.raises(StateMismatch, match="x is a generator"):
        in_place.put(0, {"random number generator": "random.Random", "state": ()}, "x")

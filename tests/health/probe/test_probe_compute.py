"""The kernels on this machine's CPU: known sums, the same bits each time, and injected faults."""

from __future__ import annotations

import pytest
import torch

from transom_cli.health.probe import bits as exact
from transom_cli.health.probe import compute as kernels
from transom_cli.health.probe.compute import FLIP, compute
from transom_cli.health.probe.messages import Compute, Computed

CPU = torch.device("cpu")


def measured(seconds: float = 0.05) -> Computed:
    return compute(Compute(1, seconds, 10.0), "n0", 0, CPU)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("one", sorted({*exact.CPU, *exact.CUDA}, key=lambda one: one.name), ids=lambda one: one.name)
def test_the_table_of_answers_is_right(one: exact.Exact) -> None:
    """By 64-bit integers, or for the large ones by float64, whose whole numbers are exact far beyond these sums."""
    wide = torch.int64 if one.size <= 256 else torch.float64
    left, right = (kernels.odd(one.size**2, seed, one.most, CPU).to(wide).view(one.size, -1) for seed in (1, 2))
    product = left @ right
    mantissa = {"float32": 24, "float16": 11, "bfloat16": 8, "int8": 31}[one.dtype]
    assert product.abs().max().item() <= 2**mantissa, "the type does not hold all of its sums"
    assert torch.equal(left.to(getattr(torch, one.dtype)).to(wide), left)
    assert exact.digest(product.to(torch.float64).numpy().tobytes()) == exact.ANSWERS[one.name]


def test_the_cpu_gets_the_known_sums_right_and_all_bits_twice_alike() -> None:
    first, second = measured(), measured()
    digests = dict(first.digests)
    assert {name: digests[name] for name in digests if name in exact.ANSWERS} == {
        one.name: exact.ANSWERS[one.name] for one in exact.CPU
    }
    assert first.digests == second.digests
    assert len(set(digests.values())) == len(digests) - 1, "both exact sums are the same one, nothing else is"
    assert first.differed == ()
    assert first.error == ""
    assert all(rate > 0 for _, rate in first.rates)
    assert {name for name, _ in first.rates} >= {"gemm float32", "attention float32", "reduce float32", "copy"}


@pytest.mark.parametrize(("flip", "changed"), [("gemm", "gemm float32"), ("attention", "attention float32")])
def test_a_device_that_always_flips_a_bit_differs_from_others(
    monkeypatch: pytest.MonkeyPatch, flip: str, changed: str
) -> None:
    well = measured()
    monkeypatch.setenv(FLIP, flip)
    ill = measured()
    assert {name for name, bits in ill.digests if dict(well.digests)[name] != bits} == {changed}
    assert ill.differed == ()


def test_a_device_that_flips_a_bit_once_differs_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    well = measured()
    monkeypatch.setenv(FLIP, "gemm:2")
    ill = measured()
    assert ill.differed == (("gemm float32", 1),)
    assert ill.digests == well.digests


def test_device_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device) -> tuple[kernels.Kernel, ...]:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with TORCH_USE_CUDA_DSA\x1b[0m")

    monkeypatch.setattr("transom_cli.health.probe.compute.kernels", broken)
    found = measured()
    assert found.error == "CUDA error: uncorrectable ECC error encountered Compile with TORCH_USE_CUDA_DSA"
    assert found.digests == ()

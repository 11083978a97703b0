"""Checksums of products: rounding never fails them, and a flipped high bit always does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from transom_cli.guard import products

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def pair(dtype: torch.dtype, seed: int = 0, n: int = 24, k: int = 48, m: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=chance).to(dtype), torch.randn(k, m, generator=chance).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_stays_within_the_limit(dtype: torch.dtype) -> None:
    for seed in range(100):
        a, b = pair(dtype, seed)
        bias = torch.randn(16).to(dtype) if seed % 2 else None
        c = a @ b if bias is None else torch.addmm(bias, a, b)
        assert float(products.product(a, b, c, bias)[0].max()) < 0.5


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18])
def test_values_whose_squares_leave_the_range_of_float32_are_judged(scale: float) -> None:
    a, b = pair(torch.bfloat16)
    a = a * scale
    c = a @ b
    assert float(products.product(a, b, c)[0].max()) < 0.5
    c[5, 3] *= -1
    assert float(products.product(a, b, c)[0].max()) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_element_is_found_and_located(dtype: torch.dtype) -> None:
    a, b = pair(dtype)
    for factor in (-1.0, 2.0, 1e3, float("inf"), float("nan")):
        c = a @ b
        c[5, 3] *= factor
        share, extreme = products.product(a, b, c)
        assert float(share.max()) > 1 and int(share.argmax()) == 5, factor
        assert products.column(a, b, c) == 3
        assert bool(extreme[5]) is (factor in (float("inf"),) or factor != factor)


def test_a_legitimate_overflow_is_no_finding() -> None:
    a = torch.full((4, 64), 300.0, dtype=torch.float16)
    c = a @ a.T  # 64 * 90,000 exceeds 65,504
    assert torch.isinf(c).all()
    assert float(products.product(a, a.T, c)[0].max()) <= 1
    a[0, 0] = float("inf")
    assert float(products.product(a, a.T, a @ a.T)[0].max()) <= 1, "INF from INF is right"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["plain", "causal", "bool mask", "float mask", "grouped"])
def test_attention_is_checked_forward_and_backward(dtype: torch.dtype, how: str) -> None:
    torch.manual_seed(1)
    heads = 1 if how == "grouped" else 2
    q = torch.randn(2, 2, 12, 8, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, heads, 12, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    mask = torch.rand(12, 12) > 0.3 if how == "bool mask" else torch.randn(12, 12).to(dtype)
    mask = mask if how.endswith("mask") else None
    if mask is not None and mask.dtype is torch.bool:
        mask |= torch.eye(12, dtype=torch.bool)
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=how == "causal", enable_gqa=how == "grouped"
    )
    given = [t.detach() for t in (q, k, v)]
    head = products.head(*given, out.detach(), mask, how == "causal", None, 3)
    assert float(products.attention(head)[0].max()) < 0.5
    damaged = out.detach().clone()
    damaged[1, 1, 4, 2] += 4
    wrong = products.head(*given, damaged, mask, how == "causal", None, 3)
    share = products.attention(wrong)[0]
    assert float(share.max()) > 1 and int(share.argmax()) == 4
    if how == "grouped":
        return
    gradient = torch.randn_like(out)
    out.backward(gradient)
    assert q.grad is not None and k.grad is not None and v.grad is not None
    rest = [t[1, 1] for t in (gradient, q.grad, k.grad, v.grad)]
    assert float(products.attention_backward(head, *rest)[0].max()) < 0.5
    for one in rest[1:]:
        one[3, 2] += 8
        assert float(products.attention_backward(head, *rest)[0].max()) > 1
        one[3, 2] -= 8

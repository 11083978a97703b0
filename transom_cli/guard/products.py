"""Checksums of matrix products: is C = A B, within rounding? Also for attention, forward and backward.

Rows are compared by their sums (Huang and Abraham 1984): C 1 = A (B 1) costs a matrix-vector product instead of a
matrix product. Both sides differ by rounding errors. Under the model of Higham and Mary (SIAM J. Sci. Comput. 41, 2019:
independent errors with mean zero), the sum over a row of C has an error of standard deviation at most

    u_c |C_i|  +  u sqrt(k) |A_i| |B|_F

where u_c is the unit roundoff of C's type, u that of the accumulation, k the length of the inner products, |A_i| and
|C_i| are 2-norms of rows. By Hoeffding's inequality, it exceeds `DEVIATIONS` times that with a probability below
2 exp(-DEVIATIONS**2 / 2), here 3e-14. The limits follow from type and size; none is fitted.

A row that overflows is judged by its largest possible value: no product of A and B can exceed |A_i| |B|_F. If that fits
into the type and the row still has INF or NaN, it was computed wrong; otherwise the overflow is legitimate.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

DEVIATIONS = 8.0
SPLITS = 32  # partial sums that a GPU may round to 16 bits ("reduced precision reduction")
Verdict = tuple[Tensor, Tensor]  # per row: the distance of both sums, as a share of its limit; whether it was extreme


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff of a type."""
    return unit_of(torch.finfo(dtype))


def unit_of(kind: torch.finfo) -> float:
    return float(kind.eps) / 2


@dataclass(frozen=True)
class Accumulation:
    unit: float  # unit roundoff of the sums
    depth: int  # roundings in a sum
    inputs: float = 0.0  # roundoff of the factors before that

    @property
    def error(self) -> float:
        return self.unit * math.sqrt(self.depth + 1) + self.inputs


def accumulation(dtype: torch.dtype, k: int, device: torch.device) -> Accumulation:
    """How a product of this type is accumulated: 16-bit types in float32, float32 perhaps with factors in TF32."""
    matmul = torch.backends.cuda.matmul
    if device.type != "cuda":
        return Accumulation(unit(dtype if dtype is torch.float64 else torch.float32), k)
    if dtype is torch.float32:
        return Accumulation(unit(dtype), k, 2 * 2.0**-11 if matmul.allow_tf32 else 0.0)
    flags = {
        torch.bfloat16: matmul.allow_bf16_reduced_precision_reduction,
        torch.float16: matmul.allow_fp16_reduced_precision_reduction,
    }
    reduced = flags.get(dtype, False)
    return Accumulation(unit(dtype), SPLITS) if reduced else Accumulation(unit(torch.float32), k)


@torch.no_grad()
def product(a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None = None) -> Verdict:
    """Compare the rows of C = A B + bias, all of two dimensions. Factors are in the type that was multiplied."""
    kind, how = torch.finfo(c.dtype), accumulation(a.dtype, a.shape[1], a.device)
    narrow = kind.bits < 32
    if narrow:  # exact, and sums of float32 add no error that counts
        a, b, c = a.float(), b.float(), c.float()
    sums = b.sum(1, dtype=torch.float64).to(a.dtype)
    left, right = (a @ sums).double(), c.sum(1, dtype=torch.float64)
    # Squares of small or large values would leave float32's range.
    long, right_long = (one.norm(dim=1, dtype=torch.float64) for one in (a, c))
    size = long * b.norm(dtype=torch.float64)  # no row of A B has a longer norm
    mine = 0.0 if narrow else how.error * sums.norm(dtype=torch.float64)  # the error of `left`
    outputs = 1
    if bias is not None:
        left, size = left + bias.double().sum(), size + bias.double().norm()
        outputs = 2  # the bias may be added after a rounding
    rows = torch.minimum(right_long.nan_to_num(math.inf), size)
    tiny = float(kind.smallest_normal) * float(kind.eps) * math.sqrt(c.shape[1])
    limit = DEVIATIONS * (outputs * unit_of(kind) * rows + how.error * size + mine * long + tiny)
    return _verdict((left - right).abs(), limit, right, size, float(kind.max))


def _verdict(distance: Tensor, limit: Tensor, right: Tensor, size: Tensor, most: float) -> Verdict:
    extreme = ~torch.isfinite(right) & (size < most)
    share = (distance / limit).nan_to_num(0.0, 0.0, 0.0)
    return torch.where(extreme, torch.full_like(share, math.inf), share), extreme


@torch.no_grad()
def column(a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None = None) -> int:
    """The column in which C differs most from A B."""
    much = torch.float64
    left = a.to(much).sum(0) @ b.to(much)
    if bias is not None:
        left = left + a.shape[0] * bias.to(much)
    return int((left - c.to(much).sum(0)).abs().nan_to_num(math.inf, math.inf, math.inf).argmax())


@dataclass(frozen=True)
class Head:
    """One head of one sample of scaled-dot-product attention, with its output. mask: added to the scores."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    scale: float
    mask: Tensor | None


def head(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None, causal: bool, scale: float | None, at: int
) -> Head:
    """Pick head number `at`, counted over samples and heads. K and V may have fewer heads (grouped queries)."""
    lead = out.shape[:-2]
    where: list[int] = []
    for size in reversed(lead):
        at, rest = divmod(at, size)
        where.insert(0, rest)
    grouped = tuple(w * kv // n for w, n, kv in zip(where, lead, k.shape[:-2], strict=True))
    one = tuple(where)
    length, keys = q.shape[-2], k.shape[-2]
    added = keep = None
    if causal:
        keep = torch.ones(length, keys, dtype=torch.bool, device=q.device).tril()
    elif mask is not None:
        mine = mask.expand(*lead, length, keys)[one]
        keep, added = (mine, None) if mask.dtype is torch.bool else (None, mine)
    if keep is not None:
        added = torch.zeros_like(keep, dtype=torch.float32).masked_fill(~keep, -math.inf)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return Head(q[one], k[grouped], v[grouped], out[one], scale, added)


@torch.no_grad()
def attention(one: Head) -> Verdict:
    """Compare O 1 = P (V 1), with P = softmax(Q K^T) computed again in a wider type."""
    much, p = _probabilities(one)
    out, v = one.out.to(much), one.v.to(much)
    return _attention_verdict(p @ v.sum(1), out, p.norm(dim=1) * v.norm(), v, one)


@torch.no_grad()
def attention_backward(one: Head, d_out: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> Verdict:
    """Compare the row sums of all three gradients. The tensors are of the head alone.

    The scores' gradient is P * (dO V^T - rowsum(dO * O)), a difference whose result may be much smaller than its parts.
    Its error is that of the parts, whose sizes are at most |dO_i| |V_j| and |dO_i| |O_i|.
    """
    much, p = _probabilities(one)
    d, q, k, v = d_out.to(much), one.q.to(much), one.k.to(much), one.v.to(much)
    d_p = d @ v.T
    d_s = p * (d_p - (d_p * p).sum(1, keepdim=True)) * one.scale
    longest = v.norm(dim=1)
    parts = p * d.norm(dim=1, keepdim=True) * (longest + (p @ longest)[:, None]) * abs(one.scale)
    found = [
        _attention_verdict(p.T @ d.sum(1), d_v.to(much), p.norm(dim=0) * d.norm(), d, one),
        _attention_verdict(d_s @ k.sum(1), d_q.to(much), parts.norm(dim=1) * k.norm(), k, one),
        _attention_verdict(d_s.T @ q.sum(1), d_k.to(much), parts.norm(dim=0) * q.norm(), q, one),
    ]
    return torch.cat([share for share, _ in found]), torch.cat([extreme for _, extreme in found])


def _probabilities(one: Head) -> tuple[torch.dtype, Tensor]:
    much = torch.float64
    scores = (one.q.to(much) @ one.k.to(much).T) * one.scale
    if one.mask is not None:
        scores = scores + one.mask.to(much)
    return much, torch.softmax(scores, dim=1).nan_to_num(0.0)


def _attention_verdict(left: Tensor, right: Tensor, size: Tensor, factor: Tensor, one: Head) -> Verdict:
    """size: of a row, as a product of norms. factor: what P, or the gradient of the scores, is multiplied by.

    Fused kernels round P and the gradient of the scores to the type of the inputs, where small values lose bits or
    become 0. An error e of a score changes its probability by the factor exp(e), so scores count with their magnitude.
    """
    kind = torch.finfo(one.q.dtype)
    much = right.dtype
    scores = float(one.q.to(much).norm(dim=1).max() * one.k.to(much).norm(dim=1).max()) * abs(one.scale)
    how = accumulation(one.q.dtype, max(one.q.shape[1], one.k.shape[0]), one.q.device)
    error = 3 * unit(one.q.dtype) + how.error * (2 + scores)
    lost = float(kind.smallest_normal) * float(kind.eps) * math.sqrt(factor.shape[0])
    limit = DEVIATIONS * (error * size + lost * (1.0 + factor.norm()))
    sums = right.sum(1)
    return _verdict((left - sums).abs(), limit, sums, size, float(kind.max))

"""`guard(model, optimizer)`: watches a training for silent corruption, within a budget of its time.

After each optimizer step: replicas are compared (`replicas`), one matrix product is checked now and then (`products`),
and gradients that are not finite are located by layer. What is found goes to the node's agent and from there to the
launcher, which decides (`core.silent`). The guard itself never changes the training, and never raises into it.

A gradient scaler skips steps whose gradients overflow, so that is no finding.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from transom_cli.ckpt.save import doubt
from transom_cli.diagnose import numerics
from transom_cli.guard import products
from transom_cli.guard.replicas import Difference, Replicas
from transom_cli.heartbeat import client, guard_record, paths

FORWARD, INPUT, WEIGHT, BACKWARD = "forward", "input gradient", "weight gradient", "backward"
_PRODUCTS = ("AddmmBackward0", "MmBackward0")
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "CloneBackward0")
_ATTENTION = "ScaledDotProduct"
_BY_TURN = 1 << 15  # in a number of what to repeat: a turn of the replicas, not a product
LARGE = 0.125  # norm of a suspicious update, as a share of the norm of the weights, at least
JUMP, KNOWN = 20.0, 8  # and this many times the largest one before, of at least 8
MOST = 16  # steps between two comparisons of replicas, at most
CYCLE = 16
Item = tuple[str, str]  # a layer, or an attention's number; and what of it


def guard(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    group: Any = None,
    step: int | None = None,
    budget: float = 0.01,
    cycle: int = 0,
) -> Guard:
    """Watch a training for silent corruption. Call it on all ranks, after the model was wrapped by DDP or FSDP.

    Args:
        group: the ranks with the same parameters; default: all.
        step: number of finished steps; default: where the Checkpointer resumed, else 0.
        budget: share of the time that checks may take.
        cycle: comparisons of replicas until each tensor had its turn; 0: 16, or 1 with two replicas, which cannot be
            told apart unless their difference is seen in the very step.
    """
    return Guard(model, optimizer, group=group, step=step, budget=budget, cycle=cycle)


class Guard:
    """events: what was found. checked: number of products. grad_norm: of the last step, for `beat(grad_norm=...)`."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, group: Any, step: int | None, budget: float,
        cycle: int,
    ) -> None:  # fmt: skip
        self._model, self._optimizer, self._group, self._budget, self._cycle = model, optimizer, group, budget, cycle
        self.step = client.known_step() if step is None else step
        self.events: list[dict[str, Any]] = []
        self.checked = 0
        self.grad_norm: float | None = None
        self.failed = ""  # why products are not checked any more
        self._injector = self._arm_injector()
        self._since, self._steps, self._every = self.step, 0, 1
        compiled = any(name.endswith("_orig_mod") for name, _ in model.named_modules())  # hooks would recompile it
        self._layers = {} if compiled else {n: m for n, m in model.named_modules() if type(m) is nn.Linear}
        self._items: list[Item] = [(name, what) for name in self._layers for what in (FORWARD, INPUT, WEIGHT)]
        self._passed: dict[Item, int] = {}  # the step of its newest check
        self._turn, self._calls = 0, 0
        self._item: Item | None = None
        self._credit, self._mark = 0.0, time.perf_counter()
        self._compared, self._began = 0.0, self._mark  # seconds of comparisons; since when
        self._hooks: list[Any] = []
        self._replicas: Replicas | None = None
        self.uncompared = ""  # why replicas are not compared
        self._repeat: tuple[int, int] = (-1, 0)  # step, and what of it is to be repeated
        self._repeated, self._right_again = "", False  # digest of the step that is repeated; is its product right now?
        self._equal: dict[int, tuple[int, int]] = {}  # step -> turn and digest, in an earlier launch
        self._same = [0, 0]  # how many of them came out the same, of how many
        self._norm = numerics.Track("norm")
        self._watched: tuple[str, Tensor, Tensor] | None = None  # a parameter, and its value before the step
        self._ratios: dict[str, deque[float]] = {}  # the updates of a parameter, as shares of it
        self._attention = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = self._called  # type: ignore[assignment]
        self._own = [
            optimizer.register_step_pre_hook(lambda *_: self._safely(self._before)),
            optimizer.register_step_post_hook(lambda *_: self._after()),
        ]
        self._start_comparing()
        doubt.guards.append(self._compare_all)
        self._choose()

    def close(self) -> None:
        """Stop watching."""
        self._disarm()
        doubt.guards.remove(self._compare_all)
        for hook in self._own:
            hook.remove()
        functional.scaled_dot_product_attention = self._attention
        if self._injector is not None:
            self._injector.close()

    def _arm_injector(self) -> Any:
        """In tests and sandboxes, the node may have to compute wrong."""
        if "TRANSOM_INJECT" not in os.environ:
            return None
        from transom_cli.inject import Injector

        return Injector(self._model, self._optimizer, step=self.step)

    def _safely(self, check: Callable[[], None]) -> None:
        """Run a check within the budget. One that fails ends all checks but the comparison, which needs all ranks."""
        began = time.perf_counter()
        try:
            with torch.no_grad():
                check()
        except Exception as error:
            self._items, self.failed = [], repr(error)
            print(f"transom: the guard checks no more products on this rank: {error!r}", file=sys.stderr, flush=True)
        self._credit -= time.perf_counter() - began

    # --- each step ---

    def _before(self) -> None:
        """The gradients are complete: are they finite?"""
        if self._credit < 0:
            return
        trained = [(n, p) for n, p in self._model.named_parameters() if p.grad is not None]
        gradients = [_local(p.grad) for _, p in trained]
        skipped = getattr(self._optimizer, "found_inf", None)  # a fused optimizer itself skips the step of a scaler
        if not gradients or (skipped is not None and bool(skipped.item())):
            return
        norms = torch.stack(torch._foreach_norm(gradients)).float()  # type: ignore[attr-defined]
        norm = float(norms.norm())
        self.grad_norm = norm
        if norm != norm or norm == float("inf"):
            bad = [name for (name, _), one in zip(trained, norms.tolist(), strict=True) if not one < float("inf")]
            words = f"the gradient of {bad[0]} is not finite ({len(bad)} of {len(trained)} tensors)"
            self._event("value", bad[0], words)
            return
        before, self._norm = self._norm, numerics.sample(self._norm, self.step + 1, norm)
        if self._norm.bad and not before.bad:  # look more closely
            self._credit = max(self._credit, self._budget)
        name, parameter = trained[self._steps % len(trained)]
        local = _local(parameter).detach()
        self._watched = name, local, local.clone()

    def _update(self) -> None:
        """Is the update of one parameter far larger than its updates before? All parameters take turns."""
        assert self._watched is not None
        (name, parameter, before), self._watched = self._watched, None
        pair = torch.stack([(parameter - before).float().norm(), before.float().norm()]).tolist()
        ratio = pair[0] / pair[1] if pair[1] > 0 else 0.0
        known = self._ratios.setdefault(name, deque(maxlen=2 * KNOWN))
        if len(known) >= KNOWN and not ratio <= max(LARGE, JUMP * max(known)):
            words = f"the update of {name} is {ratio:.3g} of its norm; at most {max(known):.3g} in {len(known)} samples"
            self._event("value", f"update of {name}", f"{words} before")
        elif ratio > 0:
            known.append(ratio)

    def _after(self) -> None:
        now = time.perf_counter()
        self._credit = min(self._credit + self._budget / 2 * (now - self._mark), self._budget)
        self._mark = now
        if self._watched is not None:
            self._safely(self._update)
        self._disarm()
        self.step = max(self.step, client.known_step()) + 1  # a gradient scaler may have skipped some
        self._steps += 1
        if self._steps == 1:
            self._first()
        if self._replicas is not None:
            self._compare(self._replicas)
            self._compared += time.perf_counter() - now
        self._answer()
        if self._steps == CYCLE:
            self._pace()
        self._choose()

    def _start_comparing(self) -> None:
        """Compare all tensors before the first step. Those that differ already are each rank's own."""
        self.uncompared = Replicas.comparable(self._model, self._group)
        if not self.uncompared:
            self._cycle = self._cycle or (1 if dist.get_world_size(self._group) == 2 else CYCLE)
            self._replicas = Replicas(self._model, self._optimizer, self._group, self._cycle, self._since)
            self._compare_all()

    def _compare_all(self) -> bool:
        """Compare all replicas now; return whether a difference was reported. All ranks call it together."""
        if self._replicas is None:
            return False
        self._report(self._replicas, self._replicas.finish())
        for turn in range(self._cycle):
            self._replicas.begin(self.step, turn)
            self._report(self._replicas, self._replicas.finish())
        return any(event["kind"] == "replica" for event in self.events)

    def _first(self) -> None:
        """After the first step: the attentions are counted, and all ranks learn which step is to be repeated."""
        if self._replicas is None:
            self._start_comparing()
        for number in range(self._calls):
            self._items += [(f"attention {number}", FORWARD), (f"attention {number}", BACKWARD)]
        doubtful = guard_record.doubt().get("open") or {"repeat": doubt.BY_SAVE}
        self._equal = {s: (turn, digest) for s, turn, digest in doubtful.get("equal", ()) if s > self._since}
        code = 0 if doubtful["repeat"] == doubt.BY_SAVE else doubtful["step"] << 16 | doubtful["repeat"]
        if dist.is_initialized() and dist.get_world_size(self._group) > 1:
            device = next(self._model.parameters()).device
            known = torch.tensor([code], dtype=torch.int64, device=device)
            dist.all_reduce(known, dist.ReduceOp.MAX, self._group)
            code = int(known.item())
        if code:
            self._repeat = (code >> 16, code & 0xFFFF)

    def _report(self, replicas: Replicas, found: Difference | None) -> None:
        if found is not None:
            who = f"rank {', '.join(map(str, found.odd))}" if found.majority else "all ranks"
            words = f"{found.tensors[0]} of {who} differs from the other replicas after step {found.step}"
            digests = [f"{one:016x}" for one in found.digests]
            self._event(
                "replica", found.tensors[0], words, step=found.step, ranks=found.odd, majority=found.majority,
                repeat=found.turn | _BY_TURN, digests=digests, clean=replicas.clean, equal=found.equal,
            )  # fmt: skip

    def _compare(self, replicas: Replicas) -> None:
        self._report(replicas, replicas.finish())
        if self.step in self._equal:  # is the training deterministic?
            turn, digest = self._equal[self.step]
            self._same = [self._same[0] + (replicas.digest(turn) == digest), self._same[1] + 1]
        step, what = self._repeat
        again = step == self.step and what & _BY_TURN
        if again or self.step % self._every == 0:
            turn = what & ~_BY_TURN if again else self.step // self._every % self._cycle
            total = replicas.begin(self.step, turn)
            if again:
                self._repeated = f"{total:016x}"

    def _answer(self) -> None:
        """Report that a doubtful step was repeated without a finding. A step later: replicas are compared then."""
        step, what = self._repeat
        if step < 0 or self.step <= step:
            return
        self._repeat = (-1, 0)
        if not (what & _BY_TURN or self._right_again):
            return  # the product was not checked again
        if all(event["step"] != step for event in self.events):
            guard_record.update(repeated={"step": step, "digest": self._repeated, "same": self._same})

    def _pace(self) -> None:
        """Agree on how often replicas are compared, from what it has cost so far."""
        if self._replicas is None:
            return
        share = self._compared / (time.perf_counter() - self._began)
        every = max(1, min(MOST, math.ceil(share / (self._budget / 2))))
        agreed = torch.tensor([every], device=next(self._model.parameters()).device)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, self._group)
        self._every = int(agreed.item())

    # --- products ---

    def _choose(self) -> None:
        """Arm the check of one product in the next step, if the budget allows or the step is repeated."""
        self._calls = 0
        step, what = self._repeat
        if step == self.step + 1 and not what & _BY_TURN and what < len(self._items):
            self._item = self._items[what]
        elif self._credit >= 0 and self._items:
            self._item = self._items[self._turn % len(self._items)]
            self._turn += 1
        else:
            return
        layer = self._layers.get(self._item[0])
        if layer is not None:
            self._hooks.append(layer.register_forward_hook(self._forward))

    def _disarm(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._item = [], None

    def _forward(self, layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        item = self._item
        if item is None or not inputs or type(output) is not Tensor or not output.is_floating_point():
            return
        self._item = None  # only the first call in a step
        if item[1] == FORWARD:
            self._safely(lambda: self._outputs(item, layer, inputs[0], output))
            return
        node = _behind_views(output.grad_fn)
        if node is not None and node.name() in _PRODUCTS:
            x = inputs[0].detach()
            node.register_hook(lambda to, by: self._safely(lambda: self._gradients(item, layer, x, to, by)))

    def _outputs(self, item: Item, layer: nn.Linear, x: Tensor, output: Tensor) -> None:
        kind = output.dtype
        bias = layer.bias.to(kind) if layer.bias is not None else None
        x, y = x.reshape(-1, layer.in_features).to(kind), output.reshape(-1, layer.out_features)
        self._judge(item, x, layer.weight.to(kind).T, y, bias)

    def _gradients(self, item: Item, layer: nn.Linear, x: Tensor, to: Any, by: Any) -> None:
        """to, by: the gradients that the product's node returns and was given."""
        gradient = by[0]
        if item[1] == INPUT and to[-2] is not None:
            self._judge(item, gradient, layer.weight.to(gradient.dtype), to[-2])
        elif item[1] == WEIGHT and to[-1] is not None:
            self._judge(item, x.reshape(-1, layer.in_features).to(gradient.dtype).T, gradient, to[-1])

    def _judge(self, item: Item, a: Tensor, b: Tensor, c: Tensor, bias: Tensor | None = None) -> None:
        def where(row: int) -> str:
            again = a @ b if bias is None else torch.addmm(bias, a, b)
            same = "the same" if torch.equal(again, c) else "another result"
            return f"row {row}, column {products.column(a, b, c, bias)}; computing it again gives {same}"

        self._verdict(item, products.product(a, b, c, bias), where)

    def _verdict(self, item: Item, found: products.Verdict, where: Callable[[int], str]) -> None:
        share, _ = found
        self.checked += 1
        worst = float(share.max())
        if worst <= 1.0:
            self._passed[item] = self.step + 1
            self._right_again |= (self.step + 1, self._items.index(item)) == self._repeat
            return
        words = f"{' '.join(item)} differs from its checksum by {worst:.3g} times the largest rounding error: "
        words += where(int(share.argmax()))
        clean = min(self._passed.values(), default=0) if self._turn > 2 * len(self._items) else self._since
        self._event("product", " ".join(item), words, repeat=self._items.index(item), clean=clean)

    def _called(self, *args: Any, **kwargs: Any) -> Tensor:
        """In place of torch's scaled_dot_product_attention: count the calls, and check the one whose turn it is."""
        out = self._attention(*args, **kwargs)
        number, self._calls = self._calls, self._calls + 1
        item = self._item
        if item is not None and item[0] == f"attention {number}":
            self._item = None
            self._safely(lambda: self._attended(item, out, *args, **kwargs))
        return out

    def _attended(
        self, item: Item, out: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        if dropout_p or type(out) is not Tensor:  # what was dropped is unknown
            return
        count = out[..., 0, 0].numel()
        q, k, v, o = (one.detach() for one in (query, key, value, out))
        head = products.head(q, k, v, o, attn_mask, is_causal, scale, self._turn % count)
        if item[1] == FORWARD:
            self._verdict(item, products.attention(head), lambda row: f"head {self._turn % count}, row {row}")
            return
        node = _behind_views(out.grad_fn)
        if node is None or not node.name().startswith(_ATTENTION) or query.shape[:-2] != key.shape[:-2]:
            return
        at = self._turn % count

        def backward(to: Any, by: Any) -> None:
            d_out, *rest = (t.flatten(0, -3)[at] for t in (by[0], *to[:3]))
            self._verdict(item, products.attention_backward(head, d_out, *rest), lambda row: f"head {at}, {row}")

        node.register_hook(lambda to, by: self._safely(lambda: backward(to, by)))

    # --- reports ---

    def _event(self, kind: str, item: str, words: str, *, clean: int | None = None, **more: Any) -> None:
        """Record an event and pass it to the node's agent."""
        event = {"kind": kind, "item": item, "words": words, "step": self.step + 1, "ranks": (paths.own_rank(),)}
        event |= {
            "majority": True,
            "repeat": 0,
            "digests": (),
            "equal": (),
            "clean": self._since if clean is None else clean,
            **more,
        }
        if any((one["kind"], one["item"]) == (kind, item) for one in self.events):
            return
        self.events.append(event)
        guard_record.update(step=self.step, events=self.events[: guard_record.KEPT])


def _local(tensor: Any) -> Tensor:
    """This rank's part of it."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def _behind_views(node: Any) -> Any:
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    return node

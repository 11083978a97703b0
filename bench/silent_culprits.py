"""Who computes wrong? 60 faulty nodes and 60 software causes, through the launcher's own decisions (core.silent).

    python bench/silent_culprits.py [--cases 60]

Trainings of 2 to 64 nodes are simulated at the level of what guards report: digests of replicas that follow from what
was computed wrong, by whom and when, and products that a check finds wrong a few steps later. A doubt goes back to its
clean step, every rank moves on by one node, and the steps are repeated, as `core.launcher.anomalies` does it.

Nodes: permanent (other wrong bits each time), stuck (the same), intermittent, data-dependent (wrong in the same steps),
and once; in weights or in products. Software: one rank is wrong by itself, one rank in the same steps, all ranks drift
apart, wrong products on all ranks, and replicas that differ once on a random rank because an operation is not
deterministic.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field

from transom_cli.core.silent import PATIENCE, PRODUCT, REPLICA, Found, Guarded, SilentState, watch
from transom_cli.diagnose.clue import Silent

NODES = ("permanent", "stuck", "intermittent", "data-dependent", "once")
SOFTWARE = ("rank", "rank, by data", "all drift", "all products", "nondeterministic")
CYCLE, STEPS = 16, 400


def mixed(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@dataclass
class Case:
    cause: str
    product: bool
    seed: int
    nodes: tuple[str, ...] = ()
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.cause}/{self.product}/{self.seed}")
        self.nodes = tuple(f"n{i:02}" for i in range(self.chance.choice((2, 3, 4, 8, 16, 64))))
        self.bad = self.chance.choice(self.nodes)
        self.rank = self.chance.randrange(len(self.nodes))
        self.begins = self.chance.randrange(60, 120)
        self.used = False

    def wrong(self, step: int, launch: int, placed: tuple[str, ...]) -> list[int]:
        """Which ranks compute wrong in this step."""
        by_data = random.Random(f"{self.seed}/{step}").random() < 0.02
        if step < self.begins:
            return []
        if self.cause in ("all drift", "all products"):
            return list(range(len(placed)))
        if self.cause in ("once", "nondeterministic"):
            now, self.used = not self.used, True
            who = placed.index(self.bad) if self.cause == "once" else self.rank
            return [who] if now else []
        happens = {"intermittent": self.chance.random() < 0.03, "data-dependent": by_data, "rank, by data": by_data}
        if not happens.get(self.cause, True):
            return []
        return [self.rank if self.cause.startswith("rank") else placed.index(self.bad)]


def run(case: Case) -> tuple[set[str], list[Silent], int, int]:
    """Return the nodes named, all findings, the steps repeated, and the launches needed."""
    state, placed, start, repeated = SilentState(), case.nodes, 0, 0
    named: set[str] = set()
    findings: list[Silent] = []
    doubt: tuple[int, int, int, list[tuple[int, str]]] | None = None  # launch, step, turn, equal comparisons
    cycle = 1 if len(placed) == 2 else CYCLE
    for launch in range(8):
        state, found, end, doubt = one_launch(case, state, launch, placed, start, cycle, doubt)
        findings += [f.what for f in found]
        named |= {n for f in found if f.what is Silent.NODE for n in f.nodes}
        back = next((f for f in found if f.before >= 0), None)
        if named or back is None:
            return named, findings, repeated, launch + 1
        repeated += end - back.before
        start, placed = back.before, (*placed[1:], placed[0])
    return named, findings, repeated, 8


def one_launch(
    case: Case, state: SilentState, launch: int, placed: tuple[str, ...], start: int, cycle: int, doubt: object
) -> tuple[SilentState, list[Found], int, object]:
    world, truth = len(placed), "clean"
    own = [""] * world  # what each rank alone has wrong
    noise = mixed(case.seed, launch) if case.cause == "nondeterministic" else ""
    events: dict[int, dict[str, object]] = {}
    verified, equal, same, digest = dict.fromkeys(range(cycle), start), [], [0, 0], ""
    for step in range(start + 1, STEPS):
        who = case.wrong(step, launch, placed)
        turn = step % cycle
        if who and case.product:
            # A wrong product reaches all ranks through the gradients; its check has its turn now and then.
            truth = mixed(truth, step, who)
            for rank in who:
                again = doubt is not None and step == doubt[1]  # type: ignore[index]
                if (again or case.chance.random() < 0.2) and rank not in events:
                    events[rank] = event(PRODUCT, (rank,), step, start)
        elif who:
            for rank in who:
                bits = placed[rank] if case.cause == "stuck" else (launch, step)
                bits = case.rank if case.cause == "rank" else bits
                own[rank] = mixed(own[rank], bits, rank if case.cause == "all drift" else "")
        if any(own) and turn == 0:
            digests = tuple(mixed(truth, step, noise, one) for one in own)
            rows = Counter(digests)
            top, count = rows.most_common(1)[0]
            majority = count * 2 > world
            odd = tuple(r for r in range(world) if not majority or digests[r] != top)
            if len(rows) > 1 and not events:
                more = {"digests": digests, "majority": majority}
                events = {r: event(REPLICA, odd, step, min(verified.values()), **more) for r in range(world)}
                report = [Guarded(r, n, {"events": [events[r]]}) for r, n in enumerate(placed)]
                state, found = judged(state, launch, report)
                return state, found, step, (launch, step, equal[-cycle:])
        else:
            verified[turn] = step
            equal.append((step, mixed(truth, step, noise)))
        if any(own):
            truth = mixed(truth, tuple(own))  # through the averaged gradients of the next step
        if doubt is not None:
            _, doubtful, before = doubt  # type: ignore[misc]
            expected = dict(before)
            if step in expected and step > start:
                same = [same[0] + (mixed(truth, step, noise) == expected[step]), same[1] + 1]
            if step == doubtful:
                digest = mixed(truth, step, noise, "")
            if step == doubtful + 1 and not events:
                record = {"repeated": {"step": doubtful, "digest": digest, "same": same}}
                report = [Guarded(r, n, record) for r, n in enumerate(placed)]
                state, found = judged(state, launch, report)
                if found:
                    return state, found, step, None
                doubt = None
        if events and case.product and step > min(int(e["step"]) for e in events.values()) + 10:  # type: ignore[call-overload]
            report = [Guarded(r, n, {"events": [events[r]] if r in events else []}) for r, n in enumerate(placed)]
            state, found = judged(state, launch, report)
            first = min(int(e["step"]) for e in events.values())  # type: ignore[call-overload]
            return state, found, step, (launch, first, [])
    return state, [], STEPS, None


def event(kind: str, ranks: tuple[int, ...], step: int, clean: int, **more: object) -> dict[str, object]:
    base = {"kind": kind, "item": "w", "words": "w differs", "step": step, "ranks": ranks, "clean": clean}
    return {**base, "majority": True, "digests": (), **more}


def judged(state: SilentState, launch: int, report: list[Guarded]) -> tuple[SilentState, list[Found]]:
    found: list[Found] = []
    for _ in range(PATIENCE + 2):
        state, some = watch(state, launch, report)
        found += some
    return state, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    args = parser.parse_args()
    totals = Counter()
    print(
        f"{'cause':28} {'cases':>5} {'named':>6} {'falsely':>8} {'software':>9} {'open':>5} {'seen':>5} "
        f"{'steps lost':>11}"
    )
    for causes in (NODES, SOFTWARE):
        for number, cause in enumerate(causes):
            rows = []
            for seed in range(number, args.cases, len(causes)):
                product = cause == "all products" or (cause not in ("all drift", "nondeterministic") and seed % 3 == 2)
                case = Case(cause, product, seed)
                rows.append((case, *run(case)))
            named = sum(names == {case.bad} and causes is NODES for case, names, *_ in rows)
            falsely = sum(bool(names - ({case.bad} if causes is NODES else set())) for case, names, *_ in rows)
            kinds = Counter(what for *_, findings, _, _ in rows for what in findings)
            lost = sorted(steps for *_, steps, _ in rows)[len(rows) // 2]
            seen = sum(bool(findings) for *_, findings, _, _ in rows)
            print(
                f"{cause:28} {len(rows):>5} {named:>6} {falsely:>8} {kinds[Silent.SOFTWARE]:>9} "
                f"{kinds[Silent.OPEN]:>5} {seen:>5} {lost:>11}"
            )
            totals.update(cases=len(rows), named=named, falsely=falsely)
    print(f"all: {totals['cases']} cases, {totals['named']} nodes named, {totals['falsely']} falsely")


if __name__ == "__main__":
    main()

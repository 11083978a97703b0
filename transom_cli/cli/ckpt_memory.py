"""Snapshots in the nodes' memory, as `transom ckpt` shows them.

For a run, they are read from files that the snapshot daemons have written. For a plain directory, this machine's daemon
is asked. To verify a snapshot, the daemons read it themselves, so one of them must be reachable.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transom_cli.layout import AttemptDir, RunDir
from transom_cli.plural import several
from transom_cli.view.text import size, span

if TYPE_CHECKING:
    from transom_cli.ckpt.snapshot.account import InMemory
    from transom_cli.ckpt.snapshot.verify import Checked


@dataclass(frozen=True)
class Seen:
    steps: list[InMemory] = field(default_factory=list)
    age: float = 0.0  # seconds since the oldest word of those that count
    silent: dict[str, str] = field(default_factory=dict)  # by node why nothing of it counts
    unread: str = ""  # why nothing was read again
    checked: dict[int, Checked | str] = field(default_factory=dict)  # by step what came out, or why nothing did

    @property
    def good(self) -> bool:
        """Whether a step was found that can be had, all of it."""
        from transom_cli.ckpt.snapshot.verify import DAMAGED, GOOD

        return any(not isinstance(one, str) and one.state in (GOOD, DAMAGED) for one in self.checked.values())


def seen(run: RunDir | None, directory: Path) -> Seen:
    """What is in memory of the training that checkpoints into `directory`."""
    from transom_cli.ckpt.snapshot.query import open_query
    from transom_cli.rpc.errors import RpcError

    attempt = _attempt(run)
    if run is not None:
        return Seen() if attempt is None else _shown(attempt, directory)
    try:
        query = open_query(directory, None)
        if query is None:
            return Seen()
        with query:
            return _asked(query)
    except RpcError:  # it has ended meanwhile
        return Seen()


def checked(run: RunDir | None, directory: Path, step: int | None) -> Seen:
    """The same, and all of it (or that step alone) read again by the nodes; `unread` says why it was not."""
    from transom_cli.ckpt.snapshot.query import open_query
    from transom_cli.rpc.errors import RpcError

    attempt = _attempt(run)
    if run is not None and attempt is None:
        return Seen()
    try:
        query = open_query(directory, attempt)
        if query is None:
            return _unreached(run, attempt, directory, step)
        with query:
            found = _asked(query)
            steps = [one for one in found.steps if step in (None, one.step)]
            results: dict[int, Checked | str] = {}
            for number in dict.fromkeys(one.step for one in steps):
                try:
                    results[number] = query.check(number)
                except RpcError as error:
                    results[number] = error.what
    except RpcError:
        return Seen()
    return Seen(steps, 0.0, found.silent, "", results)


def rows(found: Seen) -> list[tuple[int, tuple[str, ...]]]:
    """For the table of checkpoints: step, and its cells."""
    return [
        (
            one.step,
            (str(one.step), size(one.size), str(one.world_size), one.attempt, one.created, _state(found, one)),
        )
        for one in found.steps
    ]


def notes(found: Seen) -> list[str]:
    """What is to be said beside the table."""
    lines = []
    if found.steps and found.age:
        lines.append(f"memory as the nodes reported it at most {span(found.age)} ago")
    lines += [f"{node}: {why}; what it holds is not counted" for node, why in sorted(found.silent.items())]
    if found.steps and found.unread:
        lines.append(found.unread)
    for step, one in found.checked.items():
        if not isinstance(one, str):
            lines += [f"step {step}, {words}" for words in (*one.damage, *one.untried)]
    return lines


def as_json(found: Seen) -> dict[str, Any]:
    """Nothing where nothing is in memory."""
    if not found.steps and not found.silent:
        return {}
    steps = []
    for one in found.steps:
        document = {key: value for key, value in asdict(one).items() if key not in ("nodes", "of")}
        document |= {"nodes": list(one.nodes), "nodes_of": one.of, "age": _age(one)}
        result = found.checked.get(one.step)
        if result is not None:
            document["checked"] = {"error": result} if isinstance(result, str) else asdict(result)
        steps.append(document)
    about = {"steps": steps, "as_of": found.age, "silent": found.silent}
    return {"memory": {**about, **({"unread": found.unread} if found.unread else {})}}


def _attempt(run: RunDir | None) -> AttemptDir | None:
    from transom_cli.ckpt.snapshot.status_file import newest_attempt

    return None if run is None else newest_attempt(run.attempts)


def _asked(query: Any) -> Seen:
    from transom_cli.ckpt.snapshot.account import together

    accounts, silent = query.accounts()
    return Seen(together(accounts), 0.0, {node: f"no answer ({why})" for node, why in silent.items()})


def _shown(attempt: AttemptDir, directory: Path) -> Seen:
    from transom_cli.ckpt.snapshot.account import together
    from transom_cli.ckpt.snapshot.status_file import read

    sight = read(attempt, directory, time.time())
    silent = {node: f"no sign of life for {span(age)}" for node, age in sight.silent.items()}
    return Seen(together(sight.accounts), sight.age, silent)


def _unreached(run: RunDir | None, attempt: AttemptDir | None, directory: Path, step: int | None) -> Seen:
    if run is None or attempt is None:
        return Seen()
    found = _shown(attempt, directory)
    steps = [one for one in found.steps if step in (None, one.step)]
    if not steps:
        return Seen()
    job, _, _ = attempt.name.partition(".")
    only = "" if step is None else f" --step {step}"
    there = (
        f"srun --jobid {job} --overlap -N1 -n1 -w {steps[0].nodes[0]} transom ckpt verify {shlex.quote(str(run.path))}"
    )
    words = f"what is in memory was not read: no node can be reached from here. Run this there: {there}{only}"
    return Seen(steps, found.age, found.silent, words)


def _state(found: Seen, one: InMemory) -> str:
    result = found.checked.get(one.step)
    doing = "".join(f"; {use}" for use in one.uses if use not in one.protection)
    if result is None:
        age = _age(one)
        old = f", {span(age)} old" if age is not None else ""
        return f"in {one.where}{old}; {one.protection}{doing}" + ("; not read" if found.unread else "")
    return f"in memory: {result if isinstance(result, str) else _result(result)}"


def _result(result: Checked) -> str:
    from transom_cli.ckpt.snapshot.verify import DAMAGED, GIVEN_UP, LOST

    if result.state == GIVEN_UP:
        return "given up for a newer step meanwhile"
    read = f"{result.shares} of {several(result.of, 'share')}"
    read += f", {several(result.rows, 'row')} of parity" if result.rows else ""
    if result.state == LOST:
        return f"bad: {result.damage[-1]}"
    return f"damaged, but all of it can be had; good: {read}" if result.state == DAMAGED else f"good: {read}"


def _age(one: InMemory) -> float | None:
    """Seconds since the commit, by clocks of two machines."""
    at = one.committed
    return None if at is None else max(0.0, time.time() - at)

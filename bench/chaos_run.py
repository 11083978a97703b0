"""One chaos run: train, inject the planned faults, wait for the end, and collect the judge's readings."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos_trainer
from chaos_faults import SMALL_MB, Hand, NotNow, Place, standbys_ready
from chaos_judge import Made, Readings, Violation, judge, lost_nodes
from chaos_plan import DISK, Injection, Plan
from chaos_watch import Watch
from harness import GPT, Bench, BenchError, LiveRun, Result, Training

from transom_cli.errors import TransomError
from transom_cli.sandbox import faults

INTERRUPTED = threading.Event()  # the runs that go on end at once, tidily
TURN = 0.1
PATIENCE = 240.0  # seconds for a run, besides those that its faults last
NO_RECOVERY = 12.0  # seconds after the first fault, when nobody saw a sign of trouble
UNNOTICED = 130.0  # seconds after a story's last fault without a sign of trouble, before the next story begins
NOT_READY = 40.0  # seconds in which the training steps without standbys, before the next story begins all the same
STAYS_DEAD = 3.0  # seconds without an operator that nobody killed


class NotSubmitted(BenchError):
    """No fault has been made yet."""


@dataclass
class Story:
    """What happened when, in seconds since the submission, to find causes."""

    began: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)
    lines: list[str] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def tell(self, words: str) -> None:
        self.lines.append(f"{self.now:7.2f} {words}")


class ChaosRun:
    def __init__(self, bench: Bench, run: LiveRun, place: Place, plan: Plan, story: Story) -> None:
        self._run, self._plan, self._story = run, plan, story
        self.watch = Watch(bench, run, place)
        self._hand = Hand(bench, run, place)
        self._waiting = list(plan.injections)
        self._undos: list[tuple[float, str, Callable[[], object]]] = []
        self._first = self._latest = self._recovery = float("inf")
        self._reached: dict[Injection, float] = {}  # when the step was seen
        self._steady = float("inf")  # since when the training steps, before a story begins
        self._calm = 0  # signs of trouble before the first fault
        self._lost_since: float | None = None
        self._operator_lost = ""
        lasting = sum(x.lasting or 0.0 for x in plan.injections)
        self.bound = PATIENCE + lasting + (150.0 if plan.options else 30.0) * len(plan.injections)

    def go_through(self) -> None:
        """Wait until the run is over and all faults are undone, or its time is up."""
        try:
            while self._story.now < self.bound:
                if INTERRUPTED.is_set():
                    raise KeyboardInterrupt
                self.watch.look()
                over = self._run.state.phase.over
                if over and not self._hand.operator_away:
                    break
                self._make_faults()
                self._undo(self._story.now)
                self._look_for_the_operator(over)
                time.sleep(TURN)
        finally:
            self._undo(float("inf"))
            self._hand.stop_attaching()
        self._story.tell(f"over: {self._run.state.phase.value}")
        for fault in self._waiting:
            self._story.tell(f"never came to it: {fault.words}")

    def readings(self, wanted: Result) -> Readings:
        state, taken = self._run.state, lost_nodes(Readings(tuple(self._story.made), 0, 0, "", None, "", ""))
        unended = self.watch.unended() if state.phase.over else ()
        with contextlib.suppress(BenchError):
            return dataclasses.replace(self._read(state, taken, unended, wanted), sha256=self._sha256())
        return self._read(state, taken, unended, wanted)

    def _sha256(self) -> str:
        return Result.read(self._run.result_path).sha256

    def _read(self, state: Any, taken: Collection[str], unended: tuple[str, ...], wanted: Result) -> Readings:
        over = state.phase.over
        return Readings(
            made=tuple(self._story.made),
            took=round(self._story.now, 1),
            bound=self.bound,
            phase=state.phase.value,
            exit_code=state.exit_code if over else None,
            verdict=state.verdict,
            wanted=wanted.sha256,
            newest=tuple(self.watch.newest),
            damaged=self.watch.damaged(),
            resumed=self.watch.resumed(),
            drained=self.watch.drained(),
            left=self.watch.left(taken) if over and not unended else (),
            unended=unended,
            operators=self.watch.operators() if over else (),
            operator_lost=self._operator_lost,
            unexplained=self.watch.unexplained() if self._plan.options else (),
            together=tuple(sorted(self.watch.together)),
            said=self.watch.said(self._story.wall) if self._plan.options else (),
        )

    # --- faults ---

    def _make_faults(self) -> None:
        if self._signs() > self._calm:
            if self._first < float("inf"):
                self._recovery = min(self._recovery, self._story.now)
            else:
                self._calm = self._signs()
        one_by_one = bool(self._plan.options)
        for place, fault in enumerate(self._waiting[:1] if one_by_one else list(self._waiting)):
            if self._due(fault, first_waiting=place == 0):
                self._waiting.remove(fault)
                self._make(fault)
                return

    def _due(self, fault: Injection, *, first_waiting: bool) -> bool:
        moment, now = fault.moment, self._story.now
        if moment.after == "start":
            return now >= moment.seconds
        if moment.after == "step":
            return self._step() >= moment.step and self._settled(fault, now, moment.seconds)
        if moment.after in ("steady", "ready"):
            return self._is_steady(fault, now) and self._settled(fault, now, moment.seconds)
        if moment.after == "fault":
            return first_waiting and now >= self._latest + moment.seconds
        return now >= min(self._recovery, self._first + NO_RECOVERY) + moment.seconds

    def _is_steady(self, fault: Injection, now: float) -> bool:
        """Whether the training has recovered from the story before, and the standbys that this one needs are ready."""
        state = self._run.state
        seen = self._latest == float("inf") or self._signs() > self._calm or now > self._latest + UNNOTICED
        if not seen or state.incident is not None or state.progress.step < 0 or not self.watch.recovered():
            self._steady = float("inf")
            self._reached.pop(fault, None)
            return False
        self._steady = min(self._steady, now)
        if fault.moment.after == "steady" or fault in self._reached or now > self._steady + NOT_READY:
            return True
        return standbys_ready(self._run.bench.sandbox, state.job.id, self.watch.launch + 1)

    def _settled(self, fault: Injection, now: float, seconds: float) -> bool:
        since = self._reached.setdefault(fault, now)
        return now >= since + seconds

    def _step(self) -> int:
        return self._run.view.step

    def _signs(self) -> int:
        """Count the incidents that the operator and the launchers have reported."""
        state = self._run.state
        count = len(state.incidents) + (state.incident is not None)
        for journal in self._run.dir.attempts.glob("*/launcher.jsonl"):
            count += journal.read_text(errors="replace").count('"what": "seen"')
        return count

    def _make(self, fault: Injection) -> None:
        if not self._waiting:
            chaos_trainer.hurry(self._run.result_path).touch()
        if fault.moment.after in ("steady", "ready"):
            self._first = self._latest = self._recovery = float("inf")
            self._calm = self._signs()
        try:
            target, node, undo = self._hand.make(fault)
        except NotNow as missing:
            self._story.tell(f"not made: {fault.words}: {missing}")
            return
        at = self._story.now
        self._story.made.append(Made(fault.kind, target, round(at, 2), node, fault.story))
        self._story.tell(f"{fault.kind} of {target}" + (f" ({fault.amount:g})" if fault.amount else ""))
        self._first, self._latest = min(self._first, at), at
        if fault.lasting is not None:
            self._undos.append((at + fault.lasting, f"{fault.kind} of {target}", undo))

    def _undo(self, now: float) -> None:
        """What is gone meanwhile needs no undoing."""
        for due in [x for x in self._undos if x[0] <= now]:
            self._undos.remove(due)
            try:
                due[2]()
                self._story.tell(f"undone: {due[1]}")
            except TransomError as error:
                self._story.tell(f"not undone: {due[1]}: {error.what}")

    def _look_for_the_operator(self, over: bool) -> None:
        self._hand.keep_attaching()
        if over or self._hand.operator_away or self._hand.operator_lives():
            self._lost_since = None
            return
        self._lost_since = self._lost_since or self._story.now
        if self._story.now - self._lost_since > STAYS_DEAD:
            log = self._run.dir.operator_log.read_text(errors="replace").strip().splitlines()
            self._operator_lost = self._operator_lost or " / ".join(log[-3:])
            self._story.tell("the operator has ended by itself")
            self._hand.operator_away = True
            self._hand.attach()


@contextlib.contextmanager
def disk_of_its_own(bench: Bench, kinds: Collection[str]) -> Iterator[Place]:
    """The folder of runs on a small disk, shared, if faults of disks can be made."""
    bench.runs.mkdir(exist_ok=True)
    possible = DISK.intersection(kinds)
    if possible:
        faults.small_disk(bench.sandbox, bench.runs, SMALL_MB)
    descriptor = os.open(bench.runs, os.O_PATH | os.O_DIRECTORY)
    try:
        if possible:
            faults.share_disk(bench.sandbox, bench.runs)
        yield Place(bench.runs, Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def keep(folder: Path, run: LiveRun, watch: Watch, row: dict[str, Any]) -> None:
    """What is needed to find out why: the run's files but for the bulk of its checkpoints, and Slurm's logs."""
    folder.mkdir(parents=True)
    (folder / "chaos.json").write_text(json.dumps(row, indent=1) + "\n")
    (folder / "slurmctld.log").write_text(watch.controller_log())
    bulk = shutil.ignore_patterns("*.distcp", ".transom-ballast")
    with contextlib.suppress(shutil.Error, OSError):  # what vanished meanwhile
        shutil.copytree(run.dir.path, folder / "run", ignore=bulk, symlinks=True)
    for log in (run.bench.sandbox.dir / "log").glob("slurmd-*.log"):
        shutil.copy(log, folder)


def one_run(bench: Bench, plan: Plan, kinds: Collection[str], training: Training, wanted: Result) -> dict[str, Any]:
    """The row of this run: its plan, its story, what was seen, and what was violated."""
    name = f"chaos{plan.seed.partition('/')[2]}"
    row: dict[str, Any] = {
        "seed": plan.seed,
        "spares": plan.spares,
        "plan": [x.words for x in plan.injections],
        "violations": [],
    }
    with disk_of_its_own(bench, kinds) as place:
        trainer = Path(chaos_trainer.__file__) if plan.options else GPT / "train.py"
        try:
            made = bench.train(name, training, plan.spares, plan.options, trainer)
        except BenchError as error:
            raise NotSubmitted(error.what, error.why) from error
        run = dataclasses.replace(made, dir=place.run_below(made.name))
        story = Story()
        chaos = ChaosRun(bench, run, place, plan, story)
        chaos.go_through()
        seen = chaos.readings(wanted)
        found: tuple[Violation, ...] = judge(seen)
        row |= {"story": story.lines, "seen": dataclasses.asdict(seen), "took": round(story.now, 1)}
        row["violations"] = [dataclasses.asdict(x) for x in found]
        if found:
            folder = bench.dir / "kept" / name
            keep(folder, run, chaos.watch, row)
            row["kept"] = str(folder)
    return row

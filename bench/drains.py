"""No healthy node is drained or excluded, and a faulty one is isolated: generated situations on a real Slurm.

    python bench/drains.py [--faulty] [--from 0] [--runs 60] [--results FILE] [--only N,N] [--profile NAME] [--plan]

Situation n of a seed is always the same: a profile of the cluster, an event, a moment and a node (`drain_plan`). Each
trains a small program on three of six nodes. In a blameless situation no node may be drained or excluded, and the run
must end as its event demands. With --faulty, the node of the situation must be isolated, and no other.

Each result is a line of JSON in --results. Situations that have one are not repeated, so a campaign can be interrupted,
continued and split (--from, --runs). Exit code 1 if something did not hold; the evidence is kept and named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from chaos_faults import NotNow, Place
from chaos_run import disk_of_its_own
from drain_events import GPUS, Hardware, Scene, nothing
from drain_plan import MOMENTS, PROFILES, SITES, Situation, situation
from harness import Bench, BenchError, LiveRun, progress, run_bench

from transom_cli.core.operator.state import State
from transom_cli.errors import NotPermitted, TransomError
from transom_cli.sandbox import faults
from transom_cli.view.read import read_view

ROOT = Path(__file__).resolve().parents[1]
TRAINER = ROOT / "tests" / "e2e" / "trainer.py"
NODES = 6
PATIENCE = 330.0  # seconds for a run; where nobody may change a job's start, Slurm waits two minutes
EVENT = 60.0  # seconds in which the event must become possible
_DRAINED = re.compile(r"update_node: node (\S+) reason set to: transom")


class DrainBench(Bench):
    def __init__(self, profile: str) -> None:
        sites = () if profile in PROFILES else tuple(profile.split("+"))
        super().__init__(nodes=NODES, profiles=sites)
        scripts = self.dir / "scripts"
        scripts.mkdir()
        for name, text in (
            ("prolog", "echo noise; echo noise >&2; sleep 2"),
            ("noise", "echo print noise; echo noise"),
        ):
            (scripts / name).write_text(f"#!/bin/sh\n{text}\n")
            (scripts / name).chmod(0o755)
        extra = {key: value.replace("SCRIPTS", str(scripts)) for key, value in PROFILES.get(profile, {}).items()}
        self._spec = replace(self._spec, gpus_per_node=GPUS, extra={**self._spec.extra, **extra})
        self.more: dict[str, str] = {}

    def __enter__(self) -> DrainBench:
        super().__enter__()
        with contextlib.suppress(NotPermitted):
            self.more |= faults.clock_env(self.sandbox)
        self.hardware = Hardware(self.dir, self.sandbox.node_names)
        if "purging" in self._spec.site:
            self.runs = self.sandbox.dir / "scratch" / "runs"
        self.home_of_runs = self.runs
        return self

    @property
    def env(self) -> dict[str, str]:
        hardware = self.hardware.env if hasattr(self, "hardware") else {}
        return {**super().env, **self.more, **hardware, "TRANSOM_HEALTH__PROBE": "false"}

    def start(self, what: Situation) -> LiveRun:
        words = [str(TRAINER), "--steps", str(what.steps)]
        options = ("--tasks-per-node", "1", "--set", f"job.gpus_per_node={GPUS}", "--set", "health.every=5",
                   "--set", "detect.first_step=60")  # fmt: skip
        return self.submit(what.name, words, what.spares, options)


def play(bench: DrainBench, what: Situation) -> dict[str, Any]:
    """Run one situation to its end, and judge it."""
    bench.hardware.mend()
    # exclusions end with their situation: the history of nodes would carry them to the next run
    shutil.rmtree(bench.env["TRANSOM_STATE_DIR"], ignore_errors=True)
    bench.runs = bench.home_of_runs
    needs_disk = what.event.startswith("disk-") and not what.faulty
    with own_disk(bench) if needs_disk else contextlib.nullcontext(Place(bench.runs, bench.runs)) as place:
        began, log_from = time.monotonic(), len(bench.controller_log())
        run = bench.start(what)
        live = LiveRun(bench, place.run_below(run.name), run.result_path)
        scene = Scene(bench, live, place, bench.hardware, what)
        story = [f"{time.monotonic() - began:.1f} submitted"]

        def note(words: str) -> None:
            story.append(f"{time.monotonic() - began:.1f} {words}")

        undo, undo_at, made = nothing, float("inf"), ""
        first = due = float("inf")
        try:
            while time.monotonic() - began < PATIENCE + what.lasting:
                now, state = time.monotonic(), live.state
                if state.phase.over and undo_at == float("inf"):
                    break
                if what.moment == "recovery" and first == float("inf") and _step(live) >= 6:
                    with contextlib.suppress(TransomError):
                        faults.kill_rank(bench.sandbox, state.job.id, 0)
                        first = now
                        note("rank 0 killed first")
                if not made and due == float("inf") and _reached(what, live, state, first):
                    due = now
                if not made and due <= now:
                    try:
                        undo = scene.make()
                        made = what.event
                        note(f"{what.event} ({scene.target})")
                        undo_at = now + what.lasting if what.lasting else float("inf")
                    except NotNow as missing:
                        if now - due > EVENT:
                            made = f"never: {missing}"
                            note(made)
                if now >= undo_at:
                    undo_at = float("inf")
                    with contextlib.suppress(TransomError):
                        undo()
                    note("undone")
                scene.hand.keep_attaching()
                time.sleep(0.2)
        finally:
            if undo_at < float("inf"):
                with contextlib.suppress(TransomError):
                    undo()
            scene.hand.stop_attaching()
        row = judge(scene, bench.controller_log()[log_from:], made)
        row |= {"took": round(time.monotonic() - began, 1), "story": story}
        if row["violations"]:
            kept = Path("/tmp/tdrains") / f"{what.name}-{int(time.time())}"
            kept.mkdir(parents=True)
            with contextlib.suppress(OSError):
                shutil.copytree(live.dir.path, kept / "run", symlinks=True)
                (kept / "slurmctld.log").write_text(bench.controller_log()[log_from:])
            row["kept"] = str(kept)
        return row


def _step(run: LiveRun) -> int:
    return read_view(run.dir).step


def _reached(what: Situation, run: LiveRun, state: State, first: float) -> bool:
    running = state.job.state == "RUNNING"
    return {
        "pending": bool(state.job.id),
        "starting": running,
        "step": running and _step(run) >= 8,
        "recovery": first < float("inf") and (state.incident is not None or time.monotonic() - first > 8.0),
        "ending": running and _step(run) >= what.steps - 15,
    }[what.moment]


def judge(scene: Scene, log: str, made: str) -> dict[str, Any]:
    """What was isolated, and what is wrong with that."""
    what, state = scene.what, scene.run.state
    incidents = (*state.incidents, *([state.incident] if state.incident else []))
    drained = sorted(set(_DRAINED.findall(log)))
    excluded = {x.node: x for x in state.isolation.exclusions}
    swapped = sorted({n for path in scene.run.dir.attempts.glob("*/launcher.jsonl") for n in _swapped(path)})
    bad = [f"{node} was drained" for node in drained]
    bad += [
        f"{x.node} is excluded {'for good' if x.until is None else 'for a while'}: {x.reason}"
        for x in excluded.values()
    ]
    if what.faulty:
        isolated = {*drained, *excluded, *swapped}
        bad = [f"{scene.target or 'the faulty node'} was not isolated"] if scene.target not in isolated else []
        bad += [f"{node} was isolated, and it is healthy" for node in sorted({*drained, *excluded} - {scene.target})]
    ended = state.phase.value
    if ended not in scene.expected:
        bad.append(f"the run is {ended}: {state.verdict}")
    if not made or made.startswith("never"):
        bad.append(f"nothing happened: {made}")
    marks = [f"{i.id} {m.what}: {m.words}" for i in incidents for m in i.marks]
    return {
        **asdict(what), "drained": drained, "excluded": sorted(excluded), "swapped": swapped,
        "target_node": scene.target,
        "phase": ended, "verdict": state.verdict, "starts": state.job.starts, "violations": bad, "marks": marks[-40:],
    }  # fmt: skip


def _swapped(journal: Path) -> Iterator[str]:
    for line in journal.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError, KeyError, AttributeError):
            record = json.loads(line)
            if record.get("type") == "recovery" and record.get("what") == "swapped":
                yield from record["nodes"]


@contextlib.contextmanager
def own_disk(bench: DrainBench) -> Iterator[Place]:
    bench.runs = bench.dir / "disk"
    with disk_of_its_own(bench, ("disk-full", "disk-readonly", "disk-stall")) as place:
        yield place


def line(row: dict[str, Any]) -> str:
    words = f"{row['name']} [{row['profile']}] {row['event']} at {row['moment']}: {row['phase']}, {row['took']:.0f} s"
    isolated = f", drained {row['drained'] or '-'}, excluded {row['excluded'] or '-'}, swapped {row['swapped'] or '-'}"
    return (
        words
        + isolated
        + "".join(f"\n    WRONG {x}" for x in row["violations"])
        + (f"\n    {row['kept']}" if "kept" in row else "")
    )


def totals(rows: Iterable[dict[str, Any]]) -> str:
    rows = list(rows)
    wrong = sum(bool(r["violations"]) for r in rows)
    drains, kept = (sum(len(r[k]) for r in rows) for k in ("drained", "excluded"))
    profiles = ", ".join(f"{name} {count}" for name, count in sorted(Counter(r["profile"] for r in rows).items()))
    return f"{len(rows)} situations ({profiles}): {drains} drains, {kept} exclusions; in {wrong} something did not hold"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faulty", action="store_true", help="situations in which a node is at fault")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first situation [0]")
    parser.add_argument("--runs", type=int, default=60, help="[60]")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="", help="these numbers instead, separated by commas")
    parser.add_argument("--profile", default="", choices=("", *PROFILES, *SITES), help="only its situations")
    parser.add_argument("--results", type=Path, default=Path(".test-results/drains.jsonl"))
    parser.add_argument("--plan", action="store_true", help="list the situations, and run nothing")
    args = parser.parse_args()
    numbers = [int(n) for n in args.only.split(",")] if args.only else range(args.first, args.first + args.runs)
    wanted = [situation(n, faulty=args.faulty, seed=args.seed) for n in numbers]
    wanted = [s for s in wanted if args.profile in ("", s.profile)]
    if args.plan:
        print("\n".join(s.words for s in wanted))
        return 0
    args.results.parent.mkdir(parents=True, exist_ok=True)
    known = [json.loads(text) for text in args.results.read_text().splitlines()] if args.results.exists() else []
    rows = [r for r in known if any(r["name"] == s.name for s in wanted) and not args.only]
    left = sorted((s for s in wanted if all(r["name"] != s.name for r in rows)), key=lambda s: s.profile)
    for profile, group in groupby(left, key=lambda s: s.profile):
        queue = list(group)
        while queue:
            with DrainBench(profile) as bench:
                while queue:
                    what = queue.pop(0)
                    try:
                        row = play(bench, what)
                    except TransomError as error:
                        progress(f"{what.words}: the bench failed: {error.what}: {error.why}")
                        break
                    rows.append(row)
                    with args.results.open("a") as out:
                        out.write(json.dumps(row) + "\n")
                    progress(line(row))
                    try:
                        bench.heal()
                    except TransomError as error:
                        progress(f"a new sandbox: {error.what}: {error.why}")
                        break
    print(totals(rows))
    print("\n".join(line(row) for row in rows if row["violations"]), file=sys.stderr)
    if any(row["violations"] for row in rows) or len(rows) < len(wanted):
        raise BenchError("Something did not hold")
    return 0


assert set(MOMENTS) == {"pending", "starting", "step", "recovery", "ending"}
if __name__ == "__main__":
    run_bench(main)

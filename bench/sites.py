"""Does a run survive a node's death on every site profile, with the same result, bit for bit?

    python bench/sites.py [--sites all] [--json]

For each profile, or combination joined with `+`: a sandbox like such a site, in which the example GPT trains on 2 of 3
nodes. After a checkpoint one node dies, with everything on it. The run must end with the state of an undisturbed run on
a plain sandbox. The run belongs to the user who started this; tests/e2e/test_site_profiles.py acts as an ordinary user.
Profiles that this machine cannot have are listed with the reason. Exit code 1 if a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import Bench, BenchError, Result, Training, progress, reference, run_bench, shared_python, surroundings

from transom_cli.errors import TransomError
from transom_cli.sandbox import faults, sites

TRAINING = Training(steps=40, every=5, delay=0.1)
FAULT_STEP = 13  # between two checkpoints
OPTIONS = ("-N", "2", "--set", "health.probe=false")
PATIENCE = 420.0
NOBODY = 65534


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default="all", help=f"of {', '.join(sites.SITES)}; a,b+c [all]")
    parser.add_argument("--wanted", default="", help="JSON of the undisturbed result, to spare that run")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser.parse_args()


def survive(names: tuple[str, ...], wanted: Result) -> dict[str, Any]:
    began = time.monotonic()
    with Bench(nodes=3, profiles=names, as_root=False) as bench:
        if "purging" in names:
            bench.runs = bench.sandbox.dir / "scratch" / "runs"
        run = bench.train("site", TRAINING, options=OPTIONS)
        run.wait_step(FAULT_STEP, PATIENCE)
        state = run.state
        victim = [node for node in state.job.nodes if node != state.job.batch_host][-1]
        killed = time.monotonic()
        faults.kill_node(bench.sandbox, victim)
        result = run.wait_done(PATIENCE)
        drained = [node.name for node in bench.sandbox.nodes() if node.state.startswith("drain")]
        view = run.view
        return {
            "ok": result == wanted, "victim": victim, "starts": view.starts, "incidents": len(view.incidents),
            "excluded": [entry[0] for entry in view.excluded], "drained": drained,
            "after_fault_s": round(time.monotonic() - killed, 1), "took_s": round(time.monotonic() - began, 1),
        }  # fmt: skip


def as_nobody(names: tuple[str, ...], wanted: Result) -> dict[str, Any]:
    """For the profile `non-root`: this bench again, as an ordinary user of the machine."""
    with tempfile.TemporaryDirectory(prefix="tbench-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        home = Path(folder, "home")
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        words = [shared_python(Path(folder, "python")), __file__, "--sites", "+".join(names), "--json"]
        done = subprocess.run(
            [*words, "--wanted", json.dumps(vars(wanted))], cwd=home, env={**os.environ, "HOME": str(home)},
            stdout=subprocess.PIPE, text=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[],
        )  # fmt: skip
    try:
        return dict(json.loads(done.stdout)["rows"][0])
    except (ValueError, LookupError) as error:
        raise BenchError(f"The bench as an ordinary user ended with exit code {done.returncode}") from error


def row(names: tuple[str, ...], wanted: Result) -> dict[str, Any]:
    again = "non-root" in names and os.geteuid() == 0
    reason = "" if again else sites.why_not(names)
    about = {"site": "+".join(names)}
    if reason:
        return {**about, "skipped": reason}
    try:
        return {**about, **(as_nobody if again else survive)(names, wanted)}
    except TransomError as error:
        return {**about, "ok": False, "error": f"{error.what}: {error.why}"}


def line(row: dict[str, Any]) -> str:
    head = f"{row['site']:<24} "
    if "skipped" in row:
        return f"{head}not on this machine: {row['skipped']}"
    if "error" in row:
        return f"{head}FAILED: {row['error']}"
    isolated = f"drained {', '.join(row['drained']) or 'none'}, excluded {', '.join(row['excluded']) or 'none'}"
    how = "bit-identical" if row["ok"] else "DIFFERENT"
    return f"{head}{how}; {row['starts']} restart, {isolated}; {row['after_fault_s']:.0f} s after the fault"


def main() -> int:
    args = arguments()
    chosen = list(sites.SITES) if args.sites == "all" else args.sites.split(",")
    wanted = Result(**json.loads(args.wanted)) if args.wanted else None
    if wanted is None:
        with Bench() as bench:
            wanted = reference(bench, TRAINING, OPTIONS)
    rows = []
    for names in chosen:
        rows.append(row(tuple(names.split("+")), wanted))
        progress(line(rows[-1]))
    if args.json:
        print(json.dumps({"schema": 1, "bench": "sites", "where": surroundings(), "rows": rows}))
    else:
        print("\n".join(map(line, rows)))
    bad = [one["site"] for one in rows if not one.get("ok", True)]
    if bad:
        raise BenchError(f"A run did not survive a node's death: {', '.join(bad)}")
    return 0


if __name__ == "__main__":
    run_bench(main)

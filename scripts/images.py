"""Make docs/images/*.png: the screens and reports of a run on a real Slurm on this machine (about six minutes).

    make images        or        .venv/bin/python scripts/images.py [FOLDER]

Eight nodes train the example GPT under `transom run`. While all is well, after a node's death and while Slurm holds
the job (a prolog fails on the node that took another dead one's place), the commands are typed into a real terminal,
and their screens and the reports are drawn. Needs Chromium and tmux.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from harness import GPT, Bench, LiveRun, progress, wait_for
from terminal_shot import Terminal

from transom_cli.errors import TransomError
from transom_cli.sandbox import faults

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE, PHONE = (1100, 1000), (390, 800)  # pixels
SCREEN = (100, 30)  # columns and rows of the live screen
NODES, IDLE = 8, 4
STEPS, HEALTHY, FAULT, GOES_ON = 600, 150, 210, 80  # steps
TRAIN = ["--steps", str(STEPS), "--every", "5", "--persist", "4", "--batch", "4", "--step-delay", "0.15"]


class Camera:
    def __init__(self, browser: str, bench: Bench, out: Path) -> None:
        self._browser, self._bench, self._out = browser, bench, out

    def screen(self, name: str, words: str, keys: tuple[str, ...] = (), see: str = "", rows: int = 0) -> None:
        """Save a command's screen after the keys, once it shows `see`. rows: height of the terminal; 0: default."""
        size = (SCREEN[0], rows or SCREEN[1])
        command = [sys.executable, "-m", "transom_cli", *words.split(), "--root", "runs"]
        with Terminal(command, self._bench.dir, self._bench.env, size) as terminal:
            terminal.wait("checkpoint")
            terminal.press(*keys)
            terminal.wait(see or "nodes")
            drawn = terminal.drawing(f"transom {words}")
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        assert box is not None
        source = self._bench.dir / f"{name}.svg"
        source.write_text(drawn)
        self._shoot(source, name, (round(float(box[1])), round(float(box[2]))))

    def report(self, name: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
        source = self._bench.dir / f"{name}.html"
        self._bench.transom("report", "--root", "runs", "-o", str(source))
        self._shoot(source, name, size, dark=dark)

    def _shoot(self, source: Path, name: str, size: tuple[int, int], *, dark: bool = False) -> None:
        target = self._out / f"{name}.png"
        command = [self._browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={self._bench.dir}/profile", f"--window-size={size[0]},{size[1]}"]
        command += [f"--blink-settings=preferredColorScheme={int(not dark)}", f"--screenshot={target}", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        progress(f"{target.name}: {target.stat().st_size / 1024:,.0f} KiB")


def kill_one(bench: Bench, run: LiveRun) -> str:
    """Kill a node with everything on it, but not the one with the batch script."""
    state = run.state
    node = [name for name in state.job.nodes if name != state.job.batch_host][-1]
    faults.kill_node(bench.sandbox, node)
    return node


def record(bench: Bench, camera: Camera, broken: Path) -> None:
    options = ("-N", str(NODES), "--set", "health.probe=false", "--set", f"steps={STEPS}")
    run = bench.submit("gpt", [str(GPT / "train.py"), *TRAIN], options=options)
    run.wait_step(HEALTHY, 240)
    progress("all is well")
    camera.screen("watch-healthy", "status --watch", ("a",))
    camera.screen("watch-plots", "status --watch", ("5",), "goodput, %")
    camera.report("report-healthy")

    run.wait_step(FAULT, 120)
    progress(f"{kill_one(bench, run)} dies")
    wait_for(lambda: run.view.status == "recovering", 60, "an incident")
    run.wait_step(FAULT + GOES_ON, 240)
    camera.screen("watch-incident", "status --watch", ("2", "Enter", *["PageDown"] * 6), "drained", rows=38)
    camera.report("report-incident")
    camera.report("report-incident-dark", dark=True)
    camera.report("report-incident-phone", PHONE, dark=True)

    for node in bench.sandbox.node_names:
        if node not in run.state.job.nodes:
            (broken / node).touch()
    progress(f"{kill_one(bench, run)} dies, and prologs fail on the idle nodes")
    wait_for(lambda: run.view.status == "held", 120, "a hold")
    camera.screen("watch-held", "status --watch", (), "HELD")
    camera.report("report-held")
    bench.transom("stop", "--yes", "--root", "runs")


def main() -> int:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None or shutil.which("tmux") is None:
        print("error: Chromium or tmux is not installed\n\nhint: apt-get install chromium tmux", file=sys.stderr)
        return 1
    out = Path(sys.argv[1]) if sys.argv[1:] else IMAGES
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        return follow(browser, Path(name), out)


def follow(browser: str, broken: Path, out: Path) -> int:
    """broken: a folder for the prolog, which fails on the nodes that have a file of their name there."""
    prolog = broken / "prolog"
    prolog.write_text(f'#!/bin/sh\ntest ! -e "{broken}/$SLURMD_NODENAME"\n')
    prolog.chmod(0o700)
    try:
        with Bench(nodes=NODES + IDLE, slurm_conf={"Prolog": str(prolog), "PrologFlags": "Alloc"}) as bench:
            record(bench, Camera(browser, bench, out), broken)
    except (TransomError, TimeoutError, subprocess.CalledProcessError) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

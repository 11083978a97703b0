"""One attempt's folders and wrapped ranks in them, as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from processes import as_slurmd_starts, wait_for

from transom_cli.heartbeat import record as rec
from transom_cli.layout import RunDir

__all__ = ["ROOT", "WRAPPER", "Place", "wait_for"]

ROOT = Path(__file__).parents[2]
WRAPPER = ROOT / "transom_cli" / "supervise" / "agent" / "rank_wrapper.py"


class Place:
    """One attempt's folders, and how to start a wrapped rank in them."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = RunDir(tmp_path / "a 'run'\n")
        self.attempt = self.run.attempt(12, 0)
        self.attempt.path.mkdir(parents=True)
        self.beats = tmp_path / "beats"
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, *command: str, flags: tuple[str, ...] = (), wrapper: tuple[str, ...] = (str(WRAPPER),), **env: str
    ) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_", "RANK", "PYTHONPATH"))}
        clean |= {"SLURM_PROCID": "3", "SLURM_NTASKS": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
        clean |= {"SLURM_TASKS_PER_NODE": "2(x2),1", "SLURMD_NODENAME": "nodeX", "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-I", "-S", *wrapper, "--attempt-dir", str(self.attempt.path), "--launch", "2"]
        words += ["--node-beats-dir", str(self.beats), *flags, "--", *command]
        pipe = subprocess.PIPE
        self.started.append(
            subprocess.Popen(
                words, env=clean | env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=as_slurmd_starts
            )
        )
        return self.started[-1]

    def python(self, code: str, **more: object) -> subprocess.Popen[str]:
        return self.start(sys.executable, "-c", code, **more)  # type: ignore[arg-type]

    def python_in(self, groups: str | None, code: str) -> subprocess.Popen[str]:
        """As `python`, where the wrapper reads of these control groups as its own; None: where it cannot read."""
        told = self.run.path / "cgroup"
        if groups is not None:
            told.write_text(groups)
        main = f"import sys; sys.path.append({str(ROOT)!r}); "
        main += "from transom_cli.supervise.agent import rank_wrapper as rank; "
        main += f"sys.exit(rank.main(sys.argv[1:], {str(told)!r}))"
        return self.start(sys.executable, "-c", code, wrapper=("-c", main))

    def exit(self, name: str = "rank-3") -> dict[str, object]:
        return dict(json.loads((self.attempt.exits(2) / f"{name}.json").read_text()))

    def record(self, rank: int = 3) -> rec.Record:
        found = rec.newest((self.beats / f"rank-{rank}").read_bytes())
        assert found is not None
        return found

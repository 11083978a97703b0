"""Runs `dcgmi diag` where it is installed: minutes on idle GPUs, for a node under suspicion."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from transom_cli.health.about import About
from transom_cli.health.gpu.dcgm import DcgmReading, parse_dcgm
from transom_cli.health.node.programs import known

LEVEL = "TRANSOM_DCGM_LEVEL"
SECONDS = 900.0  # a reading's deadline; level 2 takes 2.5 to 10 minutes
_PATIENCE = SECONDS - 30.0  # so that the diagnostic is ended by us, not left behind


def read_dcgm(about: About) -> DcgmReading:
    """Level 2 unless $TRANSOM_DCGM_LEVEL says 1 to 4. Not on a node that is shared: it would load others' GPUs."""
    program = shutil.which("dcgmi")
    if program is None:
        return DcgmReading(absent="dcgmi is not installed")
    present = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if about.gpus and present > about.gpus:
        return DcgmReading(absent=f"the job has {about.gpus} of the node's {present} GPUs")
    given = os.environ.get(LEVEL, "")
    level = int(given) if given in ("1", "2", "3", "4") else 2
    argv = [program, "diag", "-r", str(level), "-j"]
    try:
        said = _run(argv)
    except OSError as error:
        return DcgmReading(error=f"dcgmi: {error.strerror or error}", level=level)
    except subprocess.TimeoutExpired:
        return DcgmReading(error=f"dcgmi diag -r {level} has not ended within {_PATIENCE:.0f} s", level=level)
    return parse_dcgm(said, level)


def _run(argv: list[str]) -> str:
    """Standard output, whatever the exit code: a test that fails has one of its own."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:
        try:
            with known(child.pid):
                return child.communicate(timeout=_PATIENCE)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise

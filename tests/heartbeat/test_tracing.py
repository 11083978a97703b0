"""Which processes may read a rank's stack, where Yama permits only ancestors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Yama and the kernel, as the process would find them: what is asked of the kernel is printed.
KERNEL = """
import builtins, ctypes, io, os, runpy, sys
real, scope = builtins.open, os.environ["SCOPE"]

def opened(path, *more, **named):
    if path != "/proc/sys/kernel/yama/ptrace_scope":
        return real(path, *more, **named)
    if scope == "none":
        raise FileNotFoundError(2, "No such file or directory", path)
    return io.StringIO(scope + "\\n")

class Library:
    def __init__(self, name): pass
    def prctl(self, option, who, *rest):
        print(hex(option), who.value == 2 ** 64 - 1, rest)
        if "REFUSED" in os.environ: raise OSError(1, "Operation not permitted")

builtins.open, ctypes.CDLL = opened, Library
"""
ASKED = "0x59616d61 True (0, 0, 0)\n"
CLIENT = "from transom_cli import beat; beat(1); beat(2)"
START = f"runpy.run_path({str(ROOT / 'transom_cli/heartbeat/auto/sitecustomize.py')!r}, run_name='sitecustomize')"
START += "\n[one.find_spec('torch.optim.optimizer') for one in sys.meta_path if type(one).__name__ == '_Import']"


def said(code: str, scope: str, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_")) and k != "RANK"}
    clean |= {"PYTHONPATH": str(ROOT), "SCOPE": scope}
    words = [sys.executable, "-c", KERNEL + code]
    done = subprocess.run(words, env=clean | env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("code", [CLIENT, START], ids=["first beat", "import of torch"])
@pytest.mark.parametrize(("scope", "asked"), [("none", ""), ("0", ""), ("1", ASKED), ("2", "")])
def test_tracing_is_permitted_only_where_needed(tmp_path: Path, code: str, scope: str, asked: str) -> None:
    assert said(code, scope, TRANSOM_BEAT_DIR=str(tmp_path)) == asked


@pytest.mark.parametrize("code", [CLIENT, START], ids=["first beat", "import of torch"])
def test_tracing_stays_forbidden_outside_transom(code: str) -> None:
    assert said(code, "1") == ""


@pytest.mark.parametrize("code", [CLIENT, START], ids=["first beat", "import of torch"])
def test_failures_never_raise_into_the_trainer(tmp_path: Path, code: str) -> None:
    assert said(code + "\nprint('trained')", "1", TRANSOM_BEAT_DIR=str(tmp_path), REFUSED="1") == ASKED + "trained\n"

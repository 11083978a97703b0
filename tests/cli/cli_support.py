"""The command as a person types it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def transom(*words: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "transom_cli", *map(str, words)]
    return subprocess.run(program, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=50)

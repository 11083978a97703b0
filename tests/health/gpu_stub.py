"""A node with simulated GPUs: the stub library, and processes that load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nvml_stub
from nvml_stub import State

from transom_cli.core.codec import build, plain
from transom_cli.health.check import About
from transom_cli.health.gpu.reading import NvmlReading

ROOT = Path(__file__).resolve().parents[2]
_READ = """
import json, sys
from transom_cli.core.codec import build, plain
from transom_cli.health.check import About
from transom_cli.health.gpu.nvml import read_nvml
print(json.dumps(plain(read_nvml(build(About, json.loads(sys.argv[1]))))))
"""


@dataclass(frozen=True)
class StubNode:
    libraries: Path
    states: Path
    name: str = "login"

    def set(self, state: State) -> None:
        nvml_stub.write(self.states, self.name, state)

    def env(self) -> dict[str, str]:
        rest = {k: v for k, v in os.environ.items() if k != "SLURMD_NODENAME"}
        named = {} if self.name == "login" else {"SLURMD_NODENAME": self.name}
        return {**rest, **named, **nvml_stub.environment(self.libraries, self.states), "PYTHONPATH": str(ROOT)}

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """A Python program on the node; what it prints is to be read line by line."""
        argv = (sys.executable, *argv)
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self.env(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def read(self, about: About) -> NvmlReading:
        """As a child of its own, since a process loads one NVML only."""
        argv = [sys.executable, "-c", _READ, json.dumps(plain(about))]
        done = subprocess.run(argv, env=self.env(), capture_output=True, text=True, timeout=60, check=True)
        return build(NvmlReading, json.loads(done.stdout))

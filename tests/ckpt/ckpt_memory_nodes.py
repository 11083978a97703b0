"""Nodes on this machine for tests: each has a folder in which its snapshot daemon listens, and ranks that use it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rank_server import Forked

from transom_cli.ckpt.snapshot.client import LINGER, agents_path
from transom_cli.rpc.local import connect

WORKER = Path(__file__).with_name("ckpt_memory_nodes_worker.py")


class Nodes:
    """`names`: of each rank's node, in rank order; `move` changes them for the next launch. `beside`: for a second
    Checkpointer of every rank. Use as a context: what is left is killed at its end."""

    def __init__(
        self, directory: Path, protect: str, names: list[str], domains: dict[str, str] | None = None, also: str = "",
        beside: Path | None = None,
    ) -> None:  # fmt: skip
        self.also = [also] if also else []
        self.directories = [directory, *([beside] if beside else [])]
        self.directory, self.protect, self.names, self.domains = directory, protect, names, domains or {}
        self._seen = dict.fromkeys(names)
        self._folder = tempfile.TemporaryDirectory(prefix="nodes-", dir="/dev/shm")
        self.ranks: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_ranks()
        self.kill_holders()
        self._folder.cleanup()

    def move(self, names: list[str]) -> None:
        """The next launch has these nodes, in rank order."""
        self.names = names
        self._seen |= dict.fromkeys(names)

    def kill_holders(self) -> None:
        """All of them, with what they hold."""
        for name in self._seen:
            self.kill_holder(name)

    def beats(self, name: str) -> str:
        path = Path(self._folder.name) / name
        path.mkdir(mode=0o700, exist_ok=True)
        return str(path)

    def go(self, steps: int) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"go {steps}\n")
            rank.stdin.flush()

    def start(self, steps: int, launch: int, **env: str) -> None:
        directories = ",".join(map(str, self.directories))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM"))}
        clean |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", LINGER: "60"}
        clean |= env
        clean |= {"TRANSOM_ATTEMPT": "7.0", "TRANSOM_LAUNCH": str(launch), "WORLD_SIZE": str(len(self.names))}
        self.ranks = [
            Forked(
                [sys.executable, str(WORKER), directories, self.protect, str(steps), *self.also],
                env={
                    **clean, "RANK": str(rank), "TRANSOM_BEAT_DIR": self.beats(name), "SLURMD_NODENAME": name,
                    **({"SLURM_TOPOLOGY_ADDR": f"{self.domains[name]}.{name}"} if name in self.domains else {}),
                },
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank, name in enumerate(self.names)
        ]  # fmt: skip

    def until(self, word: str) -> list[list[str]]:
        """By rank the lines up to the one that begins with `word`."""
        found = []
        for rank in self.ranks:
            assert rank.stdout is not None
            lines = []
            for line in rank.stdout:
                lines.append(line.rstrip("\n"))
                if line.startswith(word):
                    break
            else:
                rank.wait()
                assert rank.stderr is not None
                raise AssertionError(f"a rank ended: {lines}\n{rank.stderr.read()}")
            found.append(lines)
        return found

    def protected(self, step: int, directory: Path | None = None) -> None:
        """Wait until every daemon knows that `step` is protected: it holds its parity, and no older one's."""
        deadline = time.monotonic() + 60
        for name in self.names:
            while self.state(name, directory)["protected"] != step:
                assert time.monotonic() < deadline, self.state(name, directory)
                time.sleep(0.05)

    def state(self, name: str, directory: Path | None = None) -> dict[str, object]:
        directory = directory or self.directory
        line = connect(agents_path(self.beats(name)))
        try:
            line.call("look", directory=str(directory), token=(directory / ".memory").read_text())
            return line.call("state")[0]
        finally:
            line.close()

    def held(self, name: str) -> dict[int, list[dict[str, object]]]:
        """By committed step what the node holds of it."""
        return {int(step["step"]): step["here"] for step in self.state(name)["steps"]}  # type: ignore[attr-defined]

    def resume(self, step: int) -> None:
        """Another launch goes on from there on all nodes, makes one more step, and ends in order."""
        self.start(steps=1, launch=1)
        assert self.until("restored") == [[f"restored {step}"]] * len(self.names)
        self.until("settled")
        self.finish()

    def finish(self) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        self.until("closed")
        assert [rank.wait(60) for rank in self.ranks] == [0] * len(self.ranks)

    def said(self) -> str:
        """What rank 0 has told, after its end."""
        assert self.ranks[0].stderr is not None
        return self.ranks[0].stderr.read()

    def kill_ranks(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()

    def kill_holder(self, name: str) -> None:
        """With the memory that it alone has by then."""
        path = agents_path(self.beats(name))
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if path.encode() in words and b"transom_cli.ckpt.snapshot.daemon" in words:
                os.kill(int(folder.name), signal.SIGKILL)
        Path(path).unlink(missing_ok=True)

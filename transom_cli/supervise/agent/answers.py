"""What the node's agent does for the launcher that asks: probe, logs, evidence, flush, memory, end, files to warm."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.agent import flight, flush, procfs, secret
from transom_cli.supervise.agent.belonging import find
from transom_cli.supervise.agent.ending import Left, end_launch
from transom_cli.supervise.agent.evidence import choose, take
from transom_cli.supervise.agent.eyes import Eyes
from transom_cli.supervise.agent.memory import Memory
from transom_cli.supervise.agent.server import Server
from transom_cli.supervise.agent.warm import mapped, warm

_INCIDENT = re.compile(r"l\d{1,6}")
_DUMPS = 3.0  # seconds for flight recorder dumps; whoever waits for the end of a launch allows for more than that


class Answers:
    """The handler of the agent's `Server`. A wrong question is a ValueError, which the asker gets to read."""

    def __init__(self, attempt: AttemptDir, node: str, beats_dir: str, eyes: Eyes, memory: Memory) -> None:
        self._attempt, self._node, self._beats_dir, self._eyes = attempt, node, beats_dir, eyes
        self._memory = memory

    def __call__(self, name: str, arguments: dict[str, object]) -> dict[str, object]:
        if name == "probe":
            return {"node": self._node, "load": list(os.getloadavg()), "health": self._eyes.health()}
        if name == "faults":
            return {"faults": self._eyes.alarms.faults()}
        if name == "logs":
            return self._eyes.cause(int(_number(arguments, "launch")))
        if name == "evidence":
            return self._evidence(arguments)
        if name == "flush":
            return self._flush(arguments)
        if name == "memory":
            return self._ask_memory(arguments)
        if name == "mapped":
            return {"files": mapped(self._attempt.path, int(_number(arguments, "launch")), self._node)}
        if name == "warm":
            return warm(_paths(arguments.get("files")))
        if name == "end":
            return self._end(arguments)
        raise ValueError(f"an agent is not asked for {name!r}")

    def _evidence(self, arguments: dict[str, object]) -> dict[str, object]:
        timeout, launch = _number(arguments, "seconds"), int(_number(arguments, "launch"))
        folder = self._folder(arguments.get("incident"))
        entries = take(self._attempt.path, launch, self._node, folder, timeout, beats_dir=self._beats_dir)
        return {"ranks": [_line(entry, self._node) for entry in entries]}

    def _folder(self, incident: object) -> Path:
        if not isinstance(incident, str) or not _INCIDENT.fullmatch(incident):
            raise ValueError(f"{incident!r} names no incident of a launcher")
        return self._attempt.evidence(incident)

    def _flush(self, arguments: dict[str, object]) -> dict[str, object]:
        step = arguments.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or not -1 <= step <= flush.LARGEST:
            raise ValueError(f"step is {step!r}, not a step or -1")
        launch = int(_number(arguments, "launch"))
        answer = flush.ask(self._beats_dir, launch, step)
        if not answer["listening"]:
            answer["warned"] = self._handle_the_warning(launch)
        return answer

    def _ask_memory(self, arguments: dict[str, object]) -> dict[str, object]:
        """What the node holds; or, with a step, have it made durable."""
        if arguments.get("step") is None:
            return self._memory.newest()
        step, launch = int(_number(arguments, "step", flush.LARGEST)), int(_number(arguments, "launch"))
        directory, seconds = arguments.get("directory"), _number(arguments, "seconds")
        if not isinstance(directory, str):
            raise ValueError(f"directory is {directory!r}, not a path")
        return self._memory.rescue(directory, step, f"{self._attempt.name}.{launch}", seconds)

    def _handle_the_warning(self, launch: int) -> bool:
        """Whether all ranks here catch USR2, which Slurm sends before the time limit: they may save and end then."""
        ranks = choose(find(self._attempt.path, launch, self._node))
        return bool(ranks) and all(procfs.catches(member.pid, signal.SIGUSR2) for member in ranks)

    def _end(self, arguments: dict[str, object]) -> dict[str, object]:
        """With an incident: its folder gets the flight recorder's dumps, now that no rank writes one any more."""
        launch, grace = int(_number(arguments, "launch")), _number(arguments, "grace")
        folder = self._folder(arguments["incident"]) if arguments.get("incident") else None
        ended = end_launch(self._attempt.path, launch, self._node, grace, self._beats_dir)
        kept = flight.keep(self._beats_dir, launch, folder, _DUMPS) if folder is not None else {}
        return {
            "killed": [_words(x) for x in ended.killed],
            "survivors": [_words(x) for x in ended.survivors],
            "dumps": [f"rank {rank} on {self._node}: {what}" for rank, what in kept.items()],
        }


def serve(run: RunDir, attempt: AttemptDir, node: str, beats_dir: str, eyes: Eyes, memory: Memory) -> Server | None:
    """Answer this attempt's launcher, and say where. None, with the reason on stderr, when that cannot be."""
    try:
        allowed = frozenset(json.loads(attempt.peers.read_text()))
        answers = Answers(attempt, node, beats_dir, eyes, memory)
        server = Server(secret.read(run.secret), f"{attempt.name}/{node}", allowed, answers)
        port, own = server.start(), procfs.read(os.getpid())
        where = {"port": port, "pid": os.getpid(), "start": own.start if own else 0}
        publish_text(attempt.endpoint(node), json.dumps(where) + "\n")
    except (OSError, ValueError, TypeError, TransomError) as error:
        print(f"transom: the agent of {node} answers nobody: {error}", file=sys.stderr)
        return None
    return server


def _number(arguments: dict[str, object], name: str, most: float = 1e6) -> float:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < most:
        raise ValueError(f"{name} is {value!r}, not a number that makes sense")
    return value


def _paths(files: object) -> list[str]:
    paths = [f for f in files if isinstance(f, str)] if isinstance(files, list) else []
    if not isinstance(files, list) or len(paths) < len(files) or any(p[:1] != "/" or "\0" in p for p in paths):
        raise ValueError("files is not a list of absolute paths")
    return paths


def _line(entry: dict[str, object], node: str) -> str:
    rank = "a process" if entry["rank"] is None else f"rank {entry['rank']}"
    where = f", in {entry['top']}" if entry["top"] else ""
    note = f" ({entry['note']})" if entry["note"] else ""
    return f"{rank} on {node}, state {entry['state']}{where}{note}"


def _words(left: Left) -> str:
    of = f" of rank {left.rank}" if left.rank is not None else ""
    return f"{left.kind} {left.comm} (process {left.pid}{of}, state {left.state})"


def told(counts: dict[str, int]) -> str:
    """What a server did and refused, for the agents' log."""
    return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "nothing"

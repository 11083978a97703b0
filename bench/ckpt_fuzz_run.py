"""Run fuzzer cases: fork the ranks, inject the fault, restore in the other layout, judge what came back.

This process has imported torch and never used it. So it forks a rank in milliseconds, and a rank can be killed like a
real one. All cases of a process share one snapshot daemon.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ckpt_fuzz_rank
import torch
import torch.distributed as dist
from ckpt_fuzz_case import DAMAGE, KILL_WITHIN, KILLS, LOST, Case, Layout, expected
from torch._dynamo import trace_rules
from torch.testing._internal.distributed.fake_pg import FakeStore

from transom_cli.ckpt.names import DCP_METADATA, MANIFEST
from transom_cli.ckpt.snapshot import daemon, rendezvous
from transom_cli.ckpt.snapshot.client import LINGER
from transom_cli.errors import TransomError

LIMIT = 90.0  # seconds of a phase; then the case hangs


def warm() -> None:
    """Have torch do what it does on first use, so that no forked rank has to. Starts no thread.

    With three ranks, which no case has: torch keeps what it computes for a mesh, and ranks must not inherit rank 0's.
    """
    torch.set_num_threads(1)
    for kind in ("single", "ddp", "fsdp2", "tp"):
        layout = Layout(kind, 3, "blocks" if kind == "single" else "", kind == "single")
        case = Case("0", "frozen", 1, 6, ("float32",), "adam", ("subclass",), layout, layout)
        if kind != "single":
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
        with contextlib.suppress(Exception):  # a fake group sends no values
            ckpt_fuzz_rank.Trainer(case, layout, 0).fill(1)
        if kind != "single":
            dist.destroy_process_group()
    trace_rules.get_torch_obj_rule_map()  # what each torch.compile would make again


@dataclass
class Phase:
    """What the ranks reported. ended: each rank's last line. said: what rank 0 printed."""

    ended: list[dict[str, Any]]
    safe: int = 0
    said: str = ""
    hung: bool = False
    killed: bool = False


@dataclass(frozen=True)
class Result:
    """failure: what is wrong, or "". outcome: for statistics. seconds: of the whole case."""

    case: Case
    outcome: str
    failure: str = ""
    said: str = ""
    seconds: float = field(default=0.0, compare=False)


class Runner:
    """Runs cases one after another in a folder of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ckpt-fuzz-", dir="/tmp"))
        self._folder.chmod(0o700)
        self._socket = str(self._folder / "daemon")
        rendezvous.own_path = lambda directory, token: self._socket  # type: ignore[assignment]
        os.environ[LINGER] = "20"
        os.environ.pop("TRANSOM_CHECKPOINT_DIR", None)
        self._number = self._daemon = 0
        warm()
        gc.collect()
        gc.freeze()  # ranks copy no pages and look at no objects that they only inherit

    def close(self) -> None:
        self._end_daemon()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, case: Case) -> Result:
        self._number += 1
        place = self._folder / str(self._number)
        place.mkdir()
        began = time.monotonic()
        try:
            result = self._run(case, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return Result(case, result.outcome, result.failure, result.said, time.monotonic() - began)

    def _run(self, case: Case, place: Path) -> Result:
        directory = place / "c"
        saved = self._phase(case, case.save, place / "save", directory, ckpt_fuzz_rank.save, case.fault in KILLS)
        if saved.hung:
            return Result(case, "hang", "the save hangs", saved.said)
        error = _error(saved)
        if error is not None and not (saved.killed and case.fault != "kill daemon"):
            return self._judge_refusal(case, error, saved, saving=True)
        if case.fault in (*DAMAGE, LOST):
            self._end_daemon()
            injure(case, directory)
        found = self._phase(case, case.restore, place / "restore", directory, ckpt_fuzz_rank.restore, False)
        if found.hung:
            return Result(case, "hang", "the restore hangs", found.said)
        error = _error(found)
        if error is not None:
            return self._judge_refusal(case, error, found, saving=False, safe=saved.safe)
        return _judge(case, saved, found)

    def _judge_refusal(self, case: Case, error: dict[str, Any], phase: Phase, *, saving: bool, safe: int = 0) -> Result:
        kind, text = str(error["error"]), str(error["text"])
        where = "save" if saving else "restore"
        if any(kind == name and part in text for name, part in expected(case, safe).refused):
            return Result(case, f"refused: {kind}")
        return Result(case, f"{where} failed", f"{where}: {kind}: {text}", phase.said)

    def _phase(
        self, case: Case, layout: Layout, place: Path, directory: Path,
        work: Callable[[Case, int, Path, int], None], kill: bool,
    ) -> Phase:  # fmt: skip
        place.mkdir()
        self._start_daemon()
        pids, pipes = [], []
        for rank in range(layout.ranks):
            out, into = os.pipe()
            pid = os.fork()
            if pid == 0:
                _as_rank(case, layout, rank, place, directory, work, into)
            os.close(into)
            pids.append(pid)
            pipes.append(out)
        phase = Phase([{} for _ in pids])
        try:
            phase.hung = not self._listen(case, pids, pipes, phase, kill)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            for pipe in pipes:
                os.close(pipe)
        phase.said = (place / "0.err").read_text("utf-8", "replace")[-3000:] if (place / "0.err").exists() else ""
        return phase

    def _listen(self, case: Case, pids: list[int], pipes: list[int], phase: Phase, kill: bool) -> bool:
        """Read what ranks report until all have ended. False if that takes too long."""
        rest = [b""] * len(pipes)
        deadline, kill_at, ready = time.monotonic() + LIMIT, None, 0
        with selectors.DefaultSelector() as selector:
            for rank, pipe in enumerate(pipes):
                selector.register(pipe, selectors.EVENT_READ, rank)
            while selector.get_map():
                now = time.monotonic()
                if kill_at is not None and now >= kill_at:
                    self._kill(case.fault, pids)
                    phase.killed, kill_at = True, None
                if now >= deadline:
                    return False
                for key, _ in selector.select(min(deadline, kill_at or deadline) - now):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                        continue
                    *lines, rest[key.data] = (rest[key.data] + data).split(b"\n")
                    for line in lines:
                        fields = json.loads(line)
                        phase.ended[key.data] = fields
                        if key.data == 0 and "safe" in fields:
                            phase.safe = fields["safe"]
                        if kill and "kill" in fields:
                            ready += 1
                            if ready == len(pipes):
                                kill_at = time.monotonic() + case.at * KILL_WITHIN
        if kill_at is not None:  # the ranks have ended before
            self._kill(case.fault, pids)
            phase.killed = True
        return True

    def _kill(self, fault: str, pids: list[int]) -> None:
        if fault in ("kill ranks", "kill all"):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if fault in ("kill daemon", "kill all"):
            self._end_daemon()

    def _start_daemon(self) -> None:
        """Fork a daemon if none runs. A rank would start an interpreter for it, which takes a second."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(self._socket)
            return
        if self._daemon:
            os.waitpid(self._daemon, 0)
        Path(self._socket).unlink(missing_ok=True)
        self._daemon = os.fork()
        if self._daemon == 0:
            log = os.open(self._folder / "daemon.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.setsid()
            os._exit(daemon.main(["--socket", self._socket, "--linger", "60"]))
        while not Path(self._socket).exists():
            time.sleep(0.005)

    def _end_daemon(self) -> None:
        """Kill the daemon, and wait until it is gone."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(self._socket)
            raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid = int(struct.unpack("3i", raw)[0])
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + 5.0
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                if " Z " in Path(f"/proc/{pid}/stat").read_text():
                    break
                time.sleep(0.005)


def _as_rank(
    case: Case, layout: Layout, rank: int, place: Path, directory: Path,
    work: Callable[[Case, int, Path, int], None], out: int,
) -> None:  # fmt: skip
    """What a forked process does; it never returns."""
    log = os.open(place / f"{rank}.err", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        ckpt_fuzz_rank.join(layout, rank, place / "store")
        work(case, rank, directory, out)
        ckpt_fuzz_rank.report(out, done=True) if work is ckpt_fuzz_rank.save else None
    except BaseException as error:
        traceback.print_exc()
        text = f"{error}\n{error.why}" if isinstance(error, TransomError) else str(error)
        ckpt_fuzz_rank.report(out, error=type(error).__name__, text=text)
    finally:
        sys.stderr.flush()
        os._exit(0)


def _error(phase: Phase) -> dict[str, Any] | None:
    """The error of the first rank that reported one. A rank that died without a word is an error."""
    for ended in phase.ended:
        if "error" in ended:
            return ended
    for rank, ended in enumerate(phase.ended):
        if not ended.get("done") and "restored" not in ended:
            return {"error": "Died", "text": f"rank {rank} died; its last report was {ended}"}
    return None


def _judge(case: Case, saved: Phase, found: Phase) -> Result:
    steps = {ended["restored"] for ended in found.ended}
    if len(steps) > 1:
        return Result(case, "different", f"the ranks restored different steps: {sorted(steps)}", found.said)
    step = steps.pop()
    wrong = {rank: ended["wrong"] for rank, ended in enumerate(found.ended) if ended["wrong"]}
    if wrong:
        rank, names = next(iter(wrong.items()))
        what = f"step {step} differs silently on {len(wrong)} ranks; on rank {rank}: {', '.join(names[:6])}"
        return Result(case, "different", what, found.said)
    may = expected(case, saved.safe)
    if may.must_refuse:
        return Result(case, "not refused", f"step {step} was restored, and a refusal was expected", found.said)
    if step not in may.steps:
        return Result(case, "wrong step", f"step {step} was restored, and not one of {sorted(may.steps)}", found.said)
    return Result(case, "restored" if step else "nothing saved")


def injure(case: Case, directory: Path) -> None:
    """Damage the newest checkpoint on disk."""
    newest = directory / f"step-{case.saves}"
    if case.fault in ("no directory", LOST):
        for one in directory.glob("step-*") if case.fault == LOST else [newest]:
            shutil.rmtree(one)
        return
    names = sorted(path.name for path in newest.iterdir() if path.stat().st_size)
    if case.fault == "no manifest":
        (newest / MANIFEST).unlink()
        return
    data = [name for name in names if name not in (MANIFEST, DCP_METADATA)]
    pool = names if case.fault == "flipped" else data
    path = newest / pool[int(case.at * len(pool))]
    if case.fault == "missing":
        path.unlink()
        return
    content = bytearray(path.read_bytes())
    place = int(case.at * 997 * len(content)) % len(content)
    if case.fault == "truncated":
        path.write_bytes(content[:place])
    else:
        content[place] ^= 1 << int(case.at * 8)
        path.write_bytes(content)

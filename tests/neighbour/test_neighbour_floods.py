"""Logs that flood: storms of warnings, lines without end, garbage. The cause is found, in bounded memory and time."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from transom_cli.diagnose.logs import aftermath, grammar, kinds, matches
from transom_cli.diagnose.logs.aftermath import Aftermath
from transom_cli.diagnose.logs.cause import incidents
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.matches import Collector, Hit
from transom_cli.diagnose.logs.reader import Scanner, hits_in
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise import root_cause
from transom_cli.supervise.agent import logs
from transom_cli.supervise.agent.logs import HEAD, PIECE, WHOLE, read_cause, read_log, rulebook
from transom_cli.supervise.root_cause import examine

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB"
CAUSE = f'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    main()\n{OOM}\n'
MB = 1 << 20


def peer_gone(rng: random.Random, n: int) -> str:
    peer = f"10.0.{rng.randrange(256)}.{rng.randrange(256)}<{rng.randrange(65536)}>"
    where = f"local GID fe80::{rng.randrange(65536):x} wr_id 0x{rng.randrange(1 << 48):x}"
    return f"n1:4711:4799 [3] net_ib.cc:1295 NCCL WARN NET/IB : recvValue failed, {peer} status={n}, {where}\n"


def registration(rng: random.Random, n: int) -> str:
    return "n1:4711:4799 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration\n"


def watchdog(rng: random.Random, n: int) -> str:
    rank, clock = rng.randrange(4), f"08:{n // 60 % 60:02}:{n % 60:02}.{rng.randrange(10**6):06}"
    where = f"[rank{rank}]:[W1103 {clock} ProcessGroupNCCL.cpp:616] [Rank {rank}]"
    return f"{where} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE)\n"


def kernel(rng: random.Random, n: int) -> str:
    return f"[{n}.{rng.randrange(10**6):06}] NVRM: Xid (PCI:0000:3b:00): {rng.choice((13, 79))}, pid={n}, name=python\n"


def traces(rng: random.Random, n: int) -> str:
    frame = f'  File "/app/data.py", line {rng.randrange(99)}, in read\n    return read({n})\n'
    return f"Traceback (most recent call last):\n{frame}ValueError: bad sample {n}\nstep {n} loss 1.{n}\n"


STORMS = (registration, peer_gone, watchdog, kernel, traces)
Writer = Callable[[random.Random, int], str]


def storm(*writers: Writer, lines: int) -> str:
    rng = random.Random(7)
    return "".join(rng.choice(writers)(rng, n) for n in range(lines))


def matched(text: str) -> list[Hit]:
    return hits_in(io.BytesIO(text.encode()), rulebook(), "rank-3.log")


@pytest.mark.parametrize("writers", [STORMS, *(pytest.param((one,), marks=pytest.mark.long) for one in STORMS)])
def test_lines_of_one_kind_are_matched_once_and_nothing_else_changes(
    writers: tuple[Writer, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = storm(*writers, lines=1500)
    text = half + CAUSE + half
    read: list[str] = []
    record = grammar.record
    monkeypatch.setattr(grammar, "record", lambda line: read.append(line) or record(line))
    folded = matched(text)
    assert len(read) < 600
    monkeypatch.setattr(kinds, "ALIKE", 10**9)
    assert matched(text) == folded


def test_lines_that_are_all_different_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MOST", 100)
    scanner = Scanner(rulebook(), Collector("rank-3.log"))
    words = ("".join(chr(97 + int(digit)) for digit in str(n)) for n in range(600))
    lines = (f"[rank{n % 7}] error{word}: Connection reset by peer\n" for n, word in enumerate(words))
    for line in lines:
        scanner.read(io.BytesIO(line.encode()))
        known = scanner._kinds._kinds.values()
        assert sum(1 + len(kind.outcomes) for kind in known) <= 202


def test_a_number_that_a_rule_looks_at_makes_another_kind() -> None:
    same = "srun: error: n1: task 0: Exited with exit code 1\n" * 50
    other = "srun: error: n1: task 0: Exited with exit code 137\n"
    codes = {hit.record.text[-4:].strip() for hit in matched(same + other + same)}
    assert codes == {"1", "137"} or any(hit.rule.name != "task-exited" for hit in matched(same + other + same))
    xids = "NVRM: Xid (PCI:0000:3b:00): 13, pid=17, name=python\n" * 50
    assert "xid-hardware" in {hit.rule.name for hit in matched(xids + xids.replace("13,", "79,")[:60] + "\n" + xids)}


@pytest.mark.parametrize("place", [0, 400, 800])
def test_one_cause_in_a_storm_of_all_ranks_is_found(place: int, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    attempt = run.attempt(7, 0)
    attempt.logs(0).mkdir(parents=True)
    for rank in range(8):
        lines = storm(registration, peer_gone, watchdog, lines=800).splitlines(keepends=True)
        lines.insert(place, CAUSE if rank == 5 else "")
        (attempt.logs(0) / f"rank-{rank}.log").write_text("".join(lines))
    answer = json.loads(json.dumps(read_cause(attempt.logs(0), [f"rank-{r}.log" for r in range(8)], 60.0)[0]))
    assert "left_out" not in answer and len(answer["hits"]) <= matches.MOST_HITS
    told = examine("k", run, attempt, None, 0.0, [answer])
    assert (told.category, told.line, told.where) == ("cuda_oom", OOM, "rank-5.log")


def test_a_log_is_read_in_part_when_there_is_no_time(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text(storm(registration, lines=5000) + CAUSE)
    answer, hits = read_cause(tmp_path, ["rank-0.log"], 0.0)
    assert [hit.rule.name for hit in hits] == ["cuda-oom"], "the end is read in any case"
    assert answer["left_out"] == {"rank-0.log": path.stat().st_size - PIECE}
    assert answer["last"] == {"rank-0.log": OOM}


def test_what_was_not_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    attempt = run.attempt(7, 0)
    attempt.logs(0).mkdir(parents=True)
    for rank in range(5):
        (attempt.logs(0) / f"rank-{rank}.log").write_text(storm(registration, lines=2000) + CAUSE * (rank == 3))
    read: list[str] = []
    whole = root_cause.read_log
    monkeypatch.setattr(root_cause, "read_log", lambda path, seconds: read.append(path.name) or whole(path, seconds))
    told = examine("k", run, attempt, 3, 0.0, seconds=0.0)
    assert read == ["rank-3.log"], "of the rank that died first"
    assert (told.category, told.where) == ("cuda_oom", "rank-3.log (4 logs and 0.1 MB of large logs not read)")


def test_of_a_huge_log_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    with path.open("wb") as file:
        file.write(CAUSE.encode())
        file.truncate(50 << 30)  # fifty gigabytes
        file.seek(0, 2)
        file.write(b"\nOSError: [Errno 28] No space left on device\n")
    tracemalloc.start()
    read = read_log(path, 60.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {hit.rule.name for hit in read.hits} == {"cuda-oom", "no-space"}
    assert read.left_out >= (50 << 30) - HEAD - WHOLE - 2 * PIECE
    assert read.last.startswith("OSError") and peak < 8 * MB


@pytest.mark.parametrize("data", [b"x" * 40 * MB, b"Connection reset by peer " * (MB // 8), b"\0" * 40 * MB])
def test_a_line_without_end_is_read_in_bounded_memory(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(data + b" torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    tracemalloc.start()
    found = [hit.rule.name for hit in read_log(path, 60.0).hits]
    agent = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    told = diagnose_logs([path], rulebook())
    command = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "cuda-oom" in found and agent < 8 * MB
    assert told.incidents[0].root.rule.name == "cuda-oom" and command < 64 * MB


def test_binary_garbage_is_no_cause(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(random.Random(1).randbytes(3 * MB))
    read = read_log(path, 60.0)
    assert read.hits == [] and read.last.isprintable()


def test_a_follower_of_a_flood_reads_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"")
    follower = logs.Follower(path)
    with path.open("ab") as file:
        file.truncate(20 << 30)
        file.seek(0, 2)
        file.write(b"\n" + CAUSE.encode())
    tracemalloc.start()
    assert [hit.rule.name for hit in follower.look()] == ["cuda-oom"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    follower.close()
    assert peak < 8 * MB


def test_the_blocks_after_a_storm_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text("IOError: [Errno 5] Input/output error\n" * 20000)
    opened: list[Path] = []
    real = aftermath.open_log
    monkeypatch.setattr(aftermath, "open_log", lambda path: opened.append(path) or real(path))
    one, *_ = matched("OSError: [Errno 28] No space left on device\n")
    hits = [Hit(one.rule, one.record, offset=n * 38) for n in range(2000)]
    asked = Aftermath()
    assert not any(asked.continued(hit, path) for hit in hits)
    assert len(opened) < 40


def test_answers_of_many_nodes_are_cut_to_what_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    attempt = AttemptDir(run.attempt(7, 0).path)
    (tmp_path / "rank-0.log").write_text(storm(peer_gone, watchdog, lines=200))
    (tmp_path / "rank-1.log").write_text(storm(peer_gone, lines=200) + CAUSE)
    loud, culprit = (read_cause(tmp_path, [name])[0] for name in ("rank-0.log", "rank-1.log"))
    decoded: list[int] = []
    decode = matches.decode
    monkeypatch.setattr(matches, "decode", lambda said, rules: decoded.append(len(said)) or decode(said, rules))
    monkeypatch.setattr(root_cause, "HITS", 600)
    told = examine("k", run, attempt, None, 0.0, [*[loud] * 150, culprit, *[loud] * 149])
    assert sum(decoded) <= 600
    assert (told.category, told.where) == ("cuda_oom", "rank-1.log")


def test_the_number_of_steps_to_a_cause_grows_with_the_number_of_lines() -> None:
    text = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
    killed = "srun: error: n1: task 3: Killed\n"
    (cancel,), (end,) = matched(text), matched(killed)
    calls = 0

    class Counting(str):
        def __eq__(self, other: object) -> bool:
            nonlocal calls
            calls += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def of(count: int) -> int:
        nonlocal calls
        calls = 0
        places = [(hit, Counting(f"rank-{n}.log"), n) for n in range(count) for hit in (cancel, end)]
        incidents([Hit(hit.rule, hit.record, hit.where, name, 1, n) for hit, name, n in places])
        return calls

    small = max(1, of(100))
    assert of(400) <= 8 * small

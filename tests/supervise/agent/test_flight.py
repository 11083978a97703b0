"""Flight recorder dumps: of a launch that died they are all that tells which collective it was in."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from agent_ranks import NODE, SLEEP, Ranks

from transom_cli.heartbeat.paths import flight_prefix
from transom_cli.layout import AttemptDir
from transom_cli.rpc.verbs import Call
from transom_cli.supervise.agent import evidence, flight_recorder
from transom_cli.supervise.agent.monitor import Monitor
from transom_cli.supervise.agent.snapshot_daemon import SnapshotDaemon
from transom_cli.supervise.agent.verbs import Answers

# As NCCL's watchdog does it: the dump, then the end of the process.
DUMPS_AND_ABORTS = """
with open(os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + os.environ["RANK"], "wb") as file:
    file.write(b"what it was in")
up()
os.abort()
"""


@pytest.fixture
def folder(ranks: Ranks) -> Path:
    ranks.beats.mkdir(mode=0o700)
    return AttemptDir(ranks.attempt).evidence("l1")


def answers(ranks: Ranks) -> Answers:
    attempt, beats = AttemptDir(ranks.attempt), str(ranks.beats)
    return Answers(
        attempt, NODE, beats, Monitor(attempt, NODE, beats, tuple), SnapshotDaemon(beats, attempt.path, print)
    )


def dump(ranks: Ranks, rank: int, content: bytes, launch: int = 2) -> Path:
    path = Path(flight_prefix(str(ranks.beats), launch) + str(rank))
    path.write_bytes(content)
    return path


def copied(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("rank-*.flight/*")}


def test_dumps_of_a_launch_that_died_are_kept_when_it_is_ended(ranks: Ranks, folder: Path) -> None:
    ranks.start(DUMPS_AND_ABORTS, rank=3)
    ranks.start(SLEEP, rank=4)
    dump(ranks, 3, b"of another launch", launch=1)
    told = answers(ranks)(Call("end", {"launch": 2, "grace": 60.0, "incident": "l1"})).answer
    assert told["dumps"] == [f"rank 3 on {NODE}: flight recorder dump: copied"]
    assert copied(folder) == {"flight-2-3": b"what it was in"}
    assert [path.name for path in folder.iterdir()] == ["rank-3.flight"], "no stacks, for which nobody asked"


def test_a_launch_that_is_ended_without_an_incident_leaves_no_evidence(ranks: Ranks, folder: Path) -> None:
    dump(ranks, 3, b"x")
    for more in ({}, {"incident": ""}):
        assert answers(ranks)(Call("end", {"launch": 2, "grace": 0.0, **more})).answer["dumps"] == []
    assert not folder.exists()
    with pytest.raises(ValueError, match="is not the name of an incident"):
        answers(ranks)(Call("end", {"launch": 2, "grace": 0.0, "incident": "../../x"}))


def test_a_dump_that_was_taken_half_written_is_taken_again(ranks: Ranks, folder: Path) -> None:
    half, whole = dump(ranks, 3, b"ha"), dump(ranks, 4, b"whole")
    done = "flight recorder dump: copied"
    assert flight_recorder.keep(str(ranks.beats), 2, folder, 60.0) == {3: done, 4: done}
    half.write_bytes(b"half and more")
    assert flight_recorder.keep(str(ranks.beats), 2, folder, 60.0) == {3: done}
    assert copied(folder) == {half.name: b"half and more", whole.name: b"whole"}


def test_a_file_system_that_does_not_answer_holds_up_nobody(
    ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(flight_recorder, "_copy", lambda *_: go_on.wait(60.0) and "copied")
    dump(ranks, 3, b"x")
    assert flight_recorder.keep(str(ranks.beats), 2, folder, 0.2) == {3: "flight recorder dump: timed out"}
    go_on.set()


def test_a_folder_that_cannot_be_made(ranks: Ranks, folder: Path) -> None:
    folder.parent.write_text("a file in the way")
    dump(ranks, 3, b"x")
    assert flight_recorder.keep(str(ranks.beats), 2, folder, 60.0) == {
        3: "flight recorder dump: not copied (Not a directory)"
    }


def test_ranks_that_take_all_the_time_leave_enough_for_the_dumps(
    ranks: Ranks, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(evidence, "PARALLEL", 1)
    monkeypatch.setattr(evidence, "_one", lambda *_: go_on.wait(60.0))
    ranks.start(SLEEP, rank=3)
    os.kill(ranks.pids[0], signal.SIGSTOP)
    dump(ranks, 3, b"x")
    (told,) = evidence.take(ranks.attempt, 2, NODE, folder, 1.0, beats_dir=str(ranks.beats))
    go_on.set()
    assert told["note"] == "timed out; flight recorder dump: copied"
    assert copied(folder) == {"flight-2-3": b"x"}

"""Rank logs on their node: followed as they grow, and read from their end when the launcher asks."""

from __future__ import annotations

import json
from pathlib import Path

from transom_cli.diagnose.logs import matches
from transom_cli.heartbeat import paths
from transom_cli.heartbeat.table import RankBeat
from transom_cli.supervise.agent.logs import LOOK, Follower, names, read_cause, rulebook

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n'
PEER = TRACE + "RuntimeError: Connection closed by peer\n"
OWN = TRACE + "ValueError: mine\n"


def lines(follower: Follower) -> list[str]:
    return [hit.record.line for hit in follower.look()]


def row(rank: int, launch: int = 0) -> RankBeat:
    return RankBeat(rank, launch, 1, 1, 0.0, None, "step", 0, "S")


def test_a_log_is_followed_from_before_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    follower = Follower(path)
    assert lines(follower) == []
    with path.open("a") as log:
        log.write("step 1\n" + TRACE)
        log.flush()
        assert lines(follower) == []
        log.write("ValueError: mi")
        log.flush()
        assert lines(follower) == [], "half a line"
        log.write("ne\n")
        log.flush()
        assert lines(follower) == ["ValueError: mine"]
        assert lines(follower) == []
        log.write("OSError: [Errno 28] No space left on device\n")
        log.flush()
        assert lines(follower) == ["OSError: [Errno 28] No space left on device"]
        log.truncate(0)
        log.write(OWN)
        log.flush()
        assert lines(follower) == ["ValueError: mine"], "a log that was cut is read again"
    follower.close()


def test_of_a_log_that_grows_too_fast_the_newest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text(OWN + "x" * 3 * LOOK + "\n" + TRACE + "KeyError: 'end'\n")
    follower = Follower(path)
    assert lines(follower) == ["KeyError: 'end'"]
    with path.open("a") as log:
        log.write("no end of a line" * LOOK)
    assert lines(follower) == []
    assert len(follower._rest) <= 16 * 1024
    follower.close()


def test_a_link_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(OWN)
    (tmp_path / "rank-0.log").symlink_to(tmp_path / "secret")
    assert lines(Follower(tmp_path / "rank-0.log")) == []


def test_which_logs_are_this_nodes(tmp_path: Path) -> None:
    rows = (row(4), row(5), row(6, launch=1))
    assert names(str(tmp_path), 0, rows) == ["rank-4.log", "rank-5.log"]
    assert names(str(tmp_path / "none"), 1, rows) == ["rank-6.log"]
    paths.mark_torchrun(str(tmp_path), 0, "2")
    paths.mark_torchrun(str(tmp_path), 0, "2")
    assert names(str(tmp_path), 0, rows) == ["node-2.log"]
    assert names(str(tmp_path), 1, rows) == ["rank-6.log"], "of another launch"


def test_what_logs_answer_can_be_put_together_elsewhere(tmp_path: Path) -> None:
    logs = ["rank-9.log", "rank-10.log", "rank-11.log"]
    for name, text in zip(logs, (PEER, OWN, ""), strict=True):
        (tmp_path / name).write_text(text)
    told = json.loads(json.dumps(read_cause(tmp_path, logs)[0]))
    assert (told["names"], told["last"]) == (
        logs,
        {"rank-9.log": PEER.split("\n")[-2], "rank-10.log": "ValueError: mine"},
    )
    hits = matches.decode(told["hits"], rulebook().by_name)
    assert [(h.rule.name, h.record.rank, h.file) for h in hits] == [
        ("python-exception", 10, "rank-10.log"), ("connection-lost", 9, "rank-9.log"),
    ]  # fmt: skip


def test_a_traceback_that_comes_in_pieces_is_one(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    follower = Follower(path)
    with path.open("a") as log:
        log.write("ValueError: a message, not raised\n")
        log.flush()
        assert lines(follower) == []
        for piece in TRACE.splitlines(keepends=True):
            log.write(piece)
            log.flush()
            assert lines(follower) == []
        log.write("KeyError: 'lr'\n")
        log.flush()
        assert lines(follower) == ["KeyError: 'lr'"]
    follower.close()


def test_a_message_long_after_a_traceback_is_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    follower = Follower(path)
    with path.open("a") as log:
        log.write(OWN)
        log.flush()
        assert lines(follower) == ["ValueError: mine"]
        for _ in range(9):
            log.write("step\n" * 60)
            log.flush()
            assert lines(follower) == []
        log.write("ValueError: a message\n")
        log.flush()
        assert lines(follower) == []
    follower.close()


def test_what_the_training_survived_is_not_told(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss 1.{n}\n" for n in range(20))
    (tmp_path / "rank-0.log").write_text(OWN + steps)
    (tmp_path / "rank-1.log").write_text(steps + OWN)
    told = read_cause(tmp_path, ["rank-0.log", "rank-1.log"])[0]
    assert [hit["file"] for hit in told["hits"]] == ["rank-1.log"]

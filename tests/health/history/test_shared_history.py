"""The history that users share: each writes only their own file, and nobody's file is trusted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_support import OrdinaryUser

from transom_cli.core.events import OtherExclusion
from transom_cli.health.history import shared
from transom_cli.health.history.nodes import NodeHistory, fold
from transom_cli.health.history.records import Isolation, Lift
from transom_cli.health.history.shared import BYTES, publish, read_others, refused

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to own the folder and to act as other users")

NOW = time.time()  # when the tests were collected: minutes ago


def isolation(node: str, until: float | None = NOW + 7200, cluster: str = "alps") -> Isolation:
    return Isolation(NOW - 60, "r1", "/runs/r1", node, "excluded", until, "hang", "", "SUSPECT", "why", cluster=cluster)


def history(*isolations: Isolation) -> NodeHistory:
    return fold(isolations, NOW)


@pytest.fixture
def folder(short_dir: Path, tmp_path: Path) -> Path:
    made = short_dir / tmp_path.name
    made.mkdir()
    made.chmod(0o1777)
    return made


def test_another_user_reads_what_one_excludes_and_until_when(
    folder: Path, ordinary_user: OrdinaryUser, other_user: OrdinaryUser
) -> None:
    ordinary_user.call(lambda: publish(folder, history(isolation("n1"), isolation("n2", None))))
    other_user.call(lambda: publish(folder, history(isolation("n1", time.time() + 60))))
    found = {one.user: one.seconds for one in read_others(folder, "alps", "n1")}
    assert found.keys() == {ordinary_user.name, other_user.name}
    assert (
        abs((found[ordinary_user.name] or 0) - (NOW + 7200 - time.time())) < 30
        and 0 < (found[other_user.name] or 0) <= 60
    )
    assert read_others(folder, "alps", "n2") == (OtherExclusion(ordinary_user.name, None),)
    assert read_others(folder, "alps", "n3") == read_others(folder, "bern", "n1") == ()

    def own_is_left_out() -> None:
        assert [one.user for one in read_others(folder, "alps", "n1")] == [other_user.name]

    ordinary_user.call(own_is_left_out)


def test_one_file_per_user_is_replaced_and_only_its_owner_can_change_it(
    folder: Path, ordinary_user: OrdinaryUser, other_user: OrdinaryUser
) -> None:
    def write_twice() -> None:
        os.umask(0o077)
        publish(folder, history(isolation("n1")))
        publish(folder, history(isolation("n2")))

    ordinary_user.call(write_twice)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644
    assert not read_others(folder, "alps", "n1") and read_others(folder, "alps", "n2")
    content = json.loads(path.read_text())["excluded"][0]
    assert content.keys() == {"node", "cluster", "since", "until"}, "no evidence, run or path of the user"

    def interfere() -> None:
        for act in (lambda: path.write_text("{}"), path.unlink, lambda: path.rename(folder / "x.json")):
            with pytest.raises(PermissionError):
                act()

    other_user.call(interfere)
    ordinary_user.call(lambda: publish(folder, history()))
    assert json.loads(path.read_text())["excluded"] == []


def test_lifted_isolation_is_withdrawn(folder: Path, ordinary_user: OrdinaryUser) -> None:
    ordinary_user.call(lambda: publish(folder, history(isolation("n1"))))
    lifted = fold([isolation("n1"), Lift(NOW, "ada", ("n1",))], NOW + 1)
    ordinary_user.call(lambda: publish(folder, lifted))
    assert read_others(folder, "alps", "n1") == ()


def test_taken_name_keeps_nobody_from_reporting(
    folder: Path, ordinary_user: OrdinaryUser, other_user: OrdinaryUser
) -> None:
    other_user.call(lambda: [(folder / f"{ordinary_user.uid}{end}.json").touch() for end in ("", "-", "-0")] and None)
    ordinary_user.call(lambda: publish(folder, history(isolation("n1"))))
    assert [one.user for one in read_others(folder, "alps", "n1")] == [ordinary_user.name]


def record(**more: Any) -> dict[str, Any]:
    return {"node": "n1", "cluster": "alps", "since": NOW - 5, "until": NOW + 3600, **more}


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def rows(*records: object) -> Callable[[Path], object]:
    return write(json.dumps({"schema": 1, "excluded": list(records)}))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(500)),
    "a list": write("[1]"),
    "a number": write("7"),
    "nested too deep": write("[" * 60_000),
    "huge": rows(record(more="x" * BYTES)),
    "a link to a good file": lambda path: (
        (path.parent / ".good").write_text(json.dumps({"excluded": [record()]}))
        and path.symlink_to(path.parent / ".good")
    ),
    "a link to nothing": lambda path: path.symlink_to("/nonexistent"),
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "unreadable": lambda path: (rows(record())(path), path.chmod(0)),
    "from the future": rows(record(since=NOW + 1e6)),
    "from long ago": rows(record(since=NOW - 1e7)),
    "over": rows(record(until=NOW - 1)),
    "no numbers": rows(record(until="soon"), record(since=None), record(until=[]), record(since={}), 7, None, "n1"),
    "no finite numbers": rows(record(until=float("inf")), record(until=float("nan")), record(since=float("-inf"))),
    "numbers that are too large": rows(record(until=10**400), record(since=-(10**400))),
    "another node": rows(record(node="n2"), record(node=["n1"]), record(cluster="bern"), {"until": None}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file_is_ignored_and_hides_nobody_elses(
    folder: Path, ordinary_user: OrdinaryUser, other_user: OrdinaryUser, kind: str
) -> None:
    ordinary_user.call(lambda: HOSTILE[kind](folder / "9-a.json") and None)
    other_user.call(lambda: publish(folder, history(isolation("n1"))))

    def reader() -> None:
        assert [one.user for one in read_others(folder, "alps", "n1")] == [other_user.name]

    if kind == "unreadable":  # for root nothing is
        OrdinaryUser("nobody", 65534, 65534, Path("/")).call(reader)
    else:
        reader()


def test_flood_of_files_takes_bounded_time(
    folder: Path, ordinary_user: OrdinaryUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "FILES", 50)
    ordinary_user.call(lambda: [rows(record())(folder / f"{n}.json") for n in range(200)] and None)
    assert [one.user for one in read_others(folder, "alps", "n1")] == [ordinary_user.name], "one vote, however many"


def test_folder_that_is_not_roots_alone_is_refused(
    short_dir: Path, tmp_path: Path, ordinary_user: OrdinaryUser, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all = short_dir / f"{tmp_path.name}-open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert "should be 1777" in refused(open_to_all)
    theirs = ordinary_user.home / "shared"
    theirs.mkdir()
    theirs.chmod(0o1777)
    os.chown(theirs, ordinary_user.uid, ordinary_user.gid)
    assert "must belong to root" in refused(theirs)
    below = open_to_all / "below"
    below.mkdir()
    below.chmod(0o1777)
    assert "above it" in refused(below)
    linked = short_dir / f"{tmp_path.name}-link"
    linked.symlink_to(below)
    assert "is not a folder" in refused(linked) and "No such file" in refused(short_dir / "none")
    publish(theirs, history(isolation("n1")))
    rows(record())(theirs / "5.json")
    assert [path.name for path in theirs.iterdir()] == ["5.json"] and read_others(theirs, "alps", "n1") == ()
    assert "the shared history of nodes is not used" in caplog.text
    closed = short_dir / f"{tmp_path.name}-closed"
    closed.mkdir(mode=0o755)

    def without_rights() -> None:
        assert "you cannot write there" in refused(closed)

    ordinary_user.call(without_rights)

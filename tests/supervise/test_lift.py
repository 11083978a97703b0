"""A person ends isolations: in the history, in runs that go on, and in Slurm where the drain is ours."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator.state import Policy, State
from transom_cli.core.stall import StallLimits
from transom_cli.errors import UsageError
from transom_cli.health.history.files import read_history
from transom_cli.health.history.nodes import NodeHistory, fold
from transom_cli.health.history.records import Isolation, Lift
from transom_cli.layout import RunDir
from transom_cli.slurm.port import SlurmDenied, SlurmUnknown
from transom_cli.supervise.follow import Follower
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.operator.drain import ask, reason
from transom_cli.supervise.operator.lift import WITHDRAWN, Lifted, lift, to_lift

NOW = time.time()


class Bench:
    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder / "r1")
        self.run.path.mkdir()
        write_header(self.run.journal, Policy(), 3)
        self.folder = folder / "nodes"
        self.slurm = FakeSlurm(admin=True)
        self.records = [self.isolation("n2"), self.isolation("n3", how="excluded")]

    def isolation(self, node: str, run: str = "r1", how: str = "drained") -> Isolation:
        where = str(self.run.path.parent / run)
        return Isolation(NOW - 60, run, where, node, how, None, "node_fault", "xid", "FAIL", "Xid 79")

    @property
    def history(self) -> NodeHistory:
        return fold([*self.records, *read_history(self.folder, NOW)], NOW + 60)

    def drained(self, node: str, run: str = "r1") -> None:
        self.slurm.drain(node, reason("xid: Xid 79", run))

    def lift(self, *nodes: str, run: str = "", spool: Path | None = None) -> list[Lifted]:
        return lift(self.history, nodes, run, "ann on login1", self.folder, lambda _: self.slurm, spool)

    def asked(self) -> list[ev.Event]:
        """What the run's operator reads."""
        follower = Follower(self.run, self.run.checkpoints, StallLimits())
        return list(follower.poll(State(), 1000.0))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_node_of_a_run_that_goes_on(bench: Bench) -> None:
    bench.drained("n2")
    assert bench.lift("n2", "n3") == [Lifted("n2", ("r1",), "resumed"), Lifted("n3", ("r1",), "not drained")]
    assert not bench.slurm.cluster.nodes["n2"].drain
    assert bench.history.active == ()
    (request,) = bench.run.requests.iterdir()
    assert bench.asked() == [ev.LiftRequested(1000.0, "ann on login1", request.name, ("n2", "n3"))]


def test_a_request_to_drain_a_lifted_node_is_withdrawn(bench: Bench, tmp_path: Path) -> None:
    asked = ask(tmp_path, "n3", reason("xid: Xid 79", "r1"))
    assert bench.lift("n3", spool=tmp_path) == [Lifted("n3", ("r1",), "not drained", WITHDRAWN)]
    assert not asked.exists()
    assert bench.lift("n2", spool=tmp_path) == [Lifted("n2", ("r1",), "not drained")], "nothing lay there"
    assert bench.lift("n2", spool=tmp_path / "gone")[0].slurm == "not drained"


def test_a_run_that_is_over_is_not_asked(bench: Bench) -> None:
    journal = Journal(bench.run.journal, 1)
    for event in (ev.Started(1.0, 1), ev.Submitted(2.0, "submit", 7), ev.JobSeen(3.0, 7, 0, "COMPLETED")):
        journal.append(event)
    journal.close()
    assert bench.lift("n3") == [Lifted("n3", (), "not drained")]
    assert not bench.run.requests.exists()


def test_a_run_whose_folder_is_gone_is_not_asked(bench: Bench) -> None:
    bench.records = [bench.isolation("n2", run="gone")]
    assert bench.lift("n2") == [Lifted("n2", (), "not drained")]


@pytest.mark.parametrize("words", ["fans, ticket 12", reason("xid: Xid 79", "another"), "transom: xid"])
def test_what_is_not_ours_stays_drained(bench: Bench, words: str) -> None:
    bench.slurm.drain("n2", words)
    (lifted,) = bench.lift("n2")
    assert lifted.slurm == f"left drained by user: {words}"
    assert bench.slurm.cluster.nodes["n2"].drain


def test_only_of_one_run(bench: Bench) -> None:
    bench.records.append(bench.isolation("n2", run="r2"))
    bench.drained("n2", run="r2")
    (lifted,) = bench.lift("n2", run="r1")
    assert lifted.slurm.startswith("left drained by user: transom: xid") and lifted.told == ("r1",)
    assert [(s.isolation.run, s.isolation.node) for s in bench.history.active] == [("r2", "n2"), ("r1", "n3")]


def test_who_may_not_resume_a_node_still_has_his_runs_use_it(bench: Bench) -> None:
    bench.drained("n2")
    bench.slurm.admin = False
    (lifted,) = bench.lift("n2")
    assert (lifted.slurm, lifted.told) == ("denied", ("r1",)) and "Invalid user id" in lifted.why
    assert [s.isolation.node for s in bench.history.active] == ["n3"]
    bench.slurm.admin = True
    to_lift(bench.history, ("n2",), "")
    assert bench.lift("n2") == [Lifted("n2", ("r1",), "resumed")], "asked once more, by somebody with rights"


def test_a_silent_slurm_leaves_only_its_part_open(bench: Bench) -> None:
    bench.drained("n2")
    bench.slurm.fail_next("nodes", SlurmUnknown("Slurm did not answer", "Socket timed out"))
    assert bench.lift("n2") == [Lifted("n2", ("r1",), "unknown", "Socket timed out")]
    bench.slurm.fail_next("undrain", SlurmDenied("Slurm refused", "Invalid user id"))
    assert bench.lift("n2")[0].slurm == "denied"


def test_a_node_that_slurm_does_not_know_any_more(bench: Bench) -> None:
    """Slurm refuses the whole list for its sake."""
    bench.records.append(bench.isolation("gone"))
    bench.drained("n2")
    assert [x.slurm for x in bench.lift("n2", "gone")] == ["resumed", "not a node of this cluster"]


def test_nodes_that_we_did_not_isolate_are_refused_before_anything_is_done(bench: Bench) -> None:
    with pytest.raises(UsageError, match="not isolated by a run of yours: `n4`") as caught:
        to_lift(bench.history, ("n2", "n4"), "")
    assert caught.value.exit_code == 2 and caught.value.why == "isolated nodes: n2, n3"
    with pytest.raises(UsageError, match="not isolated by run `r2`"):
        to_lift(bench.history, ("n2",), "r2")


def test_the_record_of_a_lift(bench: Bench) -> None:
    bench.lift("n2")
    (record,) = read_history(bench.folder, NOW)
    assert isinstance(record, Lift) and (record.who, record.nodes, record.run) == ("ann on login1", ("n2",), "")


@pytest.mark.parametrize("nodes", ["n2", None, {"n2": 1}])
def test_a_request_in_another_shape_is_passed_over(bench: Bench, nodes: object) -> None:
    bench.run.requests.mkdir()
    (bench.run.requests / "lift-1.json").write_text(json.dumps({"ask": "lift", "nodes": nodes}))
    assert bench.asked() == []


def test_nodes_of_one_name_on_two_clusters_are_two(bench: Bench) -> None:
    bench.records = [
        replace(bench.isolation("n2"), cluster="alps"),
        replace(bench.isolation("n2", "r2"), cluster="bern"),
    ]
    bench.drained("n2")
    bern = FakeSlurm(admin=True)
    asked = {"alps": bench.slurm, "bern": bern}
    lifted = lift(bench.history, ("n2",), "", "ann", bench.folder, lambda name: asked[name])
    assert [(one.cluster, one.slurm) for one in lifted] == [("alps", "resumed"), ("bern", "not drained")]
    bern.drain("n2", reason("xid: Xid 79", "r1"))  # by its name one of ours, but no run of ours on that cluster
    (_, other) = lift(bench.history, ("n2",), "", "ann", bench.folder, lambda name: asked[name])
    assert other.slurm.startswith("left drained by")
    (alone,) = lift(bench.history, ("n2",), "r1", "ann", bench.folder, lambda name: asked[name])
    assert alone.cluster == "alps"

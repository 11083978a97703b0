"""Metrics of a run: read back by Prometheus' own parsers, from a file and over HTTP."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notify_made import until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from transom_cli.ckpt.snapshot.account import Account, Held, Step
from transom_cli.core import events as ev
from transom_cli.core.codec import plain
from transom_cli.core.events import Decided
from transom_cli.core.goodput import NS, Kind, Sums
from transom_cli.core.incident import Diagnosis, Incident, NodeProbes, Stage
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Exclusion, Idle, Isolation, Job, Phase, Policy, Request, State
from transom_cli.core.progress import Progress
from transom_cli.diagnose.clue import Category
from transom_cli.heartbeat.table import NodeTable, RankBeat
from transom_cli.layout import RunDir
from transom_cli.notify import prometheus as exposition
from transom_cli.notify.exporter import MetricsConfig, MetricsExporter, in_memory, on_disk, time_by_kind
from transom_cli.notify.metrics import RunSnapshot, families
from transom_cli.notify.prometheus import registry, serve, sweep, write_text

NODES = ("n1", "n2", "n3", "n4")
LABELS = {"run", "name", "version", "phase", "category", "state", "place", "target", "result", "kind"}


def beat(rank: int, step: int, loss: float | None = None, launch: int = 1, age: float = 0.5) -> RankBeat:
    return RankBeat(rank, launch, step, step, age, loss, "step", 100 + rank, "R")


def diagnosed(category: str) -> Diagnosis:
    return Diagnosis("hang", "words", (), False, "none", True, decided=Decided(category=category))


def some_state(**more: object) -> State:
    reported = (("nccl_hang", "recovered"), ("cuda_oom", "recovered"), ("", "nothing"))
    closed = tuple(
        Incident(f"i{i}", 7, 0, 100.0, 5, Stage.CLOSED, diagnosis=diagnosed(name), result=result, ended_at=100.0 + i)
        for i, (name, result) in enumerate(reported, 1)
    )
    kept = (Exclusion("n8", 1.0, None, "drained", "i1", "r"), Exclusion("n9", 1.0, 2.0, "excluded", "i1", "r"))
    state = State(
        phase=Phase.TRAINING,
        since=50.0,
        epoch=2,
        incidents=closed,
        incident=Incident("i4", 7, 1, 200.0, 46),
        job=Job(id=7, restarts=1, starts=1, state="RUNNING", nodes=NODES),
        idle=Idle(nodes=("n3", "n4"), probes=(NodeProbes("n4", fails=2),)),
        progress=Progress(step=40, max_step=46, durable=40),
        isolation=Isolation(exclusions=kept),
    )
    return replace(state, **more)


def sight(state: State, **more: object) -> RunSnapshot:
    tables = (
        NodeTable("n1", "7.1", 3, (beat(0, 45, 2.5), beat(1, 44, 2.6, age=3.0))),
        NodeTable("n4", "7.1", 3, (beat(1, 12, launch=0, age=99.0),)),
        NodeTable("n2", "7.0", 3, (beat(2, 3),)),
    )
    saved = {"disk": (40, 990.0), "memory": (44, None)}
    reported = {("ops", "delivered"): 3, ("ops", "given up"): 1}
    spent = Sums({kind: (900 if kind is Kind.PRODUCTIVE else 10) * NS for kind in Kind})
    return RunSnapshot("demo-1", "demo", "0.1.0", 1000.0, state, tables, saved, reported, **{"spent": spent, **more})  # type: ignore[arg-type]


def read(reported: RunSnapshot) -> dict[tuple[str, ...], float]:
    text = exposition.generate_latest(registry(reported.run_id, lambda: families(reported))).decode()
    found = {}
    for family in prometheus(text):
        for sample in family.samples:
            assert set(sample.labels) <= LABELS and sample.labels["run"] == reported.run_id
            rest = tuple(value for name, value in sorted(sample.labels.items()) if name != "run")
            found[(sample.name, *rest)] = sample.value
    return found


def test_what_is_reported_of_a_run() -> None:
    reported = read(sight(some_state()))
    assert reported["transom_run_info", "demo", "0.1.0"] == 1
    assert reported["transom_run_phase", "training"] == 1 and reported["transom_run_phase", "held"] == 0
    assert sum(value for name, value in reported.items() if name[0] == "transom_run_phase") == 1
    assert reported["transom_run_phase_start_timestamp_seconds",] == 50
    assert reported["transom_run_starts_total",] == 2 and reported["transom_operator_starts_total",] == 2
    assert reported["transom_run_step",] == 44 and reported["transom_run_loss",] == 2.5
    assert reported["transom_ranks",] == 2 and reported["transom_step_age_seconds",] == 3
    assert reported["transom_slurm_up",] == 1 and reported["transom_incident_open",] == 1
    assert (
        reported["transom_incidents_total", "nccl_hang"] == 1 and reported["transom_incidents_total", "host_oom"] == 0
    )
    assert (
        reported["transom_incidents_total", "unknown"] == 1 and reported["transom_incidents_total", "undiagnosed"] == 1
    )
    assert reported["transom_recovery_seconds_sum",] == 3 and reported["transom_recovery_seconds_count",] == 2
    nodes = {name[1]: value for name, value in reported.items() if name[0] == "transom_nodes"}
    assert nodes == {"training": 2, "spare": 1, "given_up": 1, "drained": 1, "excluded": 1}
    assert reported["transom_checkpoint_step", "disk"] == 40 and reported["transom_checkpoint_step", "memory"] == 44
    assert reported["transom_checkpoint_age_seconds", "disk"] == 10
    assert ("transom_checkpoint_age_seconds", "memory") not in reported
    assert reported["transom_notifications_total", "delivered", "ops"] == 3
    assert reported["transom_last_update_timestamp_seconds",] == 1000
    assert ("transom_run_exit_code",) not in reported


def test_where_the_time_went() -> None:
    reported = read(sight(some_state()))
    assert reported["transom_run_goodput_ratio",] == pytest.approx(900 / 990)
    kinds = {key[1]: value for key, value in reported.items() if key[0] == "transom_run_time_seconds"}
    assert kinds == {kind.value: 900.0 if kind is Kind.PRODUCTIVE else 10.0 for kind in Kind}
    assert not [key for key in read(sight(some_state(), spent=None)) if "time_seconds" in key[0]]


def test_a_meter_accounts_for_a_real_runs_time_and_for_none_that_cannot_be_read(tmp_path: Path) -> None:
    recorded = Path(__file__).resolve().parents[1] / "view" / "recorded"
    runs = [RunDir(path) for path in sorted(recorded.iterdir()) if path.is_dir()]
    accounts = [time_by_kind(run) for run in runs]
    assert any(one is not None and 0 < (one.goodput or 0) < 1 for one in accounts)
    assert time_by_kind(RunDir(tmp_path / "nowhere")) is None


def test_what_is_not_known_has_no_sample() -> None:
    reported = read(RunSnapshot("r", "n", "v", 5.0, State()))
    for name in (
        "run_step",
        "run_loss",
        "step_age_seconds",
        "checkpoint_step",
        "run_exit_code",
        "run_phase_start_timestamp_seconds",
    ):
        assert not [key for key in reported if key[0] == f"transom_{name}"], name
    assert reported["transom_run_phase", "submitting"] == 1 and reported["transom_run_starts_total",] == 0


def test_nodes_of_a_job_that_waits_are_none_of_its_own() -> None:
    state = some_state(phase=Phase.HELD)
    reported = read(sight(replace(state, job=replace(state.job, state="PENDING"))))
    assert reported["transom_nodes", "training"] == 0 and reported["transom_nodes", "drained"] == 1


def test_every_category_is_there_from_the_beginning() -> None:
    """Else a first incident would be no increase."""
    reported = read(RunSnapshot("r", "n", "v", 5.0, State()))
    assert {key[1] for key in reported if key[0] == "transom_incidents_total"} == {c.value for c in Category} | {
        "undiagnosed"
    }


@given(st.text(max_size=30), st.text(max_size=30), st.lists(st.text(max_size=9), max_size=3))
def test_names_of_any_kind_are_read_back(run: str, name: str, targets: list[str]) -> None:
    reported = RunSnapshot(run, name, "v", 1.0, some_state(), sent={(target, "delivered"): 1 for target in targets})
    texts = [exposition.generate_latest(registry(run, lambda: families(reported))).decode()]
    for family in prometheus(texts[0]):
        for sample in family.samples:
            assert sample.labels["run"] == run


def test_openmetrics_take_it_with_units_and_helps() -> None:
    from prometheus_client.openmetrics.exposition import generate_latest

    made = registry("demo-1", lambda: families(sight(some_state())))
    reported = {family.name: family for family in open_metrics(generate_latest(made).decode())}
    assert reported["transom_checkpoint_age_seconds"].unit == "seconds"
    assert reported["transom_incidents"].type == "counter" and reported["transom_recovery_seconds"].type == "summary"
    assert all(family.documentation.endswith(".") for family in reported.values())
    assert all(re.fullmatch(r"transom_[a-z_]+", name) for name in reported)


@pytest.mark.long
def test_the_file_is_whole_at_every_moment_and_readable_by_all(tmp_path: Path) -> None:
    shown = [families(sight(some_state()))]
    made = registry("demo-1", lambda: shown[0])
    old = os.umask(0o077)
    try:
        write_text(made, tmp_path, "demo-1")
    finally:
        os.umask(old)
    path = tmp_path / "transom-demo-1.prom"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and [p.name for p in tmp_path.iterdir()] == [path.name]
    over = threading.Event()
    broken: list[str] = []

    def reader() -> None:
        while not over.is_set():
            text = path.read_text()
            if not text.endswith("\n") or "transom_last_update_timestamp_seconds{" not in text:
                broken.append(text)

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(200):
        write_text(made, tmp_path, "demo-1")
    over.set()
    thread.join()
    assert broken == []


def test_a_folder_that_is_full_keeps_the_old_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = registry("demo-1", lambda: families(sight(some_state())))
    write_text(made, tmp_path, "demo-1")
    path = tmp_path / "transom-demo-1.prom"
    old = path.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exposition.os, "fchmod", full)
    with pytest.raises(OSError):
        write_text(made, tmp_path, "demo-1")
    assert path.read_text() == old and list(tmp_path.iterdir()) == [path]


def test_files_of_runs_that_are_over_are_swept(tmp_path: Path) -> None:
    ages = {"transom-old.prom": 7200, ".transom-old.prom.1.tmp": 7200, "transom-new.prom": 60, "others.prom": 7200}
    for name, age in ages.items():
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["others.prom", "transom-new.prom"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def fetch(port: int, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def test_the_endpoint_speaks_both_formats_and_ends() -> None:
    port = free_port()
    stop = serve(registry("demo-1", lambda: families(sight(some_state()))), "127.0.0.1", port)
    try:
        text, kind = fetch(port)
        assert "text/plain" in kind and 'transom_run_step{run="demo-1"} 44.0' in text
        text, kind = fetch(port, "application/openmetrics-text; version=1.0.0")
        assert "openmetrics" in kind and text.endswith("# EOF\n") and list(open_metrics(text))
    finally:
        stop()
    with pytest.raises(OSError):
        fetch(port)


def gauging(tmp_path: Path, port: int | None, textfile: Path | None, every: float = 0.05) -> MetricsConfig:
    run = RunDir(tmp_path / "demo-1")
    run.path.mkdir(exist_ok=True)
    step = run.checkpoints / "step-40"
    step.mkdir(parents=True, exist_ok=True)
    (step / "manifest.json").write_text("{}")
    os.utime(step / "manifest.json", (time.time() - 100,) * 2)
    return MetricsConfig(run, "demo", run.checkpoints, textfile, port, "127.0.0.1", every)


def follow(meter: MetricsExporter, at: float) -> None:
    state = State(policy=Policy(), request=Request(num_nodes=2))
    for event in (
        ev.Started(at, 1),
        ev.Submitted(at, "submit", 7),
        ev.JobSeen(at, 7, 0, "RUNNING", nodes=("n1", "n2")),
        ev.CheckpointSeen(at, 40),
    ):
        before = state
        state, _ = decide(before, event)
        meter.seen(before, event, state)


def test_a_meter_shows_a_run_while_it_lives_and_at_its_end(tmp_path: Path) -> None:
    port, files = free_port(), tmp_path / "textfile"
    files.mkdir()
    meter = MetricsExporter(gauging(tmp_path, port, files), lambda: {("ops", "delivered"): 2})
    hold(RunDir(tmp_path / "demo-1"), "n1", 1, (43, ("a",)))
    meter.watch(lambda: (NodeTable("n1", "7.0", 1, (beat(0, 7, launch=0),)),))
    follow(meter, time.time() + 1)
    until(lambda: (files / "transom-demo-1.prom").exists())
    until(lambda: "transom_run_step" in (files / "transom-demo-1.prom").read_text())
    until(lambda: listens(port))
    until(lambda: 'transom_notifications_total{result="delivered"' in fetch(port)[0])
    meter.close()
    text = (files / "transom-demo-1.prom").read_text()
    age = re.search(r'transom_checkpoint_age_seconds\{place="disk",run="demo-1"\} ([0-9.]+)', text)
    assert 'transom_checkpoint_step{place="memory",run="demo-1"} 43.0' in text
    assert age is not None and 99 < float(age[1]) < 200
    with pytest.raises(OSError):
        fetch(port)


def hold(run: RunDir, node: str, of: int, *steps: tuple[int, tuple[str, ...]]) -> None:
    """What a node's memory holder shows: each step with the files that are here, of so many nodes."""
    created = datetime.fromtimestamp(time.time() - 5, timezone.utc).isoformat(timespec="seconds")
    kept = tuple(Step(n, created, "7.0", of, 10, of, tuple(Held(0, f, 5) for f in here), ()) for n, here in steps)
    folder = run.attempt(7, 0).nodes
    folder.mkdir(parents=True, exist_ok=True)
    account = Account("/ckpt", kept, "none", None, (), 0, 10, of)
    (folder / f"{node}.memory").write_text(json.dumps({"schema": 1, "trainings": [plain(account)]}))


def test_snapshots_in_memory_are_reported_where_all_shares_are_there(tmp_path: Path) -> None:
    run, now = RunDir(tmp_path), time.time()
    hold(run, "n1", 2, (45, ("a",)), (44, ("a",)))
    hold(run, "n2", 2, (44, ("b",)))
    assert in_memory(run.attempt(7, 0), now) == (44, pytest.approx(now - 5, abs=2))
    assert in_memory(run.attempt(7, 1), now) is None
    assert on_disk(run.checkpoints, 40) == (40, None) and on_disk(run.checkpoints, -1) is None


def test_what_the_journal_tells_of_the_past_is_no_number(tmp_path: Path) -> None:
    """A counter that is lower for a moment would look like a reset."""
    meter = MetricsExporter(gauging(tmp_path, None, tmp_path))
    follow(meter, time.time() - 3600)
    assert meter._thread.ident is None
    meter.close()


def test_trouble_ends_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder is not there yet, and the port is another run's: that takes nothing from the file."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meter = MetricsExporter(gauging(tmp_path, taken.getsockname()[1], tmp_path / "later"))
        follow(meter, time.time() + 1)
        until(lambda: "metrics: " in caplog.text)
        time.sleep(0.3)
        (tmp_path / "later").mkdir()
        until(lambda: (tmp_path / "later" / "transom-demo-1.prom").exists())
        assert caplog.text.count("Address already in use") == 1 and caplog.text.count("No such file") == 1
        meter.close()


def test_without_the_library_an_operator_says_so_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "transom_cli.notify.prometheus", None)
    meter = MetricsExporter(gauging(tmp_path, None, tmp_path))
    follow(meter, time.time() + 1)
    until(lambda: "install transom-cli[metrics]" in caplog.text)
    meter.close()


def test_nothing_else_loads_the_library() -> None:
    modules = "transom_cli.bootstrap.slurm, transom_cli.notify.exporter, transom_cli.cli.app"
    program = f"import sys, {modules}; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_every_number_is_in_the_docs() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "notifications.md").read_text()
    reported = {name.removesuffix("_sum").removesuffix("_count") for name, *_ in read(sight(some_state(exit_code=1)))}
    assert len(reported) >= 20 and [name for name in sorted(reported) if f"`{name}" not in text] == []

"""The parts of bench/ckpt.py: the state and what tells that it came back, the page cache, sums, ratios, tables."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import ckpt
import ckpt_turn
from ckpt_limits import _cut
from ckpt_methods import METHODS, Method, Place, leftovers, peer_places, publish
from ckpt_pages import cached, drop
from ckpt_plan import Case, plan, total
from ckpt_state import State
from ckpt_table import floors, main_table, ratio_table, ratios, seconds, summary, survival
from ckpt_turn import Turn
from harness import BenchError

from transom_cli.ckpt.snapshot.client import own_path

MIB = 1 << 20


def turn(method: str, stall: float, **more: Any) -> dict[str, Any]:
    saves = [
        {"kind": "first", "step": 1, "stall": 3 * stall, "durable": 4.0},
        {"kind": "alone", "step": 2, "stall": stall, "durable": 2.0},
        {
            "kind": "beside",
            "step": 3,
            "stall": 2 * stall,
            "durable": 3.0,
            "alone_s": 0.02,
            "beside_s": 0.025,
            "steps": 9,
        },
    ]
    loads = [{"kind": "cold", "seconds": 1.5, "step": 4, "wrong": "", "cached": 0.0}]
    memory = {"before": 100 * MIB, "peak": 400 * MIB, "after": 200 * MIB}
    survived = {"newest": 5, "step": 4, "where": "files", "passed": [], "silent": []}
    made = {"method": method, "made": 0.5, "saves": saves, "loads": loads, "memory": memory, "survived": survived}
    return {**made, **more}


@pytest.mark.parametrize("size", [MIB, 64 * MIB, 1 << 30, 3 << 30])
def test_a_state_of_any_size_has_the_same_tensors_and_nearly_that_size(size: int) -> None:
    items = plan(size)
    assert len(items) == 741
    assert len({item.name for item in items}) == 741
    assert size - 14 * 4096 <= total(items) <= size  # less than a row of the embedding is missing


def test_a_state_too_small_for_a_gpt_is_refused() -> None:
    with pytest.raises(BenchError, match="too small"):
        plan(100_000)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_ranks_parts_are_the_whole(ranks: int) -> None:
    for item in plan(MIB):
        rows = [item.local(rank, ranks) for rank in range(ranks)]
        if item.rows:
            assert sum(shape[0] for shape in rows) == item.shape[0]
            assert {shape[1:] for shape in rows} == {item.shape[1:]}
        else:
            assert set(rows) == {item.shape}


def test_what_the_ranks_hold() -> None:
    assert Case(100, 4).held == 100
    assert Case(100, 4, sharded=False).held == 400
    assert Case(1 << 30, 2, False).words == "1 GiB, 2 ranks, replicated"


@pytest.fixture(scope="module")
def state() -> State:
    return State(plan(MIB), 0, 1, None)


def test_a_state_that_came_back_is_known_bit_for_bit(state: State) -> None:
    state.fill()
    state.stamp(7)
    assert state.wrong(7) == ""
    assert state.wrong(8) != ""
    name, last = list(state.local.items())[300]
    byte = last.reshape(-1).view(torch.uint8)[9:10]
    byte ^= 1
    assert state.wrong(7) == name
    byte ^= 1
    assert state.wrong(7) == ""


def test_nothing_of_a_scrubbed_state_is_taken_for_a_load(state: State) -> None:
    state.fill()
    state.stamp(1)
    state.scrub()
    assert state.wrong(1) == next(iter(state.local))


def test_a_copy_that_mixes_two_steps_is_wrong(state: State) -> None:
    state.fill()
    state.stamp(1)
    early = {name: local.clone() for name, local in state.local.items()}
    state.stamp(2)
    late = next(reversed(early))
    state.put({**early, late: state.local[late].clone()})
    assert state.wrong(1) == late


def test_files_are_put_out_of_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    (tmp_path / "empty").touch()
    assert cached(tmp_path) == 1.0
    drop(tmp_path)
    assert cached(tmp_path) in (0.0, 1.0)  # 1.0: a file system in memory has nowhere else to put it
    assert cached(tmp_path / "nothing") is None


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    seen: list[str] = []

    def write(path: Path) -> None:
        seen.append(path.name)
        path.write_text("whole")

    publish(tmp_path / "step-1", "rank-0.pt", write)
    assert seen == [".rank-0.pt"]
    assert [path.name for path in (tmp_path / "step-1").iterdir()] == ["rank-0.pt"]


def test_shares_of_a_copy_are_all_of_it() -> None:
    assert _cut([(1000, 0, 10)], 2) == [[(1000, 0, 5)], [(1005, 5, 5)]]
    rows = [(0, 0, 5), (5, 5, 1), (6, 6, 3), (9, 9, 4)]
    shares = _cut(rows, 2)
    assert sorted(row for share in shares for row in share) == rows
    assert sorted(sum(row[2] for row in share) for share in shares) == [6, 7]


def test_peers_are_looked_for_in_a_folder_or_a_venv(tmp_path: Path) -> None:
    assert peer_places("") == []
    assert peer_places(str(tmp_path)) == [tmp_path]
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    assert peer_places(str(tmp_path)) == [site]


def test_medians_of_a_method() -> None:
    told = summary([turn("dcp", 0.1), turn("dcp", 0.3), turn("dcp", 0.2)])
    assert told["first"] == pytest.approx(0.6)
    assert told["stall"] == pytest.approx(0.25)
    assert told["stall_max"] == pytest.approx(0.6)
    assert (told["durable"], told["durable_beside"]) == (2.0, 3.0)
    assert told["speed"] == pytest.approx(0.8)
    assert (told["memory"], told["warm"], told["cold"]) == (None, None, 1.5)
    assert told["extra_peak"] == 300 * MIB and told["extra_after"] == 100 * MIB
    assert told["identical"] is True


def test_one_wrong_load_is_enough() -> None:
    bad = turn("dcp", 0.1, loads=[{"kind": "warm", "seconds": 1.0, "step": 4, "wrong": "model.norm.bias"}])
    assert summary([turn("dcp", 0.1), bad])["identical"] is False
    assert summary([turn("dcp", 0.1, loads=[])])["identical"] is None


@pytest.mark.parametrize(
    ("lost", "places", "silent", "words"),
    [
        ([0, 0], ["memory"], [], "0 (memory)"),
        ([0, 1], ["files"], [], "0 to 1 (files)"),
        ([None, 0], ["files"], [], "0 to all (files)"),
        ([None], [], [], "all"),
        ([], [], [], "-"),
        ([0], ["files"], ["files: step 3 loaded with another step.norm.bias"], "WRONG BITS"),
    ],
)
def test_survivors_are_described(lost: list[Any], places: list[str], silent: list[str], words: str) -> None:
    assert survival({"lost": lost, "from": places, "silent": silent}) == words


def test_the_floor_of_a_copy_is_the_best_copy_of_the_tensors() -> None:
    limits: list[dict[str, float | str]] = [
        {"memcpy, 2 threads": 20.0, "tensors, memcpy, 1 thread": 10.0, "tensors, memcpy, 2 threads": 16.0,
         "disk write": 1.0, "disk read, cold": "Invalid argument"},
        {"memcpy, 2 threads": 20.0, "tensors, memcpy, 1 thread": 12.0, "tensors, memcpy, 2 threads": 24.0,
         "disk write": 3.0, "disk read, cold": "Invalid argument"},
    ]  # fmt: skip
    assert floors(limits, 10**10) == {"copy": pytest.approx(0.5), "disk write": pytest.approx(5.0)}
    assert floors([{"tensors, memcpy, 1 thread": "none"}], 1) == {}


def test_each_ratio_has_its_baseline() -> None:
    rows = {"transom": summary([turn("transom", 0.1)]), "dcp": summary([turn("dcp", 0.4)])}
    told = ratios(rows, {"copy": 0.05})
    stalls = [row for row in told if row["of"] == "stall"]
    assert [(r["method"], r["to"], r["ratio"]) for r in stalls] == [
        ("transom", "floor", 3.0), ("dcp", "floor", 12.0), ("dcp", "transom", 4.0),
    ]  # fmt: skip
    assert [round(r["baseline_s"], 3) for r in stalls] == [0.05, 0.05, 0.15]
    assert not [row for row in told if row["of"] == "cold" and row["to"] == "floor"]


def test_the_tables_name_everybody_and_the_baselines() -> None:
    rows = {"transom": summary([turn("transom", 0.1)]), "dcp": summary([turn("dcp", 0.4)])}
    told = ratios(rows, {"copy": 0.05})
    text = _printed(main_table("1 GiB", rows), ratio_table("1 GiB", rows, told, "transom"))
    ours, theirs = (
        line.split() for line in text.splitlines() if line.startswith(("transom ", "DCP ")) and "x" not in line
    )
    assert ours[:4] == ["transom", "0.500", "0.300", "0.150"]
    assert theirs[-2:] == ["1", "(files)"]
    assert "4.00x (0.150)" in text


def test_a_cold_load_that_was_not_cold_is_marked() -> None:
    warm = turn("dcp", 0.1, loads=[{"kind": "cold", "seconds": 1.5, "step": 4, "wrong": "", "cached": 0.9}])
    assert "1.500?" in _printed(main_table("1 GiB", {"dcp": summary([warm])}))


def test_short_times_keep_their_digits() -> None:
    assert [seconds(x) for x in (None, 0.0123, 0.119, 2.83, 12.34)] == ["-", "0.0123", "0.119", "2.830", "12.3"]


def test_missing_method_is_reported_with_its_requirements() -> None:
    case = Case(MIB)
    absent = Turn("safetensors", case, [], [], {}, {}, "ModuleNotFoundError: No module named 'safetensors'")
    broken = Turn("dlrover", case, [], [], {}, {}, "TimeoutError: Timed out")
    good = Turn("dcp", case, [], [], {}, {})
    told = ckpt.missing([absent, broken, good])
    assert len(told) == 2
    assert told[0].endswith("pip install --no-deps --target DIR safetensors, then --peers DIR")
    assert told[1] == f"DLRover flash checkpoint, {case.words}: TimeoutError: Timed out"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "nobody"], "--only: some of machine, transom, torch-save"),
        (["--gib", "1,x"], "numbers, with commas"),
        (["--gib", "0"], "above 0"),
        (["--rounds", "0"], "above 0"),
        (["--peers", "/nowhere/at/all"], "is no folder"),
    ],
)
def test_bad_arguments_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ckpt.arguments(words)
    assert said in capsys.readouterr().err


def test_a_case_too_large_for_the_machine_is_named(tmp_path: Path) -> None:
    asked = ckpt.arguments(["--gib", "0.001,100000", "--ranks", "2", "--replicated"])
    fitting, told = ckpt.cases(asked, tmp_path)
    assert [case.ranks for case in fitting] == [2] and not fitting[0].sharded
    assert len(told) == 1 and "of memory" in told[0] and told[0].startswith("1e+05 GiB, 2 ranks, replicated")


def test_what_a_killed_trainer_leaves_running_is_found_and_ended() -> None:
    _alone("""
import subprocess
sleeper = "[sys.executable, '-c', 'import time; time.sleep(600)']"
child = f"import subprocess as s, sys; print(s.Popen({sleeper}, stdin=s.DEVNULL, stdout=s.DEVNULL).pid)"
left = int(subprocess.run([sys.executable, "-c", child], stdout=subprocess.PIPE, check=True).stdout)
assert psutil.Process(left).ppid() == psutil.Process().pid
assert ckpt_below.memory_below() > 0
ckpt_below.end_all()
assert not psutil.pid_exists(left)
assert ckpt_below.memory_below() == 0
""")


def test_a_rank_that_dies_before_its_time_is_no_result(tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    _alone(f"""
from pathlib import Path
from ckpt_plan import Case
ckpt_turn.WORKER = Path({str(worker)!r})
turns = Path({str(tmp_path)!r}) / "turns"
found = ckpt_turn.take("dcp", Case(1 << 20), ckpt_turn.Options(turns, "", 1, 0.001, 60.0), 0)
assert found.why == "a rank ended: last words", found
assert list(turns.iterdir()) == []
""")


def _alone(code: str) -> None:
    """In a process of its own: it becomes the subreaper of its descendants, and ends them all."""
    bench = str(Path(ckpt_turn.__file__).parent)
    head = f"import sys; sys.path.insert(0, {bench!r})\nimport ckpt_below, ckpt_turn, psutil\nckpt_below.adopt()\n"
    done = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_socket_of_a_turns_memory_holder_is_among_what_goes_with_it(tmp_path: Path) -> None:
    files = tmp_path / "files"
    socket = Path(own_path(files, "0123"))
    try:
        assert socket.parent in list(leftovers("job", [], files))
    finally:
        socket.parent.rmdir()


def test_a_method_that_cannot_save_or_load_is_none(state: State, tmp_path: Path) -> None:
    class Half(Method):
        def save(self, step: int) -> None:
            """It saves, and that is all."""

    with pytest.raises(TypeError, match="load"):
        Half(state, Place(tmp_path, 0, Case(MIB), "job"))  # type: ignore[abstract]


def test_every_method_is_where_it_is_said_to_be() -> None:
    for entry in METHODS.values():
        module, _, name = entry.where.partition(":")
        text = (Path(ckpt.__file__).parent / f"{module}.py").read_text()
        assert f"class {name}(" in text


def _printed(*tables: Any) -> str:
    console = Console(width=250, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]

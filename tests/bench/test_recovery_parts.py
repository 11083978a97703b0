"""The pure parts of bench/recovery.py: paces, limits, what a launcher's journal and a job's log tell, the table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from cases import CASES, hang_limit, median_step
from elastic import TORCHRUN, ElasticOutcome, ft_launchers
from injury import PHASES, beyond, seen_after, training_nodes
from recovery_table import Beside, ratios, summaries, table, targets
from slurmjob import steps_told

JOURNAL: list[dict[str, Any]] = [
    {"type": "attempt", "wall": 1.0, "nodes": ["n1", "n2", "n3", "n4"]},
    {"type": "launch", "wall": 2.0, "nodes": ["n1", "n2", "n3"]},
    {"type": "recovery", "wall": 15.5, "what": "seen"},
    {"type": "recovery", "wall": 17.0, "what": "diagnosed"},
    {"type": "launch", "wall": 18.0, "nodes": ["n1", "n4", "n3"]},
    {"type": "recovery", "wall": 40.0, "what": "seen"},
]


def row(case: str, total: float, **more: Any) -> dict[str, Any]:
    phases = dict.fromkeys(PHASES, 0.0)
    parts = {"import": 2.0, "join": 0.5}
    ours = {"case": case, "total": total, "beyond": total - 2.5, "start_up": parts, "median_step": 0.2}
    return {**ours, **phases, "batch_host": False, "bit_identical": True, **more}


def test_the_median_pace_is_not_moved_by_one_slow_stretch() -> None:
    assert median_step([(0.0, 2), (1.0, 6), (2.0, 10), (12.0, 11), (13.0, 15)]) == 0.25


def test_a_hang_is_to_be_seen_in_ten_seconds_or_three_steps() -> None:
    assert hang_limit(0.2) == 10.0
    assert hang_limit(20.0) == 60.0


def test_newest_launch_shows_where_ranks_are() -> None:
    assert training_nodes(JOURNAL[:4]) == ("n1", "n2", "n3")
    assert training_nodes(JOURNAL) == ("n1", "n4", "n3")
    assert training_nodes([]) == ()


def test_a_finding_counts_from_the_fault() -> None:
    assert seen_after(JOURNAL, 10.0) == 5.5
    assert seen_after(JOURNAL, 16.0) == 24.0
    assert seen_after(JOURNAL, 41.0) is None


def test_import_and_join_are_what_every_start_pays() -> None:
    assert beyond(10.0, {"import": 3.0, "join": 0.5, "build": 1.0, "restore": 1.0}) == 6.5
    assert beyond(10.0, {}) == 10.0


def test_steps_count_from_the_newest_start() -> None:
    first = "training from step 0 to 80 on 3 ranks, cpu\nstep 1 loss 5.4\nstep 2 loss 5.3\n"
    assert steps_told(first) == [1, 2]
    assert steps_told(first + "training from step 0 to 80 on 3 ranks, cpu\n") == []
    assert steps_told("") == []


def test_other_launcher_runs_between_srun_and_the_trainer() -> None:
    last = TORCHRUN[0].script().splitlines()[-1]
    assert last.startswith('exec srun --kill-on-bad-exit=1 "${PYTHON:-python3}" -m torch.distributed.run --nnodes=')
    assert "--max-restarts=3" in last
    assert last.endswith(' "${TRAIN:-$SLURM_SUBMIT_DIR/train.py}" "$@"')


def test_missing_ft_launcher_is_reported(tmp_path: Path) -> None:
    (tmp_path / "nvidia_resiliency_ext.py").write_text("raise ImportError('no GPU, no launcher')\n")
    launchers, why = ft_launchers(tmp_path)
    assert launchers == []
    assert "does not start here (ImportError: no GPU, no launcher)" in why
    assert "pip install" in why


def test_job_outcome_is_described() -> None:
    hung = ElasticOutcome("torchrun", "hang", how="never within 90 s")
    assert hung.words() == "nothing seen, never within 90 s"
    killed = ElasticOutcome("torchrun", "rank-kill", seen=0.26, seconds=9.04, how="back")
    assert killed.words() == "seen after 0.3 s, back after 9.0 s"


def test_medians_and_the_start_up_by_case() -> None:
    told = summaries([row("rank-kill", 6.0), row("rank-kill", 9.0), row("rank-kill", 7.0)])["rank-kill"]
    assert told["runs"] == 3
    assert told["total"] == {"median": 7.0, "min": 6.0, "max": 9.0}
    assert told["beyond"]["median"] == 4.5
    assert told["start_up"] == {"import": 2.0, "join": 0.5}
    assert "split" not in told


def test_batch_host_is_listed_separately() -> None:
    told = summaries([row("node-kill", 20.0, batch_host=True), row("node-kill", 10.0)])["node-kill"]
    assert told["split"]["batch host"]["total"]["median"] == 20.0
    assert told["split"]["others"]["total"]["median"] == 10.0


@pytest.mark.parametrize(("total", "ratio", "met"), [(7.5, 1.0, True), (8.5, 1.2, False)])
def test_rank_kill_target_is_judged(total: float, ratio: float, met: bool) -> None:
    asked = targets(summaries([row("rank-kill", total)]))
    assert asked == [
        {"case": "rank-kill", "what": "beyond", "median": total - 2.5, "limit": 5.0, "ratio": ratio, "met": met}
    ]


def test_a_spare_may_take_five_seconds_more_and_no_spare_is_not_judged() -> None:
    assert CASES["node-kill-spare"].limit == 10.0
    assert targets(summaries([row("node-kill", 30.0)])) == []


def test_a_hang_is_held_against_its_own_limit() -> None:
    hangs = [row("hang", 15.0, seen=5.0, seen_limit=10.0), row("hang", 40.0, seen=30.0, seen_limit=20.0)]
    assert [(t["what"], t["ratio"], t["met"]) for t in targets(summaries(hangs[:1]))] == [("seen", 0.5, True)]
    assert [(t["what"], t["ratio"], t["met"]) for t in targets(summaries(hangs[1:]))] == [("seen", 1.5, False)]


def test_others_are_compared_by_their_medians_and_never_is_no_number() -> None:
    told = summaries([row("rank-kill", 5.0)])
    back = [Beside("torchrun", "rank-kill", s, "back", {}, None) for s in (10.0, 20.0, 15.0)]
    never = Beside("sbatch --requeue", "rank-kill", None, "never came back", {}, None)
    assert [r["ratio"] for r in ratios(told, [*back, never])] == [3.0, None]
    assert ratios(told, [*back, Beside("torchrun", "rank-kill", None, "never", {}, None)])[0]["ratio"] is None
    assert ratios({}, back)[0]["ratio"] is None


def test_a_case_that_transom_was_not_measured_with_keeps_its_name() -> None:
    text = table({}, [Beside("torchrun", "rank-kill", 12.0, "back", {}, 12.0)], [])
    assert text.splitlines()[3].split()[:4] == ["rank-kill", "torchrun", "1", "12.0"]


def test_the_table_has_a_line_for_everybody() -> None:
    rows = [row("rank-kill", 6.0), row("hang", 15.0, seen=5.0, seen_limit=10.0)]
    others = [
        Beside("torchrun", "rank-kill", 12.0, "back", {"import": 2.0, "join": 0.1}, 9.9),
        Beside("torchrun", "hang", None, "never within 90 s", {}, None),
    ]
    text = table(summaries(rows), others, rows)
    ours, theirs, hung, stopped = (line.split() for line in text.splitlines()[3:7])
    assert (ours[:4], ours[-4:]) == (["rank-kill", "transom", "1", "6.0"], ["3.5", "(3.5", "to", "3.5)"])
    assert (theirs[:3], theirs[-1]) == (["torchrun", "1", "12.0"], "2")
    assert hung[:2] == ["hang", "transom"]
    assert " ".join(stopped) == "torchrun 1 never within 90 s - - - -"
    assert "bit-identical to the uninterrupted run: 2 of 2" in text
    assert "hang: 5.0 s to the launcher's finding, limit 10.0 s (median step 0.20 s): 0.50, met" in text

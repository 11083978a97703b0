"""A node of a real Slurm dies with the snapshots that it held: the run goes on from the others' memory.

Nothing is on disk when it dies (`--persist` beyond the run's length), the model is sharded, so a dead node's shard
is nowhere but in parity; and the final state is bit for bit that of a run without a fault.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from e2e.support import Person, at_step, over
from e2e.test_spares import launches, ready

from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long]
GPT = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "train.py"
STEPS = 60


def start(person: Person, nodes: int, spares: int, protect: str, final: Path) -> RunDir:
    words = ["-N", str(nodes), *(["--spares", str(spares)] if spares else []), "--", sys.executable, str(GPT)]
    small = ["--layers", "1", "--width", "32", "--context", "32", "--batch", "2", "--fsdp", "--step-delay", "0.2"]
    saves = ["--every", "1", "--persist", "100000", "--protect", protect]
    return person.start(*words, "--steps", str(STEPS), *small, *saves, "--final-hash", str(final))


def told(path: Path) -> str:
    return str(json.loads(path.read_text())["sha256"])


@pytest.mark.parametrize(("protect", "nodes"), [("replica", 2), ("xor:2", 3), ("rs:2+1", 3)])
@pytest.mark.timeout(600)
def test_a_dead_nodes_shard_comes_from_the_others_memory(
    person: Person, sandbox: Sandbox, tmp_path: Path, protect: str, nodes: int
) -> None:
    run = start(person, nodes, 1, protect, tmp_path / "fault.json")
    job_id = person.wait(run, at_step(12), 180)["job_id"]
    person.wait(run, lambda _: ready(run, job_id, "warm: "))
    checkpoints = run.path / "checkpoints"
    assert not list(checkpoints.glob("step-*"))
    faults.kill_node(sandbox, "node2")
    view = person.wait(run, over, 400)
    assert (view["phase"], view["step"]) == ("done", STEPS)
    assert len(launches(run, job_id)) == 2
    said = (run.attempt(job_id, 0).logs(1) / "rank-0.log").read_text()
    assert "in memory" in said and "parity in memory" in said, said
    quiet = start(person, nodes, 0, "none", tmp_path / "quiet.json")
    faults.restore_node(sandbox, "node2", undrain=True)
    assert person.wait(quiet, over, 400)["phase"] == "done"
    assert told(tmp_path / "fault.json") == told(tmp_path / "quiet.json")

"""The examples of docs/frameworks.md with the real frameworks under a real Slurm, through faults.

`make test-frameworks` runs them in an environment that has all frameworks. Each final state must be the undisturbed
run's, bit for bit (but see `REPEATS`), with the same number of threads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.support import Person, at_step, over

from transom_cli.ckpt.seal import sealed
from transom_cli.heartbeat import paths
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.sandbox, pytest.mark.long, pytest.mark.timeout(1800)]  # frameworks start slowly
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PACKAGES = {"huggingface": "transformers", "torch_save": "torch"}  # else: the framework's own name
FRAMEWORKS = ("huggingface", "lightning", "accelerate", "deepspeed", "torch_save")
WITH_CALLBACK = FRAMEWORKS[:-1]
WITH_SNAPSHOTS = ("huggingface", "lightning", "accelerate", "deepspeed")
REPEATS = ("lightning",)  # it begins an interrupted epoch with its first batch again, unless the loader is stateful
RANKS, STEPS, EVERY = 2, 60, 10
PATIENCE = 600.0

NEWEST = "max(Path(args.out).glob('*.ckpt'), key=lambda path: path.stat().st_mtime, default=None)"
UNCHANGED = {  # the examples without transom: what to replace
    "huggingface": (
        ("from transom_cli.integrations.huggingface import TransomCallback, latest", ""),
        ("TransomCallback(snapshot_every=args.snapshot_every), ", ""),
        ("disable_tqdm=True", "disable_tqdm=False"),
        ("latest(trainer)", "any(Path(args.out).glob('checkpoint-*'))"),
    ),
    "lightning": (
        ("from transom_cli.integrations.lightning import TransomCallback, latest", ""),
        ("TransomCallback(args.out, snapshot_every=args.snapshot_every)", "L.pytorch.callbacks.TQDMProgressBar()"),
        ("enable_progress_bar=False", "enable_progress_bar=True"),
        ("latest(args.out)", NEWEST),
    ),
    "deepspeed": (
        ("from transom_cli.integrations.deepspeed import attach, resume", ""),
        (
            "run = attach(engine, snapshot_every=args.snapshot_every)",
            "deepspeed.utils.set_log_level_from_string('info')",
        ),
        ("resume(engine, args.out)", "os.path.exists(args.out) and engine.load_checkpoint(args.out)"),
        ("run.close()", ""),
        ("import hashlib\n", "import hashlib, os\n"),
        (" and not run.stop", ""),
        (" or run.due", ""),
        ('"train_micro_batch_size_per_gpu": 4', '"train_micro_batch_size_per_gpu": 4, "steps_per_print": 1'),
    ),
    "accelerate": (
        ("from transom_cli.integrations.accelerate import attach, latest", "from types import SimpleNamespace"),
        (
            "attach(accelerator, snapshot_every=args.snapshot_every)",
            "SimpleNamespace(step=0, due=False, stop=False, snapshot=lambda: None)",
        ),
        ("latest(args.out)", "max(Path(args.out).glob('*'), key=lambda path: path.stat().st_mtime, default=None)"),
        ("load_state(path)", "load_state(path)\n    run.step = int(path.name.split('_')[1])"),
        ("optimizer.zero_grad()", "optimizer.zero_grad()\n        run.step += 1"),
    ),
    "torch_save": (),
}
STAYING = ("huggingface", "lightning", "accelerate")
LOGGING = [framework for framework in UNCHANGED if framework != "accelerate"]  # its loop is the user's, as its log is


def unchanged(framework: str, folder: Path) -> Path:
    """The example as it is without transom."""
    text = (EXAMPLES / framework / "train.py").read_text()
    for old, new in UNCHANGED[framework]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert "transom_cli" not in text
    script = folder / "train.py"
    script.write_text(text)
    return script


def recoverable(framework: str, folder: Path) -> Path:
    """The example in a function that is entered again after another rank's death."""
    head, parsed, body = (EXAMPLES / framework / "train.py").read_text().partition("args = parser.parse_args()\n")
    function = ["from transom_cli import recoverable", "", "@recoverable", "def train(ctx):"]
    function += [f"    {line}" for line in body.splitlines()]
    function += ["", "train()", ""]
    script = folder / "train.py"
    script.write_text(head + parsed + "\n".join(function))
    return script


def example(
    framework: str, out: Path, final: Path, *, delay: float, every: int = EVERY, script: Path | None = None
) -> tuple[str, ...]:
    if importlib.util.find_spec(PACKAGES.get(framework, framework)) is None:
        pytest.skip(f"{framework} is not installed; `make test-frameworks` has it")
    numbers = ("--steps", str(STEPS), "--every", str(every), "--step-delay", str(delay))
    return (sys.executable, str(script or EXAMPLES / framework / "train.py"), str(out), *numbers, "--final", str(final))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The hash of each framework's final state on two ranks, without Slurm, faults and pauses."""
    known: dict[str, str] = {}

    def of(framework: str) -> str:
        if framework not in known:
            folder = tmp_path_factory.mktemp(framework)
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = str(free.getsockname()[1])
            env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TRANSOM_"))}
            env |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            env |= {"LOCAL_WORLD_SIZE": str(RANKS), "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
            command = example(framework, folder / "out", folder / "final", delay=0.0)
            starts = [{**env, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(RANKS)]
            ranks = [subprocess.Popen(command, env=one) for one in starts]
            assert [rank.wait(PATIENCE) for rank in ranks] == [0] * RANKS
            known[framework] = (folder / "final").read_text()
        return known[framework]

    return of


class Training:
    """A framework's example, supervised."""

    def __init__(
        self,
        person: Person,
        framework: str,
        every: int = EVERY,
        *,
        plain: bool = False,
        staying: bool = False,
        snapshots: int = 0,
        more: tuple[str, ...] = (),
    ) -> None:
        self.person, self.framework = person, framework
        self.out, self.final = person.cwd / "out", person.cwd / "final"
        person.env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRANSOM_CHECKPOINT__FOREIGN__PATTERN": ""}
        if framework == "torch_save" and not plain:
            person.env["TRANSOM_CHECKPOINT__FOREIGN__PATTERN"] = f"{self.out}/ckpt-*.pt"
        delay = 0.5 if framework == "torch_save" or snapshots else 0.2  # a seal without code needs 10 s
        script = unchanged(framework, person.cwd) if plain else None
        script = recoverable(framework, person.cwd) if staying else script
        command = example(framework, self.out, self.final, delay=delay, every=every, script=script)
        command += ("--snapshot-every", str(snapshots)) if snapshots else ()
        self.run = person.start("-N", str(RANKS), *more, "--", *command)

    def wait(self, ready: Any) -> dict[str, Any]:
        return self.person.wait(self.run, ready, PATIENCE)

    def wait_for_seal(self, step: int) -> dict[str, Any]:
        return self.wait(lambda view: over(view) or any(one.step >= step for one in sealed(self.out)))

    def signal_rank(self, number: int = signal.SIGKILL, rank: int = 1) -> None:
        os.kill(rank_pid(self.run, rank), number)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.run.path.rglob("*.log")))

    def finish(self, undisturbed: Any, excluded: tuple[str, ...] = ()) -> dict[str, Any]:
        view = self.wait(over)
        assert (view["phase"], tuple(one[0] for one in view["excluded"])) == ("done", excluded), self.logs()[-6000:]
        same = self.final.read_text() == undisturbed(self.framework)
        assert same or self.framework in REPEATS, "the final state differs"
        return view


def rank_pid(run: RunDir, rank: int, script: str = "train.py") -> int:
    """The newest process of a rank, by its environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            env = dict(word.split("=", 1) for word in path.read_text(errors="replace").split("\0") if "=" in word)
        except OSError:
            continue
        names = (paths.RUN_DIR, paths.ROLE, "RANK")
        mine = tuple(map(env.get, names)) == (str(run.path), "rank", str(rank))
        if mine and script in (path.parent / "cmdline").read_text(errors="replace"):
            found.append(int(path.parent.name))
    return min(found)  # its loader workers are younger


def resumed_from(training: Training) -> list[int]:
    """The step at which each launch after the first began, as the launcher's answer file or the trainer says it."""
    if training.framework == "torch_save":
        return sorted({int(step) for step in re.findall(r"^from step (\d+)$", training.logs(), re.MULTILINE)} - {0})
    answers = [json.loads(path.read_text())["path"] for path in sorted(training.run.path.rglob("resume/*.json"))]
    numbers = (re.findall(r"\d+", Path(answer).stem) for answer in answers if answer)
    return sorted(int(found[-1]) for found in numbers)


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "torchtitan"])
def test_lines_to_change(framework: str, record_property: Any) -> None:
    """The number in the table of the docs is that of the added lines in their diff, which are those of the example."""
    docs = (EXAMPLES.parent / "docs" / "frameworks.md").read_text()
    titles = {"huggingface": "Hugging Face Trainer", "lightning": "Lightning", "deepspeed": "DeepSpeed"}
    title = {**titles, "torch_save": "torch.save"}.get(framework, framework)
    section = docs.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert section
    added = [line for line in section.partition("```diff")[2].partition("```")[0].splitlines() if line.startswith("+")]
    (row,) = (line for line in docs.splitlines() if line.startswith("| [") and title.lower() in line.lower())
    cell = row.split("|")[2].strip()
    assert cell == (str(len(added)) if added else "none")
    record_property("cell", cell)
    if framework != "torchtitan":
        example = (EXAMPLES / framework / "train.py").read_text()
        calls = set(re.findall(r"\b(?:TransomCallback|latest|attach|resume|due)\b", "\n".join(added)))
        assert [name for name in calls if name not in example] == []


@pytest.mark.parametrize("framework", LOGGING)
def test_own_step_and_loss_are_shown_without_a_changed_line(person: Person, framework: str) -> None:
    training = Training(person, framework, plain=True)
    training.wait(lambda view: over(view) or (view["step"] >= 2 * EVERY and not view["steps_since_start"]))
    training.signal_rank()
    view = training.wait(over)
    assert view["phase"] == "done", training.logs()[-6000:]
    assert (view["step"], view["steps_since_start"]) == (STEPS, False)
    own = view["own_checkpoint"]
    assert (own["step"] >= STEPS - EVERY, own["sealed"]) == (True, False), own
    text = " ".join(person.transom("status", training.run.run_id).stdout.split())
    assert f"(step {own['step']}, not sealed)" in text, text
    assert view["loss"] is not None or framework in ("deepspeed", "lightning")  # these examples log no loss


@pytest.mark.parametrize("framework", UNCHANGED)
def test_hang_is_seen_without_a_changed_line(person: Person, framework: str) -> None:
    training = Training(person, framework, plain=True)
    training.wait(lambda view: over(view) or view["step"] >= EVERY + 3)
    training.signal_rank(signal.SIGSTOP)
    view = training.wait(over)
    assert (view["phase"], view["excluded"]) == ("done", []), training.logs()[-6000:]
    assert any("step" in one["message"] for one in view["incidents"]), view["incidents"]


@pytest.mark.parametrize("framework", ["nvrx"])
def test_hang_is_seen_by_sections_of_nvrx(person: Person, framework: str) -> None:
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        pytest.skip("nvidia-resiliency-ext is not installed; `make test-frameworks` has it")
    script = Path(__file__).with_name("nvrx_trainer.py")
    run = person.start("-N", str(RANKS), "--", sys.executable, str(script), str(STEPS))
    person.wait(run, lambda view: over(view) or (view["step"] >= EVERY and view["steps_since_start"]), PATIENCE)
    os.kill(rank_pid(run, 1, script.name), signal.SIGSTOP)
    hung = person.wait(run, lambda view: over(view) or bool(view["incidents"]), PATIENCE)
    assert "step" in hung["incidents"][0]["message"], hung["incidents"]
    view = person.wait(run, over, PATIENCE)
    assert (view["phase"], view["excluded"], view["step"]) == ("done", [], STEPS)


@pytest.mark.parametrize("framework", ["tensorboard"])
def test_step_and_loss_are_read_from_event_files(person: Person, framework: str) -> None:
    """A script that prints nothing is killed, and continues from its own checkpoint."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed; `make test-frameworks` has it")
    text = (EXAMPLES / "torch_save" / "train.py").read_text()
    text, lines = re.subn(r"print\(f\"iter .*\)", 'writer.add_scalar("train/loss", loss.item(), step)', text)
    made = "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter(args.out / 'tb', flush_secs=2)"
    text = text.replace("step = 0\n", f"step = 0\n{made}\n", 1)
    assert lines == text.count("SummaryWriter(") == 1
    script = person.cwd / "train.py"
    script.write_text(text)
    out = person.cwd / "out"
    command = example("torch_save", out, person.cwd / "final", delay=0.5, script=script)
    run = person.start("-N", str(RANKS), "--", *command)
    person.wait(run, lambda view: over(view) or (view["step"] >= 2 * EVERY and out.is_dir()), PATIENCE)
    os.kill(rank_pid(run, 1), signal.SIGKILL)
    view = person.wait(run, over, PATIENCE)
    assert (view["phase"], view["step"], view["steps_since_start"]) == ("done", STEPS, False), view
    assert view["loss"] is not None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resumes_from_sealed_checkpoint_after_rank_kill(person: Person, undisturbed: Any, framework: str) -> None:
    undisturbed(framework)
    training = Training(person, framework)
    training.wait_for_seal(2 * EVERY)
    training.signal_rank()
    view = training.finish(undisturbed)
    assert max(resumed_from(training)) >= 2 * EVERY
    assert (view["step"], view["steps_since_start"]) == (STEPS, False) or framework == "torch_save"
    own = view["own_checkpoint"]
    assert own["step"] >= STEPS - EVERY
    assert (own["step"], own["sealed"]) == (view["durable"], True) or framework == "torch_save", own  # 10 s later


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_resumes_on_a_spare_after_node_kill(person: Person, sandbox: Sandbox, undisturbed: Any, framework: str) -> None:
    undisturbed(framework)
    training = Training(person, framework, more=("--spares", "1"))
    view = training.wait_for_seal(2 * EVERY)
    killed = view["nodes"][1]
    faults.kill_node(sandbox, killed)
    view = training.finish(undisturbed, excluded=(killed,))
    assert max(resumed_from(training)) >= 2 * EVERY
    assert view["starts"] == 0 and killed not in view["nodes"]


@pytest.mark.parametrize("framework", WITH_SNAPSHOTS)
@pytest.mark.parametrize("newer", ["snapshot", "checkpoint"])
def test_resumes_from_memory_after_rank_kill(person: Person, undisturbed: Any, framework: str, newer: str) -> None:
    """Of a snapshot and a sealed checkpoint, the newer one is used."""
    undisturbed(framework)
    training = Training(person, framework, every=1000 if newer == "snapshot" else EVERY, snapshots=7)
    training.wait(lambda view: over(view) or view["step"] >= (2 * 7 + 5 if newer == "snapshot" else 2 * EVERY))
    if newer == "checkpoint":
        training.wait_for_seal(2 * EVERY)  # newer than 2 * 7, older than 3 * 7
    training.signal_rank()
    training.finish(undisturbed)
    restored = [int(step) for step in re.findall(r"restored step-(\d+) in memory", training.logs())]
    begun = max([*restored, *resumed_from(training)])
    assert begun >= (2 * 7 if newer == "snapshot" else 2 * EVERY), training.logs()[-4000:]
    assert newer == "checkpoint" or begun in restored


@pytest.mark.parametrize("framework", STAYING)
def test_survivor_enters_its_training_again(person: Person, undisturbed: Any, framework: str) -> None:
    undisturbed(framework)
    more = ("--set", "launch.recoverable=true")
    training = Training(person, framework, every=1000, snapshots=7, staying=True, more=more)
    for rank, step in ((1, 20), (0, 40)):  # a second death on one node would exclude it
        training.wait(lambda view, step=step: over(view) or (view["step"] >= step and not view["steps_since_start"]))
        training.signal_rank(rank=rank)
    training.finish(undisturbed)
    logs = training.logs()
    restored = [int(step) for step in re.findall(r"restored step-(\d+) in memory", logs)]
    assert max(restored) >= 5 * 7, logs[-4000:]
    journals = [path.read_text() for path in training.run.path.rglob("launcher.jsonl")]
    assert "1 rank re-entered in the same process" in "".join(journals)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_falls_back_from_corrupted_newest(person: Person, undisturbed: Any, framework: str) -> None:
    undisturbed(framework)
    training = Training(person, framework)
    training.wait_for_seal(2 * EVERY)
    newest = sealed(training.out)[0]
    entry = max(newest.files, key=lambda one: one.size)
    data = bytearray((newest.base / entry.name).read_bytes())
    data[len(data) // 2] ^= 1
    (newest.base / entry.name).write_bytes(data)
    training.signal_rank()
    training.finish(undisturbed)
    assert f"{newest.path} is not used" in training.logs()
    assert 0 < min(resumed_from(training)) < newest.step
    kept = newest.path.with_name(f"{newest.path.name}.bad-1").exists()
    assert kept or framework == "huggingface"  # its `save_total_limit` counts the renamed folder, and deletes it


@pytest.mark.parametrize("framework", WITH_CALLBACK)
def test_final_checkpoint_before_time_limit(person: Person, sandbox: Sandbox, undisturbed: Any, framework: str) -> None:
    """The warning is sent by hand; a real limit would take minutes."""
    undisturbed(framework)
    training = Training(person, framework, every=1000)
    view = training.wait(at_step(13))
    sandbox.slurm("scancel", "--batch", "--signal=USR2", str(view["job_id"]))
    view = training.wait(lambda v: v["starts"] == 1 or over(v))
    left = json.loads(training.run.attempt(view["job_id"], 0).outcome.read_text())
    assert (left["status"], left["cause"]) == ("left", "time_limit"), training.logs()[-6000:]
    assert left["why"] == f"the time limit is near; step {left['durable']} is durable"
    training.finish(undisturbed)
    assert left["durable"] in resumed_from(training)

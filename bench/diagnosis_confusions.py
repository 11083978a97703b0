#!/usr/bin/env python
"""Compose confusing logs from labelled ones, and count how often the diagnosis stays right, by kind of composition.

    python bench/diagnosis_confusions.py [FOLDER] [--number 2000] [--seed 0]     FOLDER/labels.jsonl and its logs

Kinds: a second launch in the same file (two failures; a failure and then a healthy run), a healthy rank between the
lines of the one that fails, doubled rank labels, teardown noise after the end, handled warnings before it. Only logs
that are diagnosed correctly alone are used, so each miss is a confusion. Without a folder, the base texts are the
examples of the log rules.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diagnosis_report import tell
from diagnosis_score import ASKED, BENIGN, Label, labels, right

from transom_cli.diagnose.clue import DEVICES
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Level, Rulebook

LARGEST = 256 << 10  # bytes of a base text
ENDED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
LAUNCHES = (
    "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n",
    "srun: error: gpu3: task 0: Exited with exit code 1\n"
    "W0105 03:20:11.123000 4711 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each "
    "process to be 1 in default, to avoid your system being overloaded.\n",
    ENDED + "[2026-01-05 03:20:11,376] [INFO] [runner.py:607:main] cmd = python -u -m deepspeed.launcher.launch\n",
    ENDED + "Master node: gpu1:4711 NCCL version 2.21.5+cuda12.4\n",
)
TEARDOWN = (
    "[rank0]:[W105 03:17:51.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before "
    "we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group\n",
    "[W105 03:17:52.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4, addr=[gpu1]:4711): Connection "
    "reset by peer\n",
    '[rank1]:[W105 03:17:52.1 ProcessGroupNCCL.cpp:1662] [PG ID 0 Rank 1] Failed to check the "should dump" flag on '
    "TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n",
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 8 "
    "leaked semaphore objects to clean up at shutdown\n",
    "wandb: WARNING Network error (ConnectionError), entering retry loop.\n",
)
HANDLED = (
    "gpu1:4711:4799 [0] NCCL WARN Call to connect returned Connection refused, retrying\n"
    "gpu1:4711:4799 [0] NCCL INFO comm 0x1 rank 0 nranks 8 - Init COMPLETE\n",
    "WARNING: CUDA out of memory, retrying with half the batch\n",
    "huggingface_hub: HTTP Error 503 thrown while requesting HEAD; Retrying in 1s [Retry 1/5].\n",
    "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`\n",
)


@dataclass(frozen=True)
class Base:
    label: Label
    text: str


def steps(draw: random.Random, rank: str = "") -> list[str]:
    first = draw.randrange(10, 5000)
    return [f"{rank}step {first + n} loss {draw.uniform(1, 3):.4f} lr 1.0e-4\n" for n in range(12)]


def two_failures(one: Base, other: Base, draw: random.Random) -> Base:
    return Base(one.label, other.text + draw.choice(LAUNCHES) + one.text)


def then_healthy(one: Base, other: Base, draw: random.Random) -> Base:
    """A healthy launch replaces what ended the one before, but a fault of a device is still to be reported."""
    device = one.label.category in {category.value for category in DEVICES}
    return Base(
        one.label if device else Label("", BENIGN, "none", "", ""),
        one.text + draw.choice(LAUNCHES) + "".join(steps(draw)) + "training completed\n",
    )


def interleaved(one: Base, other: Base, draw: random.Random) -> Base:
    """A rank of another program in the same file: its progress absolves nobody."""
    lines = "".join(steps(draw, "[rank1]: ")[:6])
    of_one = [f"[rank0]: {line}" for line in one.text.splitlines(keepends=True)]
    return Base(
        one.label, lines + "".join(steps(draw, "[rank0]: ")) + "".join(of_one) + "".join(steps(draw, "[rank1]: "))
    )


def doubled(one: Base, other: Base, draw: random.Random) -> Base:
    return Base(one.label, "".join(f"[rank0]:[rank0]: {line}" for line in one.text.splitlines(keepends=True)))


def teardown(one: Base, other: Base, draw: random.Random) -> Base:
    return Base(one.label, one.text + "".join(draw.sample(TEARDOWN, 3)))


def warnings(one: Base, other: Base, draw: random.Random) -> Base:
    return Base(one.label, "".join(draw.sample(HANDLED, 2)) + "".join(steps(draw)) + one.text)


KINDS: tuple[Callable[[Base, Base, random.Random], Base], ...] = (
    *(two_failures, then_healthy, interleaved, doubled, teardown, warnings),
)


def labelled(folder: Path) -> list[Base]:
    wanted = labels((folder / "labels.jsonl").read_text(encoding="utf-8"))
    texts = {label.file: (folder / label.file).read_bytes()[-LARGEST:].decode("utf-8", "replace") for label in wanted}
    return [
        Base(label, text if text.endswith("\n") else text + "\n")
        for label, text in zip(wanted, texts.values(), strict=True)
    ]


def composed() -> list[Base]:
    """The examples of rules that name a cause, as short logs."""
    bases = []
    for rule in load():
        if (
            rule.level >= Level.CAUSE
            and rule.category is not None
            and not (rule.below or rule.frame)
            and rule.times == 1
        ):
            head = 'Traceback (most recent call last):\n  File "train.py", line 12, in main\n' if rule.traced else ""
            for line in rule.examples:
                label = Label(rule.name, rule.category.value, rule.action.value, line, rule.source)
                bases.append(Base(label, f"{head}{line}\n"))
    return bases


def diagnosed(base: Base, folder: Path, book: Rulebook) -> dict[str, bool]:
    (folder / "job.log").write_text(base.text, encoding="utf-8")
    label = Label("job.log", base.label.category, base.label.action, base.label.root_line, base.label.group)
    return right(label, tell(folder, label, book))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--misses", type=int, default=0, help="how many misses of each kind to print")
    given = parser.parse_args()
    draw, book = random.Random(given.seed), Rulebook(load())
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        bases = labelled(given.folder) if given.folder else composed()
        bases = [base for base in bases if all(diagnosed(base, folder, book).values())]
        failures = [base for base in bases if base.label.category != BENIGN]
        good, all_of, missed = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
        for number in range(given.number):
            kind = KINDS[number % len(KINDS)]
            of = bases if kind is teardown or kind is warnings else failures
            one, other = draw.choice(of), draw.choice(failures)
            answers = diagnosed(kind(one, other, draw), folder, book)
            for asked, is_right in answers.items():
                good[kind.__name__, asked] += is_right
                all_of[kind.__name__, asked] += 1
            if not all(answers.values()) and missed[kind.__name__] < given.misses:
                missed[kind.__name__] += 1
                print(kind.__name__, json.dumps([one.label.file, other.label.file, answers]), file=sys.stderr)
    print(f"{len(bases)} logs that are diagnosed correctly alone, {given.number} compositions, seed {given.seed}\n")
    print(f"{'':14}" + "".join(f"{asked:>20}" for asked in ASKED))
    for kind in KINDS:
        shares = ((good[kind.__name__, asked], all_of[kind.__name__, asked]) for asked in ASKED)
        cells = (f"{a}/{b} ({a / b:.1%})" if b else "-" for a, b in shares)
        print(f"{kind.__name__:14}" + "".join(f"{cell:>20}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Who prints a line without labels, by the lines around it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.grammar import clean, record
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FRAME = '  File "train.py", line 7, in step\n    loss.backward()\n'
TRACE = f"Traceback (most recent call last):\n{FRAME}"
CPP = "[rank3]:[E105 03:17:51.123456789 setup.cpp:44] [Rank 3] "


def labelled(shape: str, own: int, ranks: int = 4, line: str = OOM) -> str:
    """Interleaved lines of several processes, and the error of one."""
    draw = random.Random(7)
    lines = [f"{shape.format(draw.randrange(ranks))}loading shard\n" for _ in range(40)]
    return "".join(lines) + f"{shape.format(own)}{line}\n"


WHO = [
    (f"{CPP}setup failed!\nException raised from prepare at setup.cpp:20 (most recent call first):\n", Culprit(rank=3)),
    (f"{CPP}\nthread terminated with exception: CUDA error: uncorrectable ECC error encountered\n", Culprit(rank=3)),
    (f"ray::Worker.step() (pid=17, ip=10.0.0.7, actor_id=1a)\n{FRAME}{OOM}\n", Culprit("10.0.0.7")),
    (f"ray::W.step() (pid=17, ip=10.0.0.7, repr=W[rank=2])\n{FRAME}{OOM}\n", Culprit("10.0.0.7", 2)),
    (f"2026-01-05 03:17:51,376 [ERROR] [rank3] the training failed\n{TRACE}{OOM}\n", Culprit(rank=3)),
    (
        "  what():  NCCL error in: NCCLUtils.hpp:181, unhandled cuda error\nProcess Group destroyed on rank 3\n",
        Culprit(rank=3),
    ),
    # the only rank that has errors in C++, too
    (f"{TRACE}{OOM}\n{CPP}the thread ends\n", Culprit(rank=3)),
    (f"{TRACE}{OOM}\n{CPP}the thread ends\n{CPP.replace('3', '2')}the thread ends\n", None),
    (f"{TRACE}{OOM}\n{CPP}the operation has timed out\n", None),
    (f"rank 3 - the training failed, since rank 3 raised an exception\n{TRACE}{OOM}\n", Culprit(rank=3)),
    (f"rank 3 - step 7\n{TRACE}{OOM}\n", None),
    # a message of another rank is not the head of a traceback
    (f"{CPP}attention setup failed!\n{TRACE}{OOM}\n", None),
    (f"2026-01-05 03:17:51,376 [INFO] [rank3] saved\n{TRACE}{OOM}\n", None),
    (f"[rank3]: step 7\n{OOM}\n", None),
    # launchers that no label knows
    (labelled("<w-{0}> ", 2), Culprit(rank=2)),
    (labelled("({0}) ", 0, 2), Culprit(rank=0)),
    (labelled("<node-{0}> ", 2), Culprit("node-2")),
    (labelled("ant{0} | ", 1), Culprit("ant1")),
    (labelled("ant{0}.cluster: ", 1), Culprit("ant1.cluster")),
    (labelled("<{0}> ", 4711, 9000), None),  # IDs of processes
    (labelled("(step {0}) ", 2), None),
    ("".join(f"<{n}> loading shard\n" for n in range(40)) + f"<40> {OOM}\n", None),
]


@pytest.mark.parametrize(("text", "who"), WHO, ids=range(len(WHO)))
def test_lines_around_the_root_show_who_printed_it(tmp_path: Path, text: str, who: Culprit | None) -> None:
    (tmp_path / "job.out").write_text(text)
    first, *_ = diagnose_logs([tmp_path], BOOK).incidents
    assert first.culprits == ((who,) if who else ())


@pytest.mark.parametrize(
    "label",
    [
        "[1,mpirank:5,algo-1]<stderr>:",
        "[prterun-gpu3-17@1,5]<stderr>: ",
        "2026-01-05T03:17:51.376000Z stderr F [rank5]: ",
        "2026-01-05T03:17:51.376000Z 01E [rank5]: ",
        "704.7s\t1463\t[rank5]: ",
        "[stderr][rank5]: ",
    ],
)
def test_labels_of_services(label: str) -> None:
    said = record(clean(f"{label}ValueError: x".encode()))
    assert (said.rank, said.text) == (5, "ValueError: x")

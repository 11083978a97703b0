"""Of several lines of one event the one that tells, by the kinds of messages; what is said of a run that is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.logs.cause import Incident
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.logs.rulefiles import load

BOOK = Rulebook(load())
XID = "NVRM: Xid (PCI:0000:48:00): "


def of(tmp_path: Path, text: str) -> tuple[Incident, ...]:
    (tmp_path / "job.out").write_text(text)
    return diagnose_logs([tmp_path], BOOK).incidents


@pytest.mark.parametrize(
    ("text", "category", "line"),
    [
        (  # what the GPU needs now is no cause; the Xid before it is
            f"{XID}74, pid=7, NVLink: fatal error detected on link 8(0x0)\n"
            f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n",
            Category.NVLINK_FABRIC,
            1,
        ),
        (f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot)\n", Category.GPU_HARDWARE, 1),
        (  # a GPU that falls off its bus breaks its peers' links
            f"{XID}79, GPU has fallen off the bus.\n{XID}74, pid=7, NVLink: fatal error detected on link 8(0x0)\n",
            Category.GPU_HARDWARE,
            1,
        ),
        (f"{XID}13, Graphics SM Warp Exception\n{XID}109, CTX SWITCH TIMEOUT\n", Category.CUDA_KERNEL_FAULT, 1),
        (f"{XID}109, CTX SWITCH TIMEOUT\n{XID}45, pid=7, Ch 00000010\n", Category.GPU_HARDWARE, 1),
    ],
)
def test_which_line_tells(tmp_path: Path, text: str, category: Category, line: int) -> None:
    first = of(tmp_path, text)[0]
    assert (first.category, first.root.lineno) == (category, line)

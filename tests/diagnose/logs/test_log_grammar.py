"""What stands before a line's text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.grammar import LOOKED_AT, clean, of_file, record
from transom_cli.diagnose.logs.masks import literals

LINES = {
    "[rank3]: ValueError: x": ("ValueError: x", 3, ""),
    "[rank4]:[E1103 08:11:02.120481233 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught": ("Watchdog caught", 4, ""),
    "[rank0]:[E1103 08:11:02.12 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 0] L": ("L", 0, ""),
    "[E ProcessGroupNCCL.cpp:523] [Rank 5] Watchdog": ("Watchdog", 5, ""),
    "E0213 12:07:20.086000 8705 torch/distributed/elastic/multiprocessing/api.py:869] failed": ("failed", None, ""),
    "[W1103 08:11:02.12 socket.cpp:697] [c10d] The client": ("[c10d] The client", None, ""),
    "[default3]:Traceback": ("Traceback", None, ""),
    "[1,7]<stderr>: oops": ("oops", 7, ""),
    "[7]<stderr>:oops": ("oops", 7, ""),
    '"[rank3]: oops': ("oops", 3, ""),
    "[gpu7:4711] *** An error": ("*** An error", None, "gpu7"),
    "[gpu7:4711:0:4712] Caught signal 11": ("Caught signal 11", None, "gpu7"),
    "[12:30] *** start": ("[12:30] *** start", None, ""),
    "12: oops": ("oops", 12, ""),
    "gpu7:4711:4799 [2] transport/net_ib.cc:93 NCCL WARN x": ("transport/net_ib.cc:93 NCCL WARN x", None, "gpu7"),
    "Mar 02 11:20:31 gpu017 kernel: [8123.110022] NVRM: Xid": ("NVRM: Xid", None, "gpu017"),
    "[Sun Feb 23 16:24:18 2025] NVRM: Xid": ("NVRM: Xid", None, ""),
    "kern  :warn  : 2025-01-21T02:21:33,498559+00:00 NVRM: Xid": ("NVRM: Xid", None, ""),
    "(Trainer pid=17, ip=10.0.0.7) boom": ("boom", None, "10.0.0.7"),
    "2025-08-25 14:56:20,376 [INFO] [launch.py:319:x] Killing": ("Killing", None, ""),
    "[2025-08-25 14:56:20,376] [ERROR] x": ("x", None, ""),
    "(raylet) [2025-08-25 14:56:20,376 E 17 17] (raylet) node_manager.cc:30: x": ("x", None, ""),
    "10.1.2.3: [rank5]: ValueError: x": ("ValueError: x", 5, "10.1.2.3"),
    "worker-1: Traceback": ("Traceback", None, "worker-1"),
    "GPUB2F:   boom": ("boom", None, "GPUB2F"),
    "dgx-a100-07: [rank3]: boom": ("boom", 3, "dgx-a100-07"),
    "nid004711: boom": ("boom", None, "nid004711"),
    "ip-10-0-4-17: boom": ("boom", None, "ip-10-0-4-17"),
    "GPU1: 71 GiB": ("GPU1: 71 GiB", None, ""),
    "cnn_2: 12 layers": ("cnn_2: 12 layers", None, ""),
    "[PG 3 Rank 5] boom": ("boom", 5, ""),
    "trainer-1  | (Worker_TP0 pid=231) ERROR 10-17 16:33:42 [x.py:623] boom": ("boom", 0, ""),
    "loss-1 | 0.5": ("0.5", None, ""),
    "i.pretrain/0 [default3]:[rank3]:   boom": ("boom", 3, ""),
    "loss/0 [1]: 2.5": ("loss/0 [1]: 2.5", None, ""),
    "step 1 | 0.5": ("step 1 | 0.5", None, ""),
    "[pod/train-0/pytorch] [rank3]: boom": ("boom", 3, "train-0"),
    "train-worker-3 pytorch boom": ("boom", None, "train-worker-3"),
    "pytorch-train-worker-3: boom": ("boom", None, "pytorch-train-worker-3"),
    "[GPU 3] boom": ("boom", None, ""),
    "[2026-01-05 03:17:51,123] [ERROR] [axolotl.utils.load:191] [PID:17] [RANK:3] boom": ("boom", 3, ""),
    "2026-01-05 03:17:51.376 CRITICAL [olmo.util:159, rank=3] boom": ("boom", 3, ""),
    "[2026-01-05 14:56:20 DP1 PP0 TP3] boom": ("boom", 3, ""),
    "(worker1, rank=5, pid=17, ip=10.0.0.7) boom": ("boom", 5, "10.0.0.7"),
    "Jan 05 10:00:00 [rank1]: boom": ("boom", 1, ""),
    "slurmstepd-gpu4: error: *** JOB 7": ("slurmstepd-gpu4: error: *** JOB 7", None, "gpu4"),
    "srun: error: gpu1: task 3: Killed": ("srun: error: gpu1: task 3: Killed", 3, "gpu1"),
    "srun: error: gpu1: tasks 3,5-7: Killed": ("srun: error: gpu1: tasks 3,5-7: Killed", None, "gpu1"),
    "[2026-01-05T03:17:51.1Z] dc5b74e6 [rank=3] ||   boom": ("boom", 3, ""),
    "plain text: 3": ("plain text: 3", None, ""),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_labels_are_taken_away_and_read(line: str) -> None:
    found = record(line)
    assert (found.text, found.rank, found.node) == LINES[line]
    assert found.line == line


@pytest.mark.parametrize(("line", "level"), [
    ("2025-08-25 14:56:20.376000: W tensorflow/core/x.cc:64] loud", "W"),
    ("I0825 14:56:20.376000 17 train.py:501] loud", "I"),
    ("W0000 00:00:1700000000.000000   17 gpu_backend_lib.cc:593] loud", "W"),
    ("[rank1]:[W1103 08:11:02 TCPStore.cpp:125] loud", "W"),
    ("WARNING:absl:loud", "WARNING"),
    ("2025-08-25 14:56:20,376 - mmdet - INFO - loud", "INFO"),
    ("[NeMo W 2025-08-25 14:56:20 nemo_logging:349] loud", "W"),
    ("(EngineCore pid=256) WARNING 08-25 14:56:20 [config.py:100] loud", "WARNING"),
    ("2025-08-25 14:56:20,032 WARNING worker.py:1072 -- loud", "WARNING"),
    ("INFO 08-25 14:56:20 __init__.py:190] loud", "INFO"),
    ("2025-08-25 14:56:20.376 | WARNING  | __main__:main:82 - loud", "WARNING"),
])  # fmt: skip
def test_how_serious_a_program_takes_its_own_line(line: str, level: str) -> None:
    found = record(line)
    assert (found.text, found.level, found.mild) == ("loud", level, True)


def test_warning_is_recognised_by_its_own_label() -> None:
    assert record("srun: warning: can't honor it").mild and record("| WARNING: ran out of memory").mild
    assert not record("ERROR: no warning: it is one").mild and not record("warnings.warn(x)").mild
    assert not record("[rank0]:[E1103 08:11:02.12 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog").mild


def test_times_and_numbers() -> None:
    assert record("2025-01-21T02:21:33,500000+00:00 x").at == 1737426093.5
    assert record("2025-01-21 02:21:33 x").at == 1737426093.0
    assert record("2025-01-21T04:21:33+0200 x").at == 1737426093.0
    assert record("[Tue Jan 21 02:21:33 2025] x").at == 1737426093.0
    assert record("2025-13-41 02:21:33 x").at is None
    assert record("[default3]: x").local == 3
    assert record("gpu7:1:2 [2] x").device == "2"


def test_what_a_logs_name_tells() -> None:
    assert of_file("logs/rank-12.log") == (12, "")
    assert of_file("/a/b/job.rank3.err") == (3, "")
    assert of_file("task_7.out") == (7, "")
    assert of_file("slurm-4711.out") == (None, "")
    assert of_file("/x/frank-3.log") == (None, "")
    assert of_file("node=gpu-7/rank_0.log") == (0, "gpu-7")
    assert of_file("logs/job.node-gpu7.err") == (None, "gpu7")
    assert of_file("logs/rank_3/stdout") == (3, "")
    assert of_file("none_ab/attempt_0/3/stderr.log") == (3, "")
    assert of_file("4711_3_log.err") == (3, "")
    assert of_file("log/workerlog.3") == (3, "")
    assert of_file("slurm-4711_3.out") == (None, ""), "a job array's task"
    assert of_file("glue_task_2/multi_node_training/slurm.out") == (None, "")
    assert of_file("multi-node-training.log") == (None, ""), "no host's name"


def test_lines_are_clean_and_short() -> None:
    assert clean(b"\x1b[31mred\x1b[0m\x07 \xff\x00tab\tend  ") == "red \ufffdtab end"
    assert len(clean(b"x" * 1_000_000)) == LOOKED_AT


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_line_breaks_it(text: str) -> None:
    found = record(clean(text.encode()))
    assert found.text in found.line or found.text == found.line.strip()
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in found.line)


@given(
    st.lists(
        st.sampled_from(
            ["[rank3]:", "[Rank 3]", "2025-01-21 02:21:33", "[INFO]", "12: ", "gpu7:1:2 [0] ", "| ", "[", "rank 3:"]
        ),
        max_size=8,
    )
)
def test_labels_in_any_order_end(parts: list[str]) -> None:
    assert record(clean(" ".join([*parts, "text"]).encode())).text.endswith("text")


def test_no_label_depends_on_the_value_of_a_digit() -> None:
    assert [text for one in grammar.EXPRESSIONS for text in literals(one) if re.search(r"[0-9]", text)] == []

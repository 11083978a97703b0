"""Stacks: both kinds of dump are read alike, places are told apart, and who stands apart is named or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.stacks import Dump
from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.hangs import dumps, stacks
from transom_cli.diagnose.hangs.stacks import (
    NOWHERE,
    Cluster,
    Kind,
    OddRanks,
    Place,
    Stand,
    cluster,
    find_odd_ranks,
    place,
)

DATA = Path(__file__).parents[2] / "supervise" / "agent" / "data"
PYSPY = (DATA / "pyspy_native.txt").read_text()

FAULT = """\
Fatal Python error: Segmentation fault

Thread 0x00007f263d4276c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f2660492b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/u/job/train.py", line 43 in step
  File "/home/u/job/train.py", line 146 in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def stack(*frames: str) -> Place:
    """py-spy's dump of a main thread, innermost frame first, and a helper thread that must not count."""
    lines = "\n".join(f"    {frame}" for frame in (*frames, "<module> (train.py:146)"))
    helper = 'Thread 2 (idle): "pin_memory"\n    _pin_memory_loop (torch/utils/data/_utils/pin_memory.py:51)'
    return place(dumps.parse(f'Process 1: x\n\nThread 1 (idle): "MainThread"\n{lines}\n{helper}\n').main)


def test_faulthandler() -> None:
    dump = dumps.parse(FAULT)
    assert [len(thread.frames) for thread in dump.threads] == [2, 4]
    assert dump.main is not None and dump.main.ident == "0x00007f2660492b80" and dump.main.active
    assert (dump.main.frames[0].function, dump.main.frames[0].line) == ("all_reduce", 3252)
    assert dumps.fatal(FAULT) == "Fatal Python error: Segmentation fault"
    assert dumps.fatal(PYSPY) == ""


def test_the_main_thread_is_not_the_one_that_took_the_signal() -> None:
    """dump_traceback from a helper thread: that one is "current", and the program continues in another."""
    swapped = FAULT.replace("Current thread", "Thread").replace("Thread 0x00007f263d", "Current thread 0x00007f263d")
    main = dumps.parse(swapped).main
    assert main is not None and main.frames[0].function == "all_reduce"


def test_both_kinds_map_to_one_place() -> None:
    fault = place(dumps.parse(FAULT).main)
    pyspy = stack(
        "all_reduce (torch/distributed/distributed_c10d.py:3100)",
        "wrapper (torch/distributed/c10d_logger.py:81)",
        "step (train.py:40)",
    )
    assert (fault.kind, fault.path) == (pyspy.kind, pyspy.path)
    assert fault.path == (
        "<module> (train.py)",
        "step (train.py)",
        "all_reduce (torch/distributed/distributed_c10d.py)",
    )
    assert fault.words.startswith("all_reduce (torch/distributed/distributed_c10d.py:3252) < wrapper")


@pytest.mark.parametrize(
    ("kind", "frames"),
    [
        (Kind.COLLECTIVE, ["pthread_cond_wait (libc.so.6)", "c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so)",
                           "all_reduce (torch/distributed/distributed_c10d.py:9)", "step (train.py:1)"]),
        (Kind.COLLECTIVE, ["wait_tensor (torch/distributed/_functional_collectives.py:9)", "step (train.py:1)"]),
        (Kind.COLLECTIVE, ["ncclGroupEnd (libnccl.so.2)", "step (train.py:1)"]),
        (Kind.COLLECTIVE, ["barrier (torch/distributed/distributed_c10d.py:9)", "save_checkpoint (train.py:7)"]),
        (Kind.PEER, ["recv (torch/distributed/distributed_c10d.py:9)", "forward (stage.py:1)"]),
        (Kind.PEER, ["_communicate (megatron/core/pipeline_parallel/p2p_communication.py:9)", "step (train.py:1)"]),
        (Kind.STORE, ["_store_based_barrier (torch/distributed/distributed_c10d.py:9)", "main (train.py:1)"]),
        (Kind.STORE, ["c10d::TCPStore::wait (libtorch_cpu.so)", "init_process_group (torch/distributed/"
                      "distributed_c10d.py:9)"]),
        (Kind.DEVICE, ["cuStreamSynchronize (libcuda.so.535.104)", "step (train.py:1)"]),
        (Kind.DEVICE, ["synchronize (torch/cuda/__init__.py:890)", "step (train.py:1)"]),
        (Kind.BACKWARD, ["_engine_run_backward (torch/autograd/graph.py:768)", "backward (torch/_tensor.py:521)",
                         "step (train.py:1)"]),
        (Kind.LOADER, ["wait (threading.py:331)", "get (queue.py:180)",
                       "_try_get_data (torch/utils/data/dataloader.py:1243)", "train (train.py:1)"]),
        (Kind.LOADER, ["read (libc.so.6)", "_read (PIL/ImageFile.py:2)", "__getitem__ (dataset.py:4)",
                       "fetch (torch/utils/data/_utils/fetch.py:52)", "train (train.py:1)"]),
        (Kind.CHECKPOINT, ["fsync (libc.so.6)", "save_checkpoint (io.py:54)", "train (train.py:1)"]),
        (Kind.CHECKPOINT, ["__exit__ (torch/serialization.py:780)", "train (train.py:1)"]),
        (Kind.OWN, ["forward (block.py:3)", "checkpoint (torch/utils/checkpoint.py:489)", "train (train.py:1)"]),
        (Kind.STORAGE, ["openat (libc.so.6)", "log (train.py:3)"]),
        (Kind.LOCK, ["_wait_for_tstate_lock (threading.py:1116)", "join (threading.py:1096)", "flush (logger.py:30)"]),
        (Kind.LOCK, ["do_futex_wait (libc.so.6)", "update (metrics.py:3)"]),
        (Kind.SLEEP, ["clock_nanosleep (libc.so.6)", "poll (train.py:3)"]),
        (Kind.COMPILE, ["compile_fx (torch/_inductor/compile_fx.py:9)", "train (train.py:1)"]),
        (Kind.IMPORT, ["get_code (<frozen importlib._bootstrap_external>:1069)",
                       "_find_and_load (<frozen importlib._bootstrap>:1176)",
                       "<module> (torch/distributed/checkpoint/__init__.py:3)",
                       "_find_and_load (<frozen importlib._bootstrap>:1176)", "main (train.py:58)"]),
        (Kind.OWN, ["forward (torch/nn/modules/linear.py:116)", "wrapper (torch/nn/parallel/distributed.py:9)",
                    "step (train.py:1)"]),
    ],
)  # fmt: skip
def test_places(kind: Kind, frames: list[str]) -> None:
    assert stack(*frames).kind is kind


def test_decisive_frame_is_shown() -> None:
    waits = stack(
        "0x7f58370a3f16 (libc.so.6)",
        "c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so)",
        "_engine_run_backward (torch/autograd/graph.py:979)",
        "step (train.py:9)",
    )
    assert waits.words == (
        "c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so) < _engine_run_backward (torch/autograd/graph.py:979)"
        " < step (train.py:9)"
    )
    assert (
        stack("0x7f58370a3f16 (libc.so.6)", "step (train.py:9)").words == "step (train.py:9) < <module> (train.py:146)"
    )


def stand(rank: int, kind: Kind, *path: str, native: bool = True) -> Stand:
    return Stand(rank, f"n{rank // 2}", Place(kind, path or (kind.name,), f"in {kind.name}", native))


def stands(**ranks: int) -> list[Stand]:
    """`stands(COLLECTIVE=3, LOADER=1)`: so many ranks at each, numbered in that order."""
    kinds = [Kind[name] for name, count in ranks.items() for _ in range(count)]
    return [stand(rank, kind) for rank, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ({"COLLECTIVE": 7, "LOADER": 1}, (7,)),
        ({"COLLECTIVE": 7, "DEVICE": 1}, (7,)),
        ({"DEVICE": 6, "CHECKPOINT": 2}, (6, 7)),
        ({"BACKWARD": 6, "LOCK": 1, "COLLECTIVE": 1}, (6,)),
        ({"OWN": 7, "LOADER": 1}, (7,)),  # without native frames a wait for the GPU is not to be seen
        ({"COLLECTIVE": 4, "LOADER": 4}, (4, 5, 6, 7)),  # of like size, and their places tell
        ({"COLLECTIVE": 1, "LOADER": 7}, ()),  # too many: shared storage, say
        ({"OWN": 4, "SLEEP": 4}, ()),
        ({"COLLECTIVE": 8}, ()),
        ({"DEVICE": 8}, ()),
        ({"LOADER": 8}, ()),
        ({"PEER": 6, "COLLECTIVE": 2}, ()),
        ({"UNKNOWN": 7, "LOADER": 1}, ()),
    ],
)
def test_ranks_at_a_different_place_are_outliers(ranks: dict[str, int], named: tuple[int, ...]) -> None:
    assert find_odd_ranks(cluster(stands(**ranks))).ranks == named


def test_stacks_do_not_separate_ranks_in_different_collectives() -> None:
    both = [stand(0, Kind.COLLECTIVE, "a"), stand(1, Kind.COLLECTIVE, "a"), stand(2, Kind.COLLECTIVE, "b")]
    assert find_odd_ranks(cluster(both)).ranks == (2,) and find_odd_ranks(cluster(both)).sure < 0.5
    assert find_odd_ranks(cluster([*both, stand(3, Kind.COLLECTIVE, "b")])).ranks == ()


def test_stacks_without_native_frames_join_the_same_calls_with_them() -> None:
    """py-spy may read native frames of some ranks alone."""
    seen = [stand(0, Kind.DEVICE, "step"), stand(1, Kind.DEVICE, "step"), stand(2, Kind.OWN, "step", native=False)]
    (one,) = cluster(seen)
    assert (one.kind, one.ranks, one.nodes) == (Kind.DEVICE, (0, 1, 2), ("n0", "n1"))
    assert len(cluster([*seen[:2], stand(2, Kind.OWN, "step")])) == 2, "that one has native frames, and none of the GPU"


def test_the_clue_names_ranks_nodes_and_places() -> None:
    found = stacks.clue([*stands(COLLECTIVE=7, LOADER=1), Stand(8, "n4", NOWHERE)])
    assert found is not None and found.source == "stacks" and found.category is Category.DATA_LOADER
    assert [str(culprit) for culprit in found.culprits] == ["rank 7 on n3"]
    assert found.evidence == (
        "rank 7 is in the data loader, the others wait",
        "ranks 0-6 are in a collective: in COLLECTIVE",
        "rank 7 is in the data loader: in LOADER",
        "no stack of rank 8",
    )
    assert stacks.clue([Stand(0, "", NOWHERE)]) is None and stacks.clue([]) is None


@given(st.lists(st.tuples(st.sampled_from(Kind), st.sampled_from("ab"), st.booleans()), max_size=30))
def test_any_places_get_an_answer(found: list[tuple[Kind, str, bool]]) -> None:
    made = [stand(rank, kind, path, native=native) for rank, (kind, path, native) in enumerate(found)]
    groups = cluster(made)
    assert sorted(rank for c in groups for rank in c.ranks) == list(range(len(made)))
    said = find_odd_ranks(groups)
    assert isinstance(said, OddRanks) and set(said.ranks) < set(range(len(made))) | {-1}
    assert 2 * len(said.ranks) <= len(made) and 0 <= said.sure <= 1
    assert all(isinstance(c, Cluster) and str(c) for c in groups)


@given(st.text() | st.lists(st.sampled_from([*FAULT.split("\n"), *PYSPY.split("\n")])).map("\n".join))
def test_any_text_has_an_answer(text: str) -> None:
    dump = dumps.parse(text)
    assert isinstance(dump, Dump) and isinstance(place(dump.main), Place)
    assert isinstance(dumps.is_stack(text), bool) and "\x1b" not in dumps.fatal(text)

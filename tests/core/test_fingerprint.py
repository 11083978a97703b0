"""One failure has one fingerprint, on whichever rank, node and step; another failure has another."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from transom_cli.core.log_lines import fingerprint, mask

numbers = st.integers(0, 10**9)
STEMS = ("gpu{}", "node-{}", "nid{:06}", "dgx-a{}.cluster.local", "10.0.{}.7")  # of a cluster: all its hosts alike
paths = st.from_regex(r"/[a-z]{1,6}(?:/[a-zA-Z0-9_.-]{1,9}){1,3}", fullmatch=True)
addresses = st.from_regex(r"0x[0-9a-f]{4,12}", fullmatch=True)
values = st.floats(allow_nan=False, allow_infinity=False).map(str)
SHAPES = (
    "[rank{n}]: RuntimeError: bad sample {n} in {path}",
    "[{host}:{n}] NCCL WARN Call to connect returned Connection refused, peer {host}",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.50 GiB. GPU {n} has a capacity of {n} GiB",
    "terminate called: c10::Error at {address}, rank {n}, step {n}/{n}",
    'File "{path}", line {n}, in forward: loss is {value}',
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, Timeout(ms)={n}) for ranks {n}, {n}, {n}",
    "srun: error: {host}: task {n}: Exited with exit code 1",
    "2026-01-02 03:04:{n} [{host}] step={n} lr={value} ValueError: no such key 'tokens'",
)


@st.composite
def two_of_a_kind(draw: st.DrawFn) -> tuple[str, str]:
    shape, stem = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(STEMS))
    hosts = st.integers(0, 255).map(stem.format)

    def fill() -> str:
        text = shape
        for name, strategy in (("n", numbers), ("host", hosts), ("path", paths), ("address", addresses)):
            while "{" + name + "}" in text:
                text = text.replace("{" + name + "}", str(draw(strategy)), 1)
        return text.replace("{value}", draw(values))

    return fill(), fill()


@given(two_of_a_kind())
def test_the_same_failure_on_another_rank_step_host_or_file(lines: tuple[str, str]) -> None:
    assert mask(lines[0]) == mask(lines[1])
    assert fingerprint("user_code", lines[0]) == fingerprint("user_code", lines[1])


@given(st.lists(st.sampled_from(("alice", "bob", "carol", "gpu-node-a")), min_size=2, max_size=2, unique=True))
def test_names_of_nodes_without_a_number_are_known(names: list[str]) -> None:
    one, other = (f"{n}: lost, and {n}.cluster.local too" for n in names)
    assert mask(one, names) == mask(other, names) == "<node>: lost, and <node> too"
    assert mask(one) != mask(other)


words = st.text(string.ascii_letters, min_size=2, max_size=9)


@given(words, words)
def test_other_words_are_another_failure(one: str, other: str) -> None:
    assume(one != other)
    assume(not all(set(w.lower()) <= set("abcdef") and len(w) >= 12 for w in (one, other)))
    line = "ValueError: {} at step 4"
    assert fingerprint("user_code", line.format(one)) != fingerprint("user_code", line.format(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NVRM: Xid (PCI:0000:17:00): 79, pid=1", "NVRM: Xid (PCI:0000:17:00): 48, pid=1"),
        ("CUDA error 700", "CUDA error 719"),
        ("exited with exit code 1", "exited with exit code 137"),
        ("OSError: [Errno 28] x", "OSError: [Errno 5] x"),
        ("killed by signal 9", "killed by signal 11"),
    ],
)
def test_a_number_that_names_the_fault_counts(one: str, other: str) -> None:
    assert mask(one) != mask(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Tried to allocate 782.00 MiB. GPU 0 has 79.15 GiB", "Tried to allocate 9.31 GiB. GPU 3 has 80 GiB"),
        (
            " 97%|#########7| 310/320 [01:02<00:03, 4.1it/s]Killed",
            "  3%|3         | 9/320 [00:02<01:03, 5.0it/s]Killed",
        ),
        ("[Sun Feb 16 10:11:12 2025] NVRM: Xid: 119, pid=3", "[Mon Dec 1 01:02:03 2025] NVRM: Xid: 119, pid=4410"),
    ],
)
def test_units_progress_bars_and_days_are_of_the_moment(one: str, other: str) -> None:
    assert mask(one) == mask(other)


def test_categories_are_kept_apart_and_shown() -> None:
    assert fingerprint("cuda_oom", "x") != fingerprint("host_oom", "x")
    assert fingerprint("cuda_oom", "x").startswith("cuda_oom/") and fingerprint("", "x").startswith("none/")


@given(st.text())
def test_any_text_has_one(line: str) -> None:
    masked = mask(line)
    assert masked == mask(" " + line.replace("\n", "  ")) or len(line) > 900
    assert fingerprint("unknown", line) == fingerprint("unknown", line)


@given(st.sampled_from(["a", "/", "0:", "1.", "f", "/a", "1e+", "#,", "error ", "- ", "Xid (PCI", "a/", "::", "~/"]))
def test_no_line_holds_it_up(part: str) -> None:
    """Each of them is what a part of the expression likes; the test's own time limit tells."""
    assert len(mask(part * (100_000 // len(part)))) <= 1100

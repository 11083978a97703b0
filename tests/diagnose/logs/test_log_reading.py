"""Reading in blocks gives what reading line by line gives, whatever is in the file."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.logs import grammar, reader, rulebook
from transom_cli.diagnose.logs.matches import Collector, Hit
from transom_cli.diagnose.logs.reader import Scanner, hits_in, hits_in_file
from transom_cli.diagnose.logs.rule_files import load, parse
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(parse('[[rule]]\nname = "a"\ncategory = "cuda_oom"\nany = ["NEEDLE"]\nexamples = ["NEEDLE"]', "t")[0])
PIECES = st.sampled_from(
    [b"NEEDLE", b"\n", b"\r", b"\r\n", b"\x00\x00", b"\xff\xfe", b"hay", b"NEED", b"LE", b"\x1b[1m", b"x" * 50]
)


class Every(Collector):
    """Keeps the hits of all lines."""

    def __init__(self) -> None:
        super().__init__("job.log")
        self.hits: list[Hit] = []

    def take(self, hit: Hit) -> None:
        self.hits.append(hit if hit.reread is None else hit.reread())


def every(data: bytes, book: Rulebook = BOOK) -> list[Hit]:
    collector = Every()
    Scanner(book, collector).read(io.BytesIO(data))
    return collector.hits


@given(st.lists(PIECES, max_size=60).map(b"".join), st.integers(1, 40), st.booleans())
def test_blocks_of_any_size_find_the_same(data: bytes, block: int, searches: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK", block)
        patch.setattr(BOOK, "looked_up", 1 << 30 if searches else 0)
        found = [(one.record.line, one.lineno) for one in every(data)]
    expected = []
    for number, line in enumerate(data.split(b"\n"), 1):
        expected += [(grammar.clean(part), number) for part in line.split(b"\r") if b"NEEDLE" in part]
    assert found == expected


def test_offsets_lead_back_to_the_line() -> None:
    data = b"a\nb NEEDLE\r|| NEEDLE\nc\nNEEDLE"
    assert [one.offset for one in every(data)] == [2, 11, 23]
    for one in every(data):
        assert data[one.offset :].startswith(one.record.line.encode())


def test_of_an_endless_line_only_the_surroundings_are_taken() -> None:
    data = b"y" * 3_000_000 + b"NEEDLE" + b"z" * 3_000_000 + b"\nNEEDLE\n"
    found = every(data)
    assert [(one.lineno, one.offset) for one in found] == [(1, 3_000_000 - reader.AROUND), (2, 6_000_007)]
    assert "NEEDLE" in found[0].record.line


def test_a_compressed_log(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(b"step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"))
    (hit,) = hits_in_file(path, Rulebook(load()))
    assert (hit.rule.name, hit.lineno) == ("cuda-oom", 2)


def test_lines_that_differ_only_in_numbers_are_matched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    record = grammar.record
    monkeypatch.setattr(grammar, "record", lambda line: read.append(line) or record(line))
    book = Rulebook(load())
    lines = b"".join(b"step %d | Error rate %d\n" % (n, n * 7) for n in range(1000))
    assert every(lines, book) == [] and 0 < len(read) < 50
    read.clear()
    book.looked_up = 1 << 30
    assert every(lines, book) == [] and 0 < len(read) < 50
    read.clear()
    long = b"".join(b"step %d | Error rate %d | %s\n" % (n, n * 7, b"metric 1.5 | " * 99) for n in range(1000))
    assert every(long, book) == [] and (0 < len(read) < 50 or not rulebook.FAST)
    xid = b"NVRM: Xid (PCI:0000:65:00): 999, pid=1\nNVRM: Xid (PCI:0000:65:00): 79, pid=1\n"
    assert [hit.rule.name for hit in every(xid, book)] == ["xid-hardware"], "numbers tell there"


@given(st.lists(PIECES, max_size=40).map(b"".join), st.integers(0, 30))
def test_both_engines_find_the_same(data: bytes, at: int) -> None:
    texts = ["NEEDLE", "needle", "NEED", "hay", "LE\x00"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rulebook, "_WINDOW", 7)
        one, two = (
            search(data, at, len(data)) for search in (rulebook.Plain(texts).first, rulebook.compile_search(texts))
        )
        assert (one and one[0]) == (two and two[0])
        anywhere = rulebook.compile_search(texts[:1])
        assert (0 in rulebook.Texts(texts).which(data)) == (anywhere(data, 0, len(data)) is not None)


def test_all_rules_match_the_same_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = load()
    with_re2 = Rulebook(rules)
    monkeypatch.setattr(rulebook, "FAST", False)
    without = Rulebook(rules)
    for line in (line for rule in rules for line in (*rule.examples, *rule.look_alikes)):
        result = grammar.record(grammar.clean(line.encode()))
        assert with_re2.matches(result) == without.matches(result)


def test_the_end_of_a_long_line_is_looked_at() -> None:
    """A launcher prints the whole command before it says how that ended."""
    line = b"[2026-01-05 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python', '" + b"x" * 6000
    (hit,) = hits_in(io.BytesIO(line + b"'] exits with return code = -9\n"), Rulebook(load()))
    assert hit.rule.name == "worker-killed"


def test_what_machines_chatter_is_not_looked_at_line_by_line() -> None:
    """A text that stands in every other line of a kernel's log, or of NCCL's, costs the whole engine its speed."""
    chatter = (
        "n1:100:110 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "n1:100:110 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)",
        "kernel: mlx5_core 0000:17:00.0: firmware version: 28.36.1010",
        "kernel: nvme nvme0: 2/0/0 default/read/poll queues",
        "kernel: pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0",
        "kernel: ata1: SATA link down (SStatus 0 SControl 300)",
    )
    book = Rulebook(load())
    assert [line for line in chatter if not book.says_nothing(line.encode())] == []


def test_dense_and_sparse_parts_of_a_log_are_read_alike_with_and_without_re2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = "[rank{0}]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    part = "".join(failed.format(n % 3) + ("" if n % 5 else f"step {n} loss 2.1\r 3%|#| {n}/99\n") for n in range(60))
    path = tmp_path / "job.log"
    path.write_text((part + "quiet\n" * 100 + "x" * 9000 + failed.format(9)) * 3)
    book, found = Rulebook(load()), []
    for fast, looked_up in ((True, 0), (True, 1 << 30), (False, 0)):
        monkeypatch.setattr(rulebook, "FAST", rulebook.FAST and fast)
        book.looked_up = looked_up
        found.append([(h.lineno, h.offset, h.more, h.record.rank) for h in hits_in_file(path, book)])
    assert found[0] == found[1] == found[2]
    assert sum(1 + more for _, _, more, _ in found[0]) == 3 * 61
    lines = path.read_bytes().split(b"\n")
    assert all(b"illegal memory" in lines[lineno - 1] for lineno, *_ in found[0])

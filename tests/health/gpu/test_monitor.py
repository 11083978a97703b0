"""From composed GPU recordings (not from hardware) to a node's summary: how many answer, and the worst problem."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.codec import build
from transom_cli.health.check import About, Tier
from transom_cli.health.finding import Finding, Verdict
from transom_cli.health.gpu import reading as r
from transom_cli.health.gpu.monitor import GpuMonitor, summarize, worst
from transom_cli.health.gpu.reading import Ecc, Gpu, GpuLimits, Heat, NvmlReading, Pages, Rows
from transom_cli.health.gpu.state import warmth
from transom_cli.health.gpu.status import (
    LEVELS,
    BadStatus,
    GpuStatus,
    NodeGpus,
    decode,
    encode,
    gpus_of,
    with_gpus,
)
from transom_cli.health.gpu.xid import EVENT_LASTS, EventHistory, GpuEvent, judge_event

DATA = Path(__file__).parents[1] / "data" / "gpu"
LIMITS = GpuLimits()


def recorded(name: str) -> tuple[NvmlReading, About]:
    said = json.loads((DATA / f"composed-{name}.json").read_text())
    about = build(About, said["about"])
    return build(NvmlReading, said["readings"]["n1"]["gpu"]["reading"]), replace(about, tier=Tier.WATCH)


HEALTHY, EIGHT = recorded("h100x8-healthy")


def shown(reading: NvmlReading, about: About = EIGHT, received: EventHistory | None = None) -> NodeGpus:
    follow = GpuMonitor("n1", about, LIMITS)
    found = follow.judge(HEALTHY), follow.judge(reading)
    assert follow.last is not None
    return summarize("n1", "7.0", 30.0, follow.last, found[1], received or EventHistory(), about, LIMITS)


def told(reading: NvmlReading, about: About = EIGHT, received: EventHistory | None = None) -> tuple[str, str, str]:
    node = shown(reading, about, received)
    known = "?" if node.answering is None else node.answering
    return f"{known}/{node.expected}", node.worst, node.level


def with_gpu(*indexes: int, **changes: Any) -> NvmlReading:
    gpus = tuple(replace(gpu, **changes) if gpu.index in indexes else gpu for gpu in HEALTHY.gpus)
    return replace(HEALTHY, gpus=gpus)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100x8-healthy", ("8/8", "", "")),
        ("h100x8-ecc", ("8/8", "gpu2 ECC errors", "fault")),
        ("h100x8-row-remap-failed", ("8/8", "gpu5 row remap failed", "fault")),
        ("h100x8-gpu-lost", ("7/8", "gpu7 lost", "fault")),
        ("h100x8-throttled", ("8/8", "gpu1 throttled", "throttled")),
        ("h100x8-nvlink-down", ("8/8", "gpu3 NVLink down", "fault")),
    ],
)
def test_what_a_recording_shows(name: str, expected: tuple[str, str, str]) -> None:
    reading, about = recorded(name)
    follow = GpuMonitor("n1", about, LIMITS)
    node = summarize("n1", "7.0", 30.0, reading, follow.judge(reading), EventHistory(), about, LIMITS)
    assert (f"{node.answering}/{node.expected}", node.worst, node.level) == expected


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (with_gpu(3, heat=Heat(84, 87, 92)), ("8/8", "gpu3 84 C, moderate", "moderate")),
        (with_gpu(3, 5, heat=Heat(88, 87, 92)), ("8/8", "gpu3 88 C, heavy (+1)", "heavy")),
        (with_gpu(3, heat=Heat(82, 87, 92)), ("8/8", "", "")),
        (with_gpu(3, heat=Heat(80, None, None, 0)), ("8/8", "gpu3 80 C, heavy", "heavy")),
        (with_gpu(0, 1, 2, reasons=0x48), ("8/8", "gpu0 throttled (+2)", "throttled")),
        (with_gpu(4, reasons=0x20), ("8/8", "gpu4 throttled", "throttled")),
        (with_gpu(4, reasons=0x4), ("8/8", "", "")),  # its power limit, at full load: all is well
        (with_gpu(6, recovery=2), ("8/8", "gpu6 needs a reboot", "fault")),
        (with_gpu(6, trouble="Unknown Error", trouble_code=999), ("7/8", "gpu6 no answer", "fault")),
        (with_gpu(6, trouble="GPU requires reset", trouble_code=16), ("7/8", "gpu6 needs a reset", "fault")),
        (with_gpu(2, rows=None, pages=Pages(1, 1, pending=True)), ("8/8", "gpu2 pages retired", "fault")),
        (replace(HEALTHY, gpus=HEALTHY.gpus[:7]), ("7/8", "a GPU is gone", "fault")),
        (NvmlReading(absent="Driver Not Loaded", absent_code=9), ("?/8", "NVML does not answer", "fault")),
        (with_gpu(2, mig=True), ("8/8", "", "")),
        (replace(HEALTHY, gpus=HEALTHY.gpus[:4], barred=4), ("4/4", "", "")),
        (replace(HEALTHY, gpus=HEALTHY.gpus[:4], granted=4), ("4/4", "a GPU is gone", "fault")),
    ],
)
def test_worst_finding_is_described(reading: NvmlReading, expected: tuple[str, str, str]) -> None:
    assert told(reading) == expected


def test_findings_rank_faults_before_throttling_before_heat_and_proof_first() -> None:
    reading = with_gpu(1, heat=Heat(89, 87, 92))
    assert told(reading)[1] == "gpu1 89 C, heavy"
    reading = replace(reading, gpus=tuple(replace(g, reasons=0x8) if g.index == 2 else g for g in reading.gpus))
    assert told(reading)[1] == "gpu2 throttled"
    pending = Rows(0, 1, pending=True, failed=False)
    reading = replace(reading, gpus=tuple(replace(g, rows=pending) if g.index == 3 else g for g in reading.gpus))
    assert told(reading)[1] == "gpu3 row remap pending"
    failed = Rows(0, 1, pending=False, failed=True)
    reading = replace(reading, gpus=tuple(replace(g, rows=failed) if g.index == 7 else g for g in reading.gpus))
    assert told(reading)[1] == "gpu7 row remap failed"


def test_lost_gpu_keeps_its_name() -> None:
    lost = Gpu(5, trouble="GPU is lost", trouble_code=r.GPU_IS_LOST)
    node = shown(replace(HEALTHY, gpus=(*HEALTHY.gpus[:5], lost, *HEALTHY.gpus[6:])))
    one = gpus_of(node)[5]
    assert node.worst == "gpu5 lost" and (one.uuid, one.trouble) == (HEALTHY.gpus[5].uuid, "GPU is lost")
    assert (one.heat, one.busy, one.throttle, one.ecc_uncorrected, one.rows_pending) == (None,) * 5


def happened(received: EventHistory, event: GpuEvent) -> Finding:
    found = judge_event("n1", event)
    received.add(event, found)
    return found


def test_a_fatal_xid_counts_for_an_hour_and_one_of_the_program_is_only_kept() -> None:
    received, uuid = EventHistory(), HEALTHY.gpus[3].uuid
    at = HEALTHY.wall
    happened(received, GpuEvent("xid", uuid, xid=31, wall=at - 10))
    node = shown(HEALTHY, received=received)
    assert (node.worst, node.xid, node.xid_gpu, node.xid_at) == ("", 31, 3, at - 10)
    happened(received, GpuEvent("xid", uuid, xid=79, wall=at - 5))
    node = shown(HEALTHY, received=received)
    assert (node.worst, node.level) == ("gpu3 Xid 79", "fault")
    assert (gpus_of(node)[3].xid, gpus_of(node)[2].xid) == (79, None)
    happened(received, GpuEvent("xid", uuid, xid=43, wall=at - 4))
    node = shown(HEALTHY, received=received)
    assert (node.worst, node.xid) == ("gpu3 Xid 79", 43), "what comes of a dead GPU's program takes nothing back"
    later = replace(HEALTHY, wall=at + EVENT_LASTS)
    assert (shown(later, received=received).worst, shown(later, received=received).xid) == ("", 43)


def test_driver_request_ends_when_the_driver_withdraws_it() -> None:
    received, uuid = EventHistory(), HEALTHY.gpus[3].uuid
    assert happened(received, GpuEvent("double_bit_ecc", uuid, wall=HEALTHY.wall)).verdict is Verdict.FAIL
    assert told(HEALTHY, received=received)[1] == "gpu3 ECC errors"
    happened(received, GpuEvent("recovery_action", uuid, recovery=0, wall=HEALTHY.wall))
    assert told(HEALTHY, received=received) == ("8/8", "", "")


def test_xid_of_a_lost_gpu_is_reported_without_its_index() -> None:
    received = EventHistory()
    happened(received, GpuEvent("xid", "", xid=79, wall=HEALTHY.wall))
    node = shown(HEALTHY, received=received)
    assert (node.worst, node.xid, node.xid_gpu) == ("Xid 79", 79, None)


def test_no_xid_is_said_only_where_one_would_have_been_received() -> None:
    received = EventHistory({"GPU-a": (13, 5.0)})
    assert received.since is None
    received.set_listening(True, 10.0)
    received.set_listening(True, 40.0)
    assert (received.since, received.xids) == (10.0, {"GPU-a": (13, 5.0)})
    received.set_listening(False, 70.0)
    assert received.since is None


def test_a_check_that_is_off_is_not_shown() -> None:
    assert worst(with_gpu(1, reasons=0x48), (), {}) == ("", "")
    event = GpuEvent("xid", HEALTHY.gpus[3].uuid, xid=79, wall=HEALTHY.wall)
    received = EventHistory()
    received.add(event, judge_event("n1", event), counts=False)
    assert told(HEALTHY, received=received) == ("8/8", "", "")


readings = st.builds(
    NvmlReading,
    absent=st.sampled_from(["", "", "Driver Not Loaded"]),
    barred=st.integers(0, 2),
    granted=st.none() | st.integers(0, 8),
    gpus=st.lists(
        st.builds(
            Gpu,
            index=st.just(0),
            trouble_code=st.sampled_from([0, 0, 0, 15, 16, 999]),
            heat=st.builds(Heat, *[st.none() | st.integers(0, 120)] * 4),
            reasons=st.none() | st.integers(0, 0x1FF),
            ecc=st.builds(Ecc, *[st.none() | st.integers(0, 9)] * 4),
            rows=st.none() | st.builds(Rows, st.integers(0, 999), st.integers(0, 999), st.booleans(), st.booleans()),
            recovery=st.none() | st.integers(0, 9),
            mig=st.none() | st.booleans(),
        ),
        max_size=9,
    ).map(lambda gpus: tuple(replace(gpu, index=i, uuid=f"GPU-{i}") for i, gpu in enumerate(gpus))),
)


@given(readings)
def test_any_reading_is_shown_and_comes_back_from_its_file(reading: NvmlReading) -> None:
    node = shown(reading)
    assert decode(encode(node)) == node
    assert [gpu.index for gpu in gpus_of(node)] == [gpu.index for gpu in reading.gpus]
    assert node.level in LEVELS and bool(node.level) == bool(node.worst)
    assert node.answering is None or 0 <= node.answering <= node.expected
    assert len(node.worst) <= 28, "a column of it leaves room for the rest"
    for one, gpu in zip(gpus_of(node), reading.gpus, strict=True):
        assert (one.heat, one.ecc_uncorrected) == (gpu.heat.now, gpu.ecc.uncorrected_volatile)
        assert (one.warmth == "") <= (gpu.heat.slowdown in (None, 0) or gpu.heat.now is None)


@given(st.integers(0, 120), st.integers(60, 110))
def test_a_hotter_gpu_is_never_called_cooler(now: int, slowdown: int) -> None:
    words = ("light", "moderate", "heavy")
    here, hotter = (words.index(warmth(Heat(x, slowdown), LIMITS)) for x in (now, now + 1))
    assert here <= hotter and (here == 2) == (now >= slowdown)


def test_a_file_of_a_newer_agent_is_read_and_a_spoilt_one_is_refused() -> None:
    whole = encode(with_gpus(NodeGpus("n1", "7.0", 5.0, 30.0, 1, 1, level="heavy"), [GpuStatus(0, heat=88)]))
    newer = whole.replace('"index"', '"fan": 30, "index"').replace('"node"', '"racks": [1], "node"')
    assert decode(newer).level == "heavy" and gpus_of(decode(newer)) == (GpuStatus(0, heat=88),)
    cut = whole[:-5]
    assert gpus_of(decode(cut)) == (), "a line that was cut short"
    for spoilt in ("", "[]", "{", whole.replace('"schema": 1', '"schema": 2'), whole.replace("5.0", "NaN")):
        with pytest.raises(BadStatus):
            decode(spoilt)
    with pytest.raises(BadStatus):
        decode(whole.replace("heavy", "fiery"))


@given(st.binary(max_size=200))
def test_no_file_ends_a_reader(data: bytes) -> None:
    text = data.decode("latin-1")
    with pytest.raises(BadStatus):
        decode(text)
    assert isinstance(gpus_of(NodeGpus("n1", "7.0", 5.0, 30.0, 1, lines=text)), tuple)

"""Network ports as sysfs shows them: composed trees of healthy and faulty nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from transom_cli.core import codec
from transom_cli.health.check import About
from transom_cli.health.checks.fabric import (
    FabricLimits,
    FabricReading,
    Port,
    judge_fabric,
    judge_fabric_changes,
    overdue,
    read_fabric,
)
from transom_cli.health.finding import Finding, Remedy, Verdict

LIMITS = FabricLimits()
DATA = 10**12


def compose(root: Path, name: str, rate: str = "400 Gb/sec (4X NDR)", **files: str) -> Path:
    """A device with one port, as mlx5 shows it; `files` by path within the port, "__" for "/"."""
    device = root / "class/infiniband" / name
    port = device / "ports/1"
    given = {path.replace("__", "/"): text for path, text in files.items()}
    well = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": "InfiniBand",
        "counters/port_rcv_data": str(DATA), "counters/link_downed": "0", "counters/symbol_error": "0",
        "hw_counters/packet_seq_err": "0",
    }  # fmt: skip
    for path, text in (well | given).items():
        (port / path).parent.mkdir(parents=True, exist_ok=True)
        (port / path).write_text(text + "\n")
    (device / "board_id").write_text("MT_0000000838\n")
    return port


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSOM_SYSFS", str(tmp_path))
    for n in range(4):
        compose(tmp_path, f"mlx5_{n}")
    return tmp_path


def look() -> dict[str, Finding]:
    reading = read_fabric(About())
    assert codec.build(FabricReading, codec.plain(reading)) == reading
    return {f.check: f for f in judge_fabric("n1", reading, About(), LIMITS)}


DOWN = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)"}


def test_node_without_ports_is_not_applicable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_SYSFS", str(tmp_path))
    found = look()
    assert list(found) == ["ib_state", "ib_rate", "ib_counters"]
    assert {(f.verdict, f.applies) for f in found.values()} == {(Verdict.PASS, False)}


def test_healthy_ports_pass(root: Path) -> None:
    found = look()
    assert {f.verdict for f in found.values()} == {Verdict.PASS}
    assert found["ib_state"].evidence == "4 ports are ACTIVE: mlx5_0/1, mlx5_1/1, mlx5_2/1, mlx5_3/1"
    assert found["ib_rate"].evidence == "4 at 400 Gb/sec (4X NDR)"


def test_port_that_went_out_of_use_is_suspected(root: Path) -> None:
    compose(root, "mlx5_2", **DOWN)
    found = look()["ib_state"]
    assert (found.verdict, found.remedy, found.device) == (Verdict.SUSPECT, Remedy.AVOID, "mlx5_2/1")
    assert found.evidence == "mlx5_2/1 is DOWN, Polling: it has been in use (3 of 4 ports are ACTIVE)"
    assert look()["ib_rate"].verdict is Verdict.PASS, "a port that is down has no rate"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"counters__port_rcv_data": "0"}, "it may have no cable"),
        ({"phys_state": "3: Disabled"}, "it is switched off"),
    ],
)
def test_unused_port_is_only_monitored(root: Path, files: dict[str, str], says: str) -> None:
    compose(root, "mlx5_9", **{**DOWN, **files})
    found = look()["ib_state"]
    assert found.verdict is Verdict.MONITOR and says in found.evidence


def test_without_a_data_counter_ports_of_the_same_model_decide(root: Path) -> None:
    for device, state in (("rdmap0s6", "1: DOWN"), ("rdmap16s6", "4: ACTIVE")):
        port = compose(root, device, "100 Gb/sec (4X EDR)", state=state, link_layer="Unspecified")
        (port / "counters/port_rcv_data").unlink()
    assert "other ports of the same model are ACTIVE" in look()["ib_state"].evidence
    compose(root, "rdmap16s6", "100 Gb/sec (4X EDR)", state="1: DOWN", link_layer="Unspecified")
    (root / "class/infiniband/rdmap16s6/ports/1/counters/port_rcv_data").unlink()
    assert look()["ib_state"].verdict is Verdict.MONITOR


def test_port_in_init_state_is_suspected(root: Path) -> None:
    compose(root, "mlx5_1", state="2: INIT")
    assert look()["ib_state"].evidence.startswith("mlx5_1/1 is INIT, LinkUp: it has been in use")


def test_slower_port_of_the_same_model_is_suspected(root: Path) -> None:
    compose(root, "mlx5_3", "100 Gb/sec (1X NDR)")
    found = look()["ib_rate"]
    assert (found.verdict, found.device) == (Verdict.SUSPECT, "mlx5_3/1")
    assert found.evidence == "mlx5_3/1 runs at 100 Gb/sec (1X NDR), the others at 400 Gb/sec"


def test_other_adapter_models_may_be_slower(root: Path) -> None:
    compose(root, "mlx5_8", "25 Gb/sec (1X EDR)", link_layer="Ethernet")
    compose(root, "mlx5_bond_0", "100 Gb/sec (4X EDR)")
    (root / "class/infiniband/mlx5_2/board_id").write_text("MT_0000000970\n")
    compose(root, "mlx5_4", "200 Gb/sec (4X HDR)")
    (root / "class/infiniband/mlx5_4/board_id").write_text("MT_0000000970\n")
    found = look()["ib_rate"]
    assert found.verdict is Verdict.MONITOR and found.device == "mlx5_4/1", "it now has the same board as mlx5_2"
    (root / "class/infiniband/mlx5_2/board_id").write_text("MT_0000000838\n")
    assert look()["ib_rate"].verdict is Verdict.PASS


def test_two_differing_ports_are_only_monitored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_SYSFS", str(tmp_path))
    compose(tmp_path, "mlx5_0")
    compose(tmp_path, "mlx5_1", "200 Gb/sec (4X HDR)")
    found = look()["ib_rate"]
    assert found.verdict is Verdict.MONITOR and "mlx5_1/1 runs at 200" in found.evidence


def test_counter_totals_are_reported_and_not_judged(root: Path) -> None:
    compose(root, "mlx5_0", counters__symbol_error="70000", counters__link_downed="255")
    found = look()["ib_counters"]
    assert found.verdict is Verdict.PASS
    assert found.evidence == "since the driver was loaded: mlx5_0/1: link_downed 255, mlx5_0/1: symbol_error 70000"


WELL = Port("mlx5_0/1", "ACTIVE", "LinkUp", "400 Gb/sec (4X NDR)", "InfiniBand", "", DATA)


def port(name: str = "mlx5_0/1", state: str = "ACTIVE", **counters: int) -> Port:
    return replace(WELL, name=name, state=state, counters=tuple(counters.items()))


def changes(former: Port, now: Port | None, seconds: float = 30.0) -> list[tuple[str, Verdict, str]]:
    after = FabricReading((now,) if now else ())
    found = judge_fabric_changes("n1", FabricReading((former,)), after, seconds, About(), LIMITS)
    assert all(f.device == "mlx5_0/1" for f in found)
    return [(f.check, f.verdict, f.evidence) for f in found]


def test_unchanged_or_reset_counters_yield_no_finding() -> None:
    same = port(link_downed=9, symbol_error=500, packet_seq_err=7)
    assert changes(same, same) == []
    assert changes(same, port(link_downed=0, symbol_error=0, packet_seq_err=0)) == [], "the counters were reset"
    assert changes(port(), port(link_downed=4)) == [], "a counter that is new"


def test_link_that_leaves_active_is_suspected() -> None:
    (found,) = changes(port(link_downed=1), port(state="DOWN", link_downed=2))
    assert found == ("ib_link", Verdict.SUSPECT, "mlx5_0/1 was ACTIVE 30 s ago and is now DOWN, LinkUp")
    assert changes(port(state="DOWN"), port(state="DOWN")) == []
    assert changes(port(state="DOWN"), port()) == []


def test_flapping_link_is_suspected_from_the_third_time() -> None:
    (once,) = changes(port(link_downed=1), port(link_downed=2))
    assert once == ("ib_link", Verdict.MONITOR, "mlx5_0/1 went down: link_downed +1 in 30 s (2 in total)")
    (flapping,) = changes(port(link_downed=1), port(link_downed=4))
    assert flapping[1] is Verdict.SUSPECT


def test_vanished_port_is_suspected() -> None:
    (found,) = changes(port(), None)
    assert found[:2] == ("ib_link", Verdict.SUSPECT) and "disappeared from /sys/class/infiniband" in found[2]


def test_new_errors_and_drops_are_monitored() -> None:
    (found,) = changes(port(symbol_error=5, packet_seq_err=0), port(symbol_error=8, packet_seq_err=4000))
    assert found == ("ib_errors", Verdict.MONITOR, "mlx5_0/1: symbol_error +3, packet_seq_err +4000 in 30 s")
    assert changes(port(packet_seq_err=0), port(packet_seq_err=2900)) == [], "below a hundred a second"


def test_hanging_driver_is_suspected() -> None:
    found = overdue("n1", 10.0, About())
    assert (found.check, found.verdict) == ("ib_state", Verdict.SUSPECT) and "10 s" in found.evidence

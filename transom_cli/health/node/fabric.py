"""The node's network ports for RDMA (InfiniBand, RoCE, EFA), as the kernel shows them in /sys/class/infiniband.

Layout: the kernel's Documentation/ABI/stable/sysfs-class-infiniband. Who judges them: `fabric_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transom_cli.health.about import About
from transom_cli.health.node.sysfiles import names, read_number, read_text, sysfs

ACTIVE, LINK_UP = "ACTIVE", "LinkUp"

FAULTS = (
    "symbol_error", "port_rcv_errors", "link_error_recovery", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)  # fmt: skip
"""Counters of what a cable, a plug or a transceiver does."""

CONGESTION = (
    "port_xmit_discards", "VL15_dropped", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
    "rnr_nak_retry_err", "roce_adp_retrans",
)  # fmt: skip
"""Counters of what is dropped or sent again, here for whatever reason the fabric has for it."""

LINK_DOWNED = "link_downed"


@dataclass(frozen=True)
class Port:
    """state, phys_state: the words behind the number ("ACTIVE", "LinkUp"). rate: as it is written there.

    board: what kind of adapter it is, "" when it does not tell. received: the data counter (4 bytes each); None: it has
    none. counters: by name, those that there are; since the driver was loaded, or since somebody reset them.
    """

    name: str
    state: str
    phys_state: str
    rate: str
    link_layer: str
    board: str = ""
    received: int | None = None
    counters: tuple[tuple[str, int], ...] = ()

    @property
    def up(self) -> bool:
        return self.state == ACTIVE

    @property
    def speed(self) -> float:
        """Gb/s; 0.0 when it does not tell."""
        first = self.rate.partition(" ")[0]
        return float(first) if first.replace(".", "", 1).isdecimal() else 0.0

    def count(self, counter: str) -> int | None:
        return dict(self.counters).get(counter)


@dataclass(frozen=True)
class FabricReading:
    """ports: by name, "mlx5_0/1"."""

    ports: tuple[Port, ...] = ()


def read_fabric(about: About) -> FabricReading:
    root = sysfs("class/infiniband")
    ports = []
    for device in names(root) or ():
        board = read_text(root / device / "board_id")
        for number in names(root / device / "ports") or ():
            ports.append(_port(f"{device}/{number}", root / device / "ports" / number, board))
    return FabricReading(tuple(ports))


def _port(name: str, folder: Path, board: str) -> Port:
    counters = []
    for group, wanted in (("counters", (LINK_DOWNED, *FAULTS, *CONGESTION)), ("hw_counters", CONGESTION)):
        there = set(names(folder / group) or ())
        for counter in wanted:
            value = read_number(folder / group / counter) if counter in there else None
            if value is not None:
                counters.append((counter, value))
    return Port(
        name=name,
        state=_word(folder / "state"),
        phys_state=_word(folder / "phys_state"),
        rate=read_text(folder / "rate"),
        link_layer=read_text(folder / "link_layer"),
        board=board,
        received=read_number(folder / "counters" / "port_rcv_data"),
        counters=tuple(counters),
    )


def _word(path: Path) -> str:
    """ "4: ACTIVE" to "ACTIVE"."""
    return read_text(path).rpartition(": ")[2]

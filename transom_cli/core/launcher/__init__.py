"""The launcher's core: a fault is handled inside the allocation if possible. Pure.

A launch that fails is ended for certain (no process of it is left on any node), its cause is diagnosed by the same
rules as the operator's, and the training step is started again: on the same nodes, or with spares in the place of
nodes to blame. The attempt is handed up, with an outcome that names cause and suspects, when neither would mend it or
the budget is spent. Progress refills it, time does not.
"""

from transom_cli.core.launcher.core import decide
from transom_cli.core.launcher.events import (
    THIS_LAUNCHER,
    Appeared,
    Begun,
    Checked,
    Draining,
    Durable,
    Ended,
    Exits,
    Faulty,
    Flushing,
    Heard,
    Kept,
    NotStarted,
    Overtime,
    Read,
    Reported,
    Silent,
    SlurmAway,
    Spare,
    Stalled,
    Stepped,
    Tick,
    Told,
    Warned,
)
from transom_cli.core.launcher.orders import CheckNodes, End, Flush, GoBack, Keep, Leave, Order, ReadLogs, Start, Tell
from transom_cli.core.launcher.outcome import made_progress
from transom_cli.core.launcher.state import LadderPolicy, LadderState, Leaving, Memory, Rung

__all__ = [
    "THIS_LAUNCHER",
    "Appeared",
    "Begun",
    "CheckNodes",
    "Checked",
    "Draining",
    "Durable",
    "End",
    "Ended",
    "Exits",
    "Faulty",
    "Flush",
    "Flushing",
    "GoBack",
    "Heard",
    "Keep",
    "Kept",
    "LadderPolicy",
    "LadderState",
    "Leave",
    "Leaving",
    "Memory",
    "NotStarted",
    "Order",
    "Overtime",
    "Read",
    "ReadLogs",
    "Reported",
    "Rung",
    "Silent",
    "SlurmAway",
    "Spare",
    "Stalled",
    "Start",
    "Stepped",
    "Tell",
    "Tick",
    "Told",
    "Warned",
    "decide",
    "made_progress",
]

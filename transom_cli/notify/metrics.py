"""Metrics of a run as families of samples. Pure.

Names follow OpenMetrics (https://prometheus.io/docs/specs/om/open_metrics_spec/): base units, `_total` for counters.
Each sample has the run as a label, because one collector may read the files of many runs. Other labels take values of
fixed lists only: never a node, an incident or a log line.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.core.goodput import NS, Kind, Sums
from transom_cli.core.incident import Incident
from transom_cli.core.operator.state import Phase, State
from transom_cli.core.progress import newest_step
from transom_cli.diagnose.clue import Category
from transom_cli.heartbeat.table import NodeTable, RankBeat, reached

GAUGE, COUNTER, SUMMARY = "gauge", "counter", "summary"
DISK, MEMORY = "disk", "memory"
UNDIAGNOSED = "undiagnosed"
_CATEGORIES = (*(c.value for c in Category), UNDIAGNOSED)
Samples = tuple[tuple[tuple[str, ...], float], ...]


@dataclass(frozen=True)
class Family:
    """A family of samples."""

    name: str  # without unit and `_total`, which are added
    kind: str
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()  # besides the run
    samples: Samples = ()
    count: int = 0  # of a summary; its one sample is the sum


@dataclass(frozen=True)
class RunSnapshot:
    """A run at a moment."""

    run_id: str
    name: str
    version: str
    now: float
    state: State
    tables: tuple[NodeTable, ...] = ()
    # by place (disk, memory), the newest step and when it was committed
    saved: Mapping[str, tuple[int, float | None]] | None = None
    sent: Mapping[tuple[str, str], int] | None = None  # number of messages by target and result
    spent: Sums | None = None  # the run's time by kind (core.goodput)


def families(sight: RunSnapshot) -> tuple[Family, ...]:
    """Return all families. Unknown values have no sample."""
    return (
        *_run(sight),
        *_training(sight),
        *(_time(sight.spent) if sight.spent is not None else ()),
        *_incidents(sight.state),
        *_nodes(sight),
        *_checkpoints(sight),
        *_own(sight),
    )


def _run(sight: RunSnapshot) -> list[Family]:
    state = sight.state
    phases = tuple(((phase.value,), float(phase is state.phase)) for phase in Phase)
    about = (((sight.name, sight.version), 1.0),)
    stuck = state.budget.no_progress
    starts = state.job.starts + 1 if state.job.id else 0
    return [
        Family("transom_run_info", GAUGE, "Always 1: name of the run, version.", "", ("name", "version"), about),
        Family("transom_run_phase", GAUGE, "1 for the phase that the run is in, else 0.", "", ("phase",), phases),
        _gauge(
            "transom_run_phase_start_timestamp", "When this phase began, Unix time.", state.since or None, "seconds"
        ),
        _gauge("transom_run_exit_code", "How the run ended, once it is over.", state.exit_code),
        _counter("transom_run_starts", "Starts of the job by Slurm.", starts),
        _gauge("transom_run_restarts_without_progress", "Restarts in a row without a newer state.", stuck),
        _gauge("transom_slurm_up", "1 while Slurm answers the operator, else 0.", not state.slurm_error),
    ]


def _training(sight: RunSnapshot) -> list[Family]:
    ranks = _ranks(sight)
    step, _ = newest_step((sight.state.progress.step, sight.state.progress.since_start), reached(ranks))
    loss = next((r.loss for r in sorted(ranks, key=lambda r: r.rank) if r.loss is not None), None)
    age = max((r.age for r in ranks), default=None)
    text = "Time since the last step of the slowest rank, as its node reported."
    return [
        _gauge(
            "transom_run_step", "The last step that all ranks of this start have finished.", step if step >= 0 else None
        ),
        _gauge("transom_run_loss", "The newest reported loss, of the lowest rank.", loss),
        _gauge("transom_ranks", "Ranks that report steps.", len(ranks)),
        _gauge("transom_step_age", text, age, "seconds"),
    ]


def _time(spent: Sums) -> list[Family]:
    by_kind = tuple(((kind.value,), spent.ns[kind] / NS) for kind in Kind)
    share = "Productive share of the time since submission, 0 to 1."
    text = "Time since submission by kind; the most recent part may be reclassified."
    return [
        _gauge("transom_run_goodput", share, spent.goodput, "ratio"),
        Family("transom_run_time", GAUGE, text, "seconds", ("kind",), by_kind),
    ]


def _ranks(sight: RunSnapshot) -> list[RankBeat]:
    """Return the ranks of the newest launch: a replaced node still reports its former one."""
    ranks = [r for table in sight.tables if table.attempt == sight.state.attempt for r in table.ranks]
    newest = max((r.launch for r in ranks), default=0)
    return [r for r in ranks if r.launch == newest]


def _incidents(state: State) -> list[Family]:
    every = (*state.incidents, *((state.incident,) if state.incident is not None else ()))
    counts = Counter(_category(incident) for incident in every)
    by_category = tuple(((name,), float(counts[name])) for name in _CATEGORIES)
    ended = [i.ended_at - i.began for i in state.incidents if i.result == "recovered" and i.ended_at is not None]
    text, total = "From the first sign of a fault to the next step.", (((), sum(ended)),)
    return [
        Family("transom_incidents", COUNTER, "Incidents, by what went wrong.", "", ("category",), by_category),
        _gauge("transom_incident_open", "1 while an incident is open, else 0.", state.incident is not None),
        Family("transom_recovery", SUMMARY, text, "seconds", (), total, len(ended)),
    ]


def _category(incident: Incident) -> str:
    category = incident.diagnosis.decided.category if incident.diagnosis is not None else UNDIAGNOSED
    return category if category in _CATEGORIES else Category.UNKNOWN.value


def _nodes(sight: RunSnapshot) -> list[Family]:
    state = sight.state
    looked_at = {x.node for x in state.idle.probes}
    here = (*state.job.nodes, *state.launch.extra) if state.job.state == "RUNNING" else ()
    idle = [n for n in state.idle.nodes if n in here]
    counts = {
        "training": len(here) - len(idle),
        "spare": sum(n not in looked_at for n in idle),
        "given_up": sum(n in looked_at for n in idle),
        "drained": sum(x.how == "drained" for x in state.isolation.exclusions),
        "excluded": sum(x.how != "drained" for x in state.isolation.exclusions),
    }
    samples = tuple(((name,), float(count)) for name, count in counts.items())
    text = "Nodes of the job (training, spare, given_up), and isolated nodes (drained, excluded)."
    return [Family("transom_nodes", GAUGE, text, "", ("state",), samples)]


def _checkpoints(sight: RunSnapshot) -> list[Family]:
    saved = sorted((sight.saved or {}).items())
    steps = tuple(((place,), float(step)) for place, (step, _) in saved)
    ages = tuple(((place,), max(0.0, sight.now - at)) for place, (_, at) in saved if at is not None)
    text = "Age of the newest checkpoint, on disk and in the nodes' memory."
    return [
        Family("transom_checkpoint_step", GAUGE, "Step of the newest checkpoint.", "", ("place",), steps),
        Family("transom_checkpoint_age", GAUGE, text, "seconds", ("place",), ages),
    ]


def _own(sight: RunSnapshot) -> list[Family]:
    sent = tuple((labels, float(count)) for labels, count in sorted((sight.sent or {}).items()))
    text = "Messages by result: delivered, given up, dropped."
    return [
        Family("transom_notifications", COUNTER, text, "", ("target", "result"), sent),
        _counter("transom_operator_starts", "Operators that the run has had.", sight.state.epoch),
        _gauge("transom_last_update_timestamp", "When these numbers were read, Unix time.", sight.now, "seconds"),
    ]


def _gauge(name: str, text: str, value: float | None, unit: str = "") -> Family:
    return Family(name, GAUGE, text, unit, (), () if value is None else (((), float(value)),))


def _counter(name: str, text: str, value: float) -> Family:
    return Family(name, COUNTER, text, "", (), (((), float(value)),))

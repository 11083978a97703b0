"""What is counted and measured of a run, as families of numbers with names, units and labels. Pure.

Names are OpenMetrics' (https://prometheus.io/docs/specs/om/open_metrics_spec/): base units, `_total` for what only
grows. Every sample has the run as a label, since one collector may read the files of many; beyond that labels take
words of a fixed list only, never a node, an incident or a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from transom_cli.beats.table import NodeTable, RankBeat
from transom_cli.core.goodput import NS, Kind, Sums
from transom_cli.core.state import Incident, Phase, State
from transom_cli.diagnose.clue import Category

GAUGE, COUNTER, SUMMARY = "gauge", "counter", "summary"
DISK, MEMORY = "disk", "memory"
UNDIAGNOSED = "undiagnosed"
_CATEGORIES = (*(c.value for c in Category), UNDIAGNOSED)
Samples = tuple[tuple[tuple[str, ...], float], ...]


@dataclass(frozen=True)
class Family:
    """name: without the unit and `_total`, which are added. labels: beside the run. samples: by the labels' values.
    count: of a summary, whose one sample is the sum."""

    name: str
    kind: str
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    samples: Samples = ()
    count: int = 0


@dataclass(frozen=True)
class Sight:
    """A run at a moment. saved: by place (disk, memory) the newest step and when it was committed. told: messages by
    target and what became of them. spent: what the run's time went to since its submission (core.goodput)."""

    run_id: str
    name: str
    version: str
    now: float
    state: State
    tables: tuple[NodeTable, ...] = ()
    saved: Mapping[str, tuple[int, float | None]] | None = None
    told: Mapping[tuple[str, str], int] | None = None
    spent: Sums | None = None


def families(sight: Sight) -> tuple[Family, ...]:
    """Of what is not known there is no sample, rather than a zero."""
    return (
        *_run(sight),
        *_training(sight),
        *(_time(sight.spent) if sight.spent is not None else ()),
        *_incidents(sight.state),
        *_nodes(sight),
        *_checkpoints(sight),
        *_own(sight),
    )


def _run(sight: Sight) -> list[Family]:
    state = sight.state
    phases = tuple(((phase.value,), float(phase is state.phase)) for phase in Phase)
    about = (((sight.name, sight.version), 1.0),)
    starts = state.starts + 1 if state.job_id else 0
    return [
        Family("transom_run_info", GAUGE, "Always 1: name of the run, version.", "", ("name", "version"), about),
        Family("transom_run_phase", GAUGE, "1 for the phase that the run is in, else 0.", "", ("phase",), phases),
        _gauge(
            "transom_run_phase_start_timestamp", "When this phase began, Unix time.", state.since or None, "seconds"
        ),
        _gauge("transom_run_exit_code", "How the run ended, once it is over.", state.exit_code),
        _counter("transom_run_starts", "Starts of the job by Slurm.", starts),
        _gauge("transom_run_restarts_without_progress", "Restarts in a row without a newer state.", state.no_progress),
        _gauge("transom_slurm_up", "1 while Slurm answers the operator, else 0.", not state.slurm_lost),
    ]


def _training(sight: Sight) -> list[Family]:
    ranks = _ranks(sight)
    step = max(sight.state.step, min((r.step for r in ranks), default=-1))
    loss = next((r.loss for r in sorted(ranks, key=lambda r: r.rank) if r.loss is not None), None)
    age = max((r.age for r in ranks), default=None)
    text = "Time since the last step of the rank that has made none for longest, as its node told."
    return [
        _gauge("transom_run_step", "The step that every rank of this start has done.", step if step >= 0 else None),
        _gauge("transom_run_loss", "The newest loss that was told, of the lowest rank.", loss),
        _gauge("transom_ranks", "Ranks that tell of their steps.", len(ranks)),
        _gauge("transom_step_age", text, age, "seconds"),
    ]


def _time(spent: Sums) -> list[Family]:
    by_kind = tuple(((kind.value,), spent.ns[kind] / NS) for kind in Kind)
    share = "Share of the run's time since its submission that made new steps, 0 to 1."
    text = "What the run's time went to since its submission; what it is told to be may change for its end."
    return [
        _gauge("transom_run_goodput", share, spent.goodput, "ratio"),
        Family("transom_run_time", GAUGE, text, "seconds", ("kind",), by_kind),
    ]


def _ranks(sight: Sight) -> list[RankBeat]:
    """Of the newest launch: a node that was given up goes on telling of a former one."""
    told = [r for table in sight.tables if table.attempt == sight.state.attempt for r in table.ranks]
    newest = max((r.launch for r in told), default=0)
    return [r for r in told if r.launch == newest]


def _incidents(state: State) -> list[Family]:
    every = (*state.incidents, *((state.incident,) if state.incident is not None else ()))
    counts = Counter(_category(incident) for incident in every)
    by_category = tuple(((name,), float(counts[name])) for name in _CATEGORIES)
    ended = [i.ended_at - i.began for i in state.incidents if i.result == "recovered" and i.ended_at is not None]
    text, total = "From the first sign of a fault to the first new step.", (((), sum(ended)),)
    return [
        Family("transom_incidents", COUNTER, "Incidents, by what went wrong.", "", ("category",), by_category),
        _gauge("transom_incident_open", "1 while an incident is open, else 0.", state.incident is not None),
        Family("transom_recovery", SUMMARY, text, "seconds", (), total, len(ended)),
    ]


def _category(incident: Incident) -> str:
    told = incident.diagnosis.decided.category if incident.diagnosis is not None else UNDIAGNOSED
    return told if told in _CATEGORIES else Category.UNKNOWN.value


def _nodes(sight: Sight) -> list[Family]:
    state = sight.state
    looked_at = {x.node for x in state.idle_looks}
    here = state.nodes if state.slurm_state == "RUNNING" else ()
    idle = [n for n in state.idle if n in here]
    counts = {
        "training": len(here) - len(idle),
        "spare": sum(n not in looked_at for n in idle),
        "given_up": sum(n in looked_at for n in idle),
        "drained": sum(x.how == "drained" for x in state.exclusions),
        "excluded": sum(x.how != "drained" for x in state.exclusions),
    }
    samples = tuple(((name,), float(count)) for name, count in counts.items())
    text = "Nodes of the job (training, spare, given_up), and nodes that the run keeps away from (drained, excluded)."
    return [Family("transom_nodes", GAUGE, text, "", ("state",), samples)]


def _checkpoints(sight: Sight) -> list[Family]:
    saved = sorted((sight.saved or {}).items())
    steps = tuple(((place,), float(step)) for place, (step, _) in saved)
    ages = tuple(((place,), max(0.0, sight.now - at)) for place, (_, at) in saved if at is not None)
    text = "Age of the newest checkpoint, on disk and in the nodes' memory."
    return [
        Family("transom_checkpoint_step", GAUGE, "Step of the newest checkpoint.", "", ("place",), steps),
        Family("transom_checkpoint_age", GAUGE, text, "seconds", ("place",), ages),
    ]


def _own(sight: Sight) -> list[Family]:
    told = tuple((labels, float(count)) for labels, count in sorted((sight.told or {}).items()))
    text = "Messages that were told, given up, dropped."
    return [
        Family("transom_notifications", COUNTER, text, "", ("target", "result"), told),
        _counter("transom_operator_starts", "Operators that this run has had.", sight.state.epoch),
        _gauge("transom_last_update_timestamp", "When these numbers were read, Unix time.", sight.now, "seconds"),
    ]


def _gauge(name: str, text: str, value: float | None, unit: str = "") -> Family:
    return Family(name, GAUGE, text, unit, (), () if value is None else (((), float(value)),))


def _counter(name: str, text: str, value: float) -> Family:
    return Family(name, COUNTER, text, "", (), (((), float(value)),))

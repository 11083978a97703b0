"""Runs the health checks that the launcher's state machine actions, and reports the faults of nodes."""

import contextlib
import json
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from transom_cli.core.diagnose import PREFLIGHT
from transom_cli.core.launcher import CheckNodes, Event, NodesChecked
from transom_cli.errors import TransomError
from transom_cli.files import make_private, publish_text
from transom_cli.health.check import About, Tier
from transom_cli.health.fleet import with_fleet
from transom_cli.health.probe.matrix import Cell
from transom_cli.health.report import Report, document, faults, summary_line
from transom_cli.health.run import HealthRequest, check_job
from transom_cli.layout import AttemptDir
from transom_cli.slurm.parse import switches_of
from transom_cli.slurm.runner import Runner
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions

MESSAGE = 4 << 20  # bytes, a piece of a gradient bucket
SHOWN_EVERY = 0.5  # seconds between two counts of nodes checked
WHOLE = 64  # number of nodes up to which all findings are kept

Examine = Callable[[int, tuple[str, ...], HealthRequest], Report]


def own_order(srun_args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the user has chosen the order of nodes or ranks."""
    given = any(re.match(r"-[mw]|--(distribution|nodelist|nodefile|relative)\b", word) for word in srun_args)
    return given or any(name in environ for name in ("SLURM_HOSTFILE", "SLURM_DISTRIBUTION"))


def links(cells: Iterable[Cell]) -> tuple[tuple[str, str, float], ...]:
    """Return the seconds of a message between each two nodes that have met."""
    known = ((c.src, c.dst, c.delay + MESSAGE / c.rate) for c in cells if c.rate and c.delay is not None)
    return tuple(known)


def topology() -> dict[str, tuple[str, ...]]:
    """Return the switches above each node; {} if Slurm knows none, or does not answer."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return switches_of(Runner(timeout=10.0).run(["scontrol", "show", "topology"]), NodeSet)
    except (TransomError, NodeSetException, ValueError):
        return {}


class NodeChecks:
    """addresses: by which the nodes reach one another. examine: `health.run.check_job`, except in tests."""

    def __init__(
        self,
        allocation: Allocation,
        options: LaunchOptions,
        attempt: AttemptDir,
        inbox: queue.SimpleQueue[Event],
        addresses: Mapping[str, str],
        examine: Examine = check_job,
    ) -> None:
        self._allocation, self._options, self._attempt = allocation, options, attempt
        self._inbox, self._addresses, self._examine = inbox, addresses, examine
        self._since = allocation.since or time.time()

    def check(self, action: CheckNodes) -> None:
        """Start a health run. Returns at once; an answer comes into the inbox in any case."""
        threading.Thread(target=self._check, args=(action,), name="check", daemon=True).start()

    def _check(self, action: CheckNodes) -> None:
        try:
            checked = NodesChecked(0.0, action.key)
            words: list[str] = []
            measured: list[Cell] = []
            for job_id, nodes in self._allocation.by_job(action.nodes).items():
                request = self.request(replace(action, nodes=nodes))
                report = with_fleet(self._examine(job_id, nodes, request), request.off, os.environ)
                self._keep(action.key, report)
                checked = replace(checked, faults=(*checked.faults, *faults(report.findings)))
                words.append(summary_line(report))
                measured += report.cells
            checked = replace(checked, words="; ".join(words))
            if action.key == PREFLIGHT and not own_order(self._options.srun_args, os.environ):
                checked = replace(checked, links=links(measured), switches=tuple(topology().items()))
            self._inbox.put(checked)
        except Exception as error:  # a failed health run accuses no node
            self._inbox.put(NodesChecked(0.0, action.key, words=f"the health run failed: {error!r}"))

    def request(self, action: CheckNodes) -> HealthRequest:
        health, allocation = self._options.health, self._allocation
        tier = Tier(health.preflight) if action.tier == "quick" else Tier(action.tier)
        about = About(
            tier=tier,
            gpus=allocation.gpus,
            since=self._since,
            folders=self._folders(),
            token=self._token(action.key),
            site_checks=health.site_checks,
        )
        budget = health.budget if tier is Tier.QUICK else health.deep_budget
        off, gpus = frozenset(health.off), allocation.gpus
        where = tuple((node, self._addresses[node]) for node in action.nodes if node in self._addresses)
        request = HealthRequest(about, off, health.limits, health.probe, gpus, health.python, where, budget)
        return replace(request, on_read=self._count(len(action.nodes))) if action.key == PREFLIGHT else request

    def _count(self, nodes: int) -> Callable[[int], None]:
        """Keep the number of nodes checked so far where `transom status` sees it; rewritten at most twice a second."""
        written = [0.0]

        def count(read: int) -> None:
            if read < nodes and time.monotonic() - written[0] < SHOWN_EVERY:
                return
            written[0] = time.monotonic()
            with contextlib.suppress(OSError):
                publish_text(self._attempt.preflight, json.dumps({"checked": read, "of": nodes}))

        count(0)
        return count

    def _folders(self) -> tuple[str, ...]:
        """The folders that this node sees: if one is missing here too, no node is at fault."""
        both = (self._attempt.path, self._options.checkpoints)
        return tuple(dict.fromkeys(str(path) for path in both if os.path.isdir(path)))  # noqa: PTH112 - never raises

    def _token(self, key: str) -> str:
        """Write a file that all nodes must see alike. "" on a full disk: then it is not checked."""
        path = self._attempt.health / f"{key}.token"
        words = secrets.token_hex(16)
        try:
            make_private(path.parent)
            publish_text(path, words)
        except OSError:
            return ""
        return f"{path}\n{words}"

    def _keep(self, key: str, report: Report) -> None:
        with contextlib.suppress(OSError):  # the outcome names bad nodes in any case
            publish_text(self._attempt.health / f"{key}.json", json.dumps(document(report, WHOLE), indent=1) + "\n")

"""Has the attempt's nodes examined when the launcher's core orders it, and tells it what speaks against them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping

from transom_cli.core.launcher import CheckNodes, Event, NodesChecked
from transom_cli.files import publish_text
from transom_cli.health.check import About, Tier
from transom_cli.health.report import Report, document, faults, summary_line
from transom_cli.health.run import HealthRequest, check_job
from transom_cli.layout import AttemptDir
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions

WHOLE = 64  # nodes of which all findings are kept

Examine = Callable[[int, tuple[str, ...], HealthRequest], Report]


class NodeChecks:
    """addresses: of the nodes, for one another. `examine` is `health.run.check_job`, but for tests."""

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

    def check(self, order: CheckNodes) -> None:
        """Returns at once; the answer comes into the inbox, whatever happens."""
        threading.Thread(target=self._check, args=(order,), name="check", daemon=True).start()

    def _check(self, order: CheckNodes) -> None:
        try:
            report = self._examine(self._allocation.job_id, order.nodes, self.wishes(order))
            self._keep(order.key, report)
            self._inbox.put(NodesChecked(0.0, order.key, faults(report.findings), summary_line(report)))
        except Exception as error:  # an examination that fails speaks against nobody
            self._inbox.put(NodesChecked(0.0, order.key, words=f"the examination failed: {error!r}"))

    def wishes(self, order: CheckNodes) -> HealthRequest:
        health, allocation = self._options.health, self._allocation
        tier = Tier(health.preflight) if order.tier == "quick" else Tier(order.tier)
        about = About(
            tier=tier,
            gpus=allocation.gpus,
            since=self._since,
            folders=self._folders(),
            token=self._token(order.key),
            site_checks=health.site_checks,
        )
        budget = health.budget if tier is Tier.QUICK else health.deep_budget
        off, gpus = frozenset(health.off), allocation.gpus
        where = tuple((node, self._addresses[node]) for node in order.nodes if node in self._addresses)
        return HealthRequest(about, off, health.limits, health.probe, gpus, health.python, where, budget)

    def _folders(self) -> tuple[str, ...]:
        """Those that are there for us: what is missing here is no node's fault."""
        both = (self._attempt.path, self._options.checkpoints)
        return tuple(dict.fromkeys(str(path) for path in both if os.path.isdir(path)))  # noqa: PTH112 - never raises

    def _token(self, key: str) -> str:
        """A file of the run directory that all nodes must see alike. Without it (a full disk) that is not looked at."""
        path = self._attempt.health / f"{key}.token"
        words = secrets.token_hex(16)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            publish_text(path, words)
        except OSError:
            return ""
        return f"{path}\n{words}"

    def _keep(self, key: str, report: Report) -> None:
        with contextlib.suppress(OSError):  # the outcome names what is bad in any case
            publish_text(self._attempt.health / f"{key}.json", json.dumps(document(report, WHOLE), indent=1) + "\n")

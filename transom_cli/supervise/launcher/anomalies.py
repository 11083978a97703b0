"""Finds anomalies of a training that steps: it is slow, its loss goes wrong, or a node computes wrong.

A thread reads the nodes' step breakdowns (from their agents, or `nodes/<node>.spent`) and has them judged
(diagnose.slowness, diagnose.numerics, core.silent). Begin and end of an anomaly are journalled ("report") and passed to
the launcher's state machine, which acts if a rule of the policy asks for it. `reports.json` holds the present anomalies
with their clues, and the map of ranks and phases, for `transom status`.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.ckpt.inventory import candidates
from transom_cli.ckpt.names import step_name, step_of
from transom_cli.ckpt.tiers import marks
from transom_cli.core import silent
from transom_cli.core.bad_loss import BadLoss
from transom_cli.core.codec import build, plain
from transom_cli.core.launcher import AnomalyReported
from transom_cli.diagnose import numerics
from transom_cli.diagnose.clue import NO_NUMBER, Clue, Silent
from transom_cli.diagnose.slowness import causes, watch
from transom_cli.diagnose.slowness import heatmap as words
from transom_cli.errors import printable
from transom_cli.files import listed, replace_text, tail
from transom_cli.heartbeat.step_breakdown import BadStepBreakdown, NodeSteps, decode
from transom_cli.layout import AttemptDir
from transom_cli.supervise.attempt_files import SCHEMA, last_bad_loss, newest_checkpoint, read_losses
from transom_cli.supervise.launcher.journal import JournalWriter, say

EVERY = 5.0  # interval in seconds between reads, as the agents write
NODES = 100  # number of nodes from which the interval grows in proportion
HOT = ("host:gpu_clocks", "host:gpu_heat", "host:gpu_power")  # findings about clocks and heat (health.gpu)
TAIL = 64 << 10  # bytes of a node's newest findings that are read


class AnomalyReporter:
    """Reports the anomalies of one attempt. Only its thread calls `look`. hear: gets each event, with `at` unset."""

    def __init__(
        self,
        attempt: AttemptDir,
        checkpoints: Path,
        journal: JournalWriter,
        hear: Callable[[AnomalyReported], None],
        steps: Callable[[str], str] | None = None,
        before: Sequence[AttemptDir] = (),
    ) -> None:
        """steps: a node's step breakdowns as text; raises OSError. before: earlier attempts, oldest first."""
        self._steps = steps or (lambda node: attempt.spent(node).read_text(encoding="utf-8"))
        self._attempt, self._checkpoints = attempt, checkpoints
        self._journal, self._hear = journal, hear
        self._slow = watch.SlowState()
        self._loss = numerics.NumericsState()
        self._silent = self._known_doubts(before)
        self._guarded = -1  # launch of the newest reports of guards
        self._sampled = (-1, -1)  # launch and step of the newest loss that was judged
        self._standing: dict[str, dict[str, Any]] = {}
        self._before = before
        self._bad = last_bad_loss(reversed(before))
        self._good = -1  # the last step with a good loss, in any launch
        self._kept = self._marked()  # checkpoints that must not be deleted while the loss is bad
        self._shown: object = None
        self._end = threading.Event()

    def start(self) -> None:
        if self._silent.open is not None:
            self._keep_doubts()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def stop(self) -> None:
        self._end.set()

    def _run(self) -> None:
        nodes = 0
        while not self._end.wait(EVERY * max(1.0, nodes / NODES)):
            readings = self._read()
            nodes = len(readings)
            if readings:
                self.look(readings)

    def look(self, readings: Mapping[str, NodeSteps]) -> None:
        self._slow, slow = watch.watch(self._slow, readings)
        launch = self._slow.launch[1]
        for edge in slow:
            if isinstance(edge, watch.Began):
                found = causes.heated(edge.slowness, self._hot(edge.slowness))
                nodes = tuple(dict.fromkeys(c.node for c in found.clue.culprits if c.node))
                kind = found.kind.value
                self._begins(AnomalyReported(0.0, launch, edge.slowness.key, kind, "", edge.step, nodes), found.clue)
            else:
                self._ends(edge.begun.slowness.key, edge.step)
        for one in self._losses(readings):
            if isinstance(one, numerics.Found):
                kept = self._kept if one.trouble in NO_NUMBER else ()
                more = (f"{kept[-1].name} is kept",) if kept else ()
                self._begins(self._of_loss(one), replace(one.clue, evidence=(*one.clue.evidence, *more)))
            else:
                self._ends(one.found.trouble.value, one.step)
        for doubt in self._corruption(readings):
            back_to = newest_checkpoint(self._checkpoints, up_to=doubt.before) if doubt.before > 0 else doubt.before
            launch, what = self._guarded, doubt.what.value
            report = AnomalyReported(0.0, launch, what, what, "", doubt.step, doubt.nodes, doubt.before, back_to)
            self._begins(report, doubt.clue)
        self._show()

    def _corruption(self, readings: Mapping[str, NodeSteps]) -> tuple[silent.Found, ...]:
        ranks = [(rank, node.node) for node in readings.values() for rank in node.ranks]
        launch = max((rank.launch for rank, _ in ranks), default=-1)
        if launch > self._guarded:  # findings concern the launch before
            for what in Silent:
                self._ends(what.value, -1)
            self._guarded = launch
        guards = [silent.Guarded(rank.rank, node, rank.guard) for rank, node in ranks if rank.launch == launch]
        state, found = silent.watch(self._silent, launch, guards)
        if state != self._silent:
            self._silent = state
            self._keep_doubts()
        return found

    def _known_doubts(self, before: Sequence[AttemptDir]) -> silent.SilentState:
        """What an earlier launcher of this attempt knew, or of the newest attempt that knew anything."""
        for attempt in (self._attempt, *reversed(before)):
            with contextlib.suppress(OSError, ValueError):
                state = build(silent.SilentState, json.loads(attempt.doubt.read_text(encoding="utf-8")))
                return state if attempt is self._attempt else state.inherited()
        return silent.SilentState()

    def _keep_doubts(self) -> None:
        """Keep them for a later launcher, and for the ranks, which learn what to repeat (heartbeat.guard_record)."""
        with contextlib.suppress(OSError):  # the present launcher knows them anyway
            replace_text(self._attempt.doubt, json.dumps(plain(self._silent)) + "\n")

    def _of_loss(self, found: numerics.Found) -> AnomalyReported:
        """Add the checkpoint to which a rollback would return."""
        kind, before = found.trouble.value, numerics.last_step_before(found)
        back_to = newest_checkpoint(self._checkpoints, up_to=before) if before >= 0 else -1
        return AnomalyReported(0.0, self._sampled[0], kind, kind, "", found.step, (), before, back_to)

    def _marked(self) -> list[Path]:
        """Return the checkpoints that an earlier launcher has kept."""
        with contextlib.suppress(OSError):
            return [one.path for one in candidates(self._checkpoints) if marks.is_automatic(one.path)]
        return []

    def _keep(self, step: int, loss: float) -> None:
        """Mark the newest checkpoint before the first loss that is no number, until a loss beyond it is good.

        Three such losses are reported, which takes 15 s. Fast saves would have deleted the checkpoint by then.
        """
        if math.isfinite(loss):
            self._bad = None
            self._good = self._good if self._loss.loss.bad else step
            for kept in [one for one in self._kept if (step_of(one.name) or 0) < step]:
                with contextlib.suppress(OSError):
                    marks.keep(kept, kept=False)
                    self._kept.remove(kept)
            return
        if self._bad is None:
            good = self._good if self._good >= 0 else self._good_before()
            self._bad = BadLoss(step, good, infinite=math.isinf(loss))
        if self._bad.proven < 0 or self._kept:
            return
        there = self._checkpoints / step_name(newest_checkpoint(self._checkpoints, up_to=self._bad.proven))
        with contextlib.suppress(OSError):
            if there.exists() and not marks.is_kept(there):
                marks.keep(there, automatic=True)
                self._kept.append(there)

    def _good_before(self) -> int:
        """Return the last step with a good loss of the attempts before; -1 if none is known."""
        for attempt in reversed(self._before):
            if steps := [one.step for one in read_losses(attempt) if math.isfinite(one.loss)]:
                return steps[-1]
        return -1

    def _losses(self, readings: Mapping[str, NodeSteps]) -> tuple[numerics.Found | numerics.Over, ...]:
        """Judge the loss of the lowest rank that reports one: gradients spread what is wrong to all ranks."""
        ranks = [rank for node in readings.values() for rank in node.ranks if rank.loss is not None]
        launch = max((rank.launch for rank in ranks), default=-1)
        lead = min((rank for rank in ranks if rank.launch == launch), key=lambda rank: rank.rank, default=None)
        if lead is None or lead.loss is None or (launch, lead.loss_step) == self._sampled:
            return ()
        if launch > self._sampled[0] >= 0:  # present findings concern the launch before
            for one in self._loss.standing:
                self._ends(one.trouble.value, one.step)
            self._loss = numerics.relaunched(self._loss)
        self._sampled = launch, lead.loss_step
        self._loss, found = numerics.watch(self._loss, lead.loss_step, lead.loss, lead.grad_norm, lead.loss_scale)
        self._keep(lead.loss_step, lead.loss)
        return found

    def _begins(self, report: AnomalyReported, clue: Clue) -> None:
        words = printable("; ".join(clue.evidence))
        self._ends(report.key, report.step, silently=True)  # replaced by its update
        record = {"what": report.what, "step": report.step, "words": words, "clue": plain(clue)}
        record |= {"good": report.back_to} if report.back_to >= 0 else {}
        self._standing[report.key] = record
        self._journal("report", over=False, **record)
        say(f"transom: step {report.step}: {words}")
        self._hear(replace(report, words=words))

    def _ends(self, key: str, step: int, *, silently: bool = False) -> None:
        report = self._standing.pop(key, None)
        if report is None:
            return
        if not silently:
            launch = max(self._slow.launch[1], self._sampled[0], self._guarded)
            self._hear(AnomalyReported(0.0, launch, key, str(report["what"]), "", step, over=True))
            self._journal("report", over=True, **{**report, "step": step})
            say(f"transom: step {step}: over: {report['words']}")

    def _show(self) -> None:
        """Write reports.json if it changed."""
        heat = self._slow.map if self._slow.map is not None and self._slow.map.reported else None
        shown = (tuple(self._standing.values()), heat, self._bad)
        if shown == self._shown or (self._shown is None and not self._standing and heat is None and self._bad is None):
            return
        data = {"schema": SCHEMA, "wall": time.time(), "standing": list(self._standing.values())}
        data["bad_loss"] = plain(self._bad) if self._bad is not None else None
        data["phases"] = words.document(heat) if heat is not None else None
        data["lines"] = words.lines(heat) if heat is not None else []
        with contextlib.suppress(OSError):  # the next call tries again
            replace_text(self._attempt.reports, json.dumps(data) + "\n")
            self._shown = shown

    def _read(self) -> dict[str, NodeSteps]:
        found = {}
        for name in (path.stem for path in listed(self._attempt.nodes) if path.suffix == ".spent"):
            with contextlib.suppress(OSError, BadStepBreakdown, UnicodeDecodeError):
                node = decode(self._steps(name))
                if node.attempt == self._attempt.name:
                    found[node.node] = node
        return found

    def _hot(self, found: causes.Slowness) -> dict[str, str]:
        """Return the newest findings of the culprits' agents about clocks and heat."""
        hot = {}
        for node in {culprit.node for culprit in found.clue.culprits if culprit.node}:
            with contextlib.suppress(OSError):
                if text := hottest(tail(self._attempt.findings(node), TAIL)):
                    hot[node] = text
        return hot


def hottest(findings: bytes) -> str:
    """Return the newest finding about heat or clocks; "" if all is well again."""
    newest: dict[str, str] = {}
    for line in findings.splitlines():
        try:
            record = json.loads(line)
            kind, text, verdict = str(record["kind"]), str(record["words"]), str(record["verdict"])
        except (ValueError, KeyError, TypeError):
            continue
        if kind.startswith(HOT):
            newest.pop(kind, None)
            newest[kind] = "" if verdict in ("pass", "unknown") else text
    return next((text for text in reversed(newest.values()) if text), "")

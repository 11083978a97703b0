"""One process operates all runs of a user on a host. Each run has its own thread; the runs share only Slurm's answers.

A run whose files are damaged, whose file system hangs or whose operator fails does not affect the others. Each run
keeps its own journal and lease, so the process may be killed at any moment; the next one continues all runs of the
registry.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from transom_cli.config.run_settings import read_settings
from transom_cli.core.operator.state import Phase
from transom_cli.errors import OperatorAlive, TransomError
from transom_cli.layout import RunDir
from transom_cli.ownership import is_own
from transom_cli.start import upgraded
from transom_cli.submit.rundir import list_runs
from transom_cli.submit.submission import SubmissionRecord, replace_sbatch_variables
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import Holder, read_holder
from transom_cli.supervise.operator.loop import FINISH, Operator
from transom_cli.supervise.operator.registry import Entry, Registry, Shell
from transom_cli.supervise.operator.run_logs import RunLog, RunLogs, current
from transom_cli.supervise.past_runs import remember

log = logging.getLogger("transom.operator")

TURN = 0.25  # seconds between two looks at the registry
LOST = 600.0  # seconds between two looks for runs whose operator died elsewhere
AGAIN, LONGEST = 60.0, 3600.0  # seconds from a failed operator to the next one of the same run
LAST = 15.0  # seconds for the last notifications
STACK = 1 << 20  # bytes for each thread: a larger stack may be backed by huge pages

Build = Callable[[RunDir, Shell], Operator]


class Service(Protocol):
    """A service of an operator process for its runs, such as a socket for requests.

    Each method is called from the run's own thread. Errors are logged and ignored.
    """

    def add(self, operator: Operator) -> None: ...
    def remove(self, operator: Operator) -> None: ...
    def close(self) -> None: ...


class _Work:
    """One run of the process. over: nothing remains to be done."""

    def __init__(self, entry: Entry, body: Callable[[_Work], None], failures: int) -> None:
        self.entry, self.failures = entry, failures
        self.operator: Operator | None = None
        self.over = False
        self.again_at = float("inf")  # when to try again once the thread has ended
        self.thread = threading.Thread(target=body, args=(self,), name=f"run-{entry.run.run_id}", daemon=True)


class OperatorProcess:
    """Operates the runs of a registry.

    Args:
        build: makes a run's operator, which submits its jobs as from the given shell.
        check: raises if acting on a run could run what other users wrote.
        services: start with the process, and are shared by its runs.
        find_lost: registers runs whose operator died elsewhere; called now and then, from a thread of its own.
        idle_exit: end when no run remains.
    """

    def __init__(
        self,
        registry: Registry,
        build: Build,
        check: Callable[[RunDir], None] = lambda run: None,
        services: Sequence[Service] = (),
        find_lost: Callable[[], None] | None = None,
        *,
        idle_exit: bool = False,
    ) -> None:
        self._find_lost = find_lost
        self._registry, self._build, self._check = registry, build, check
        self._services, self._idle_exit = tuple(services), idle_exit
        self._works: dict[str, _Work] = {}
        self._seen = -1  # the registry's change that was last acted on
        self._leaving = threading.Event()

    def leave(self) -> None:
        """Stop operating without touching the jobs."""
        self._leaving.set()

    def run(self) -> None:
        if self._find_lost is not None:
            threading.Thread(target=self._keep_finding, args=(self._find_lost,), name="lost-runs", daemon=True).start()
        while not self._leaving.is_set():
            self._look()
            if self._idle_exit and not self._works and not self._registry.names():
                break
            self._leaving.wait(TURN)
        works = list(self._works.values())
        for work in works:
            if work.operator is not None:
                work.operator.leave()
        until = time.monotonic() + FINISH + LAST
        for work in works:
            work.thread.join(max(0.0, until - time.monotonic()))
        for service in self._services:
            _safely(service.close)

    def _keep_finding(self, find_lost: Callable[[], None]) -> None:
        while not self._leaving.wait(LOST):
            _safely(find_lost)

    def _look(self) -> None:
        """Start operating newly registered runs, and remove runs that are over."""
        now = time.monotonic()
        ended = [work for work in self._works.values() if not work.thread.is_alive()]
        for work in [work for work in ended if work.over]:
            self._registry.remove(work.entry.name)
            del self._works[work.entry.name]
        changed = self._registry.changed()
        new = changed != self._seen or any(name not in self._works for name in self._registry.names())
        if not new and not any(work.again_at <= now for work in ended):
            return
        self._seen = changed
        for entry in self._registry.entries():
            known = self._works.get(entry.name)
            if known is None or (not known.thread.is_alive() and (known.again_at <= now or _newer(entry, known))):
                failures = known.failures if known is not None and not _newer(entry, known) else 0
                self._works[entry.name] = work = _Work(entry, self._operate, failures)
                work.thread.start()

    def _operate(self, work: _Work) -> None:
        """The thread of one run."""
        run, name = work.entry.run, work.entry.name
        try:
            if not run.settings.exists():  # deleted, unless its file system is not mounted
                work.over, work.again_at = run.path.parent.exists(), time.monotonic() + AGAIN
                return
            self._check(run)
            current.set(RunLog(run.operator_log, run.run_id, as_json=read_settings(run).log_json))
            work.over = fold(run.journal).state.phase.over or self._until_over(work)
        except OperatorAlive as error:
            log.info("%s: %s", error.what, error.why)
            work.again_at = time.monotonic() + LOST
            self._refuse(name, "")
        except Exception as error:
            work.failures += 1
            pause = min(AGAIN * 2.0 ** (work.failures - 1), LONGEST)
            work.again_at = time.monotonic() + pause
            explained = isinstance(error, TransomError)
            words = str(error) if explained else repr(error)
            if isinstance(error, (ImportError, AttributeError)) and (upgrade := upgraded()):
                explained, words = True, f"{upgrade}; end process {os.getpid()}, then `transom operate --all` ({words})"
            log.error("cannot operate %s; next try in %.0f s: %s", run.run_id, pause, words, exc_info=not explained)
            current.set(None)
            log.error("cannot operate %s: %s", run.path, words)
            self._refuse(name, words)

    def _until_over(self, work: _Work) -> bool:
        run = work.entry.run
        work.operator = operator = self._build(run, shell_of(run, work.entry.shell))
        if self._leaving.is_set():
            operator.leave()
        for service in self._services:
            _safely(lambda: service.add(operator))  # noqa: B023
        try:
            state = operator.run()
        finally:
            work.operator = None
            for service in self._services:
                _safely(lambda: service.remove(operator))  # noqa: B023
        if state.phase is Phase.DONE:
            remember(run)
        return state.phase.over

    def _refuse(self, name: str, why: str) -> None:
        with contextlib.suppress(OSError):
            self._registry.refuse(name, why)


def _newer(entry: Entry, known: _Work) -> bool:
    return entry.stamp != known.entry.stamp


def _safely(part: Callable[[], object]) -> None:
    try:
        part()
    except Exception:
        log.exception("a service of the operator process failed")


def shell_of(run: RunDir, shell: Shell) -> Shell:
    """Return the shell from which a run's jobs are submitted: with the SBATCH_* variables of its first submission."""
    environ, kept = dict(shell.environ), SubmissionRecord.load(run).sbatch
    if kept is not None:
        replace_sbatch_variables(environ, dict(kept))
    return replace(shell, environ=environ)


def register_live(registry: Registry, root: Path, seen: dict[Path, Holder] | None = None) -> None:
    """Register the user's runs in `root` whose operator may have died: no operator has given up their leases.

    Args:
        seen: the leases of operators on other hosts at the last call; one that was renewed since is alive.
    """
    for run in list_runs(root):
        holder = read_holder(run)
        if holder is None or holder.released or (holder.here() and holder.alive_here()):
            continue
        if seen is not None and not holder.here():
            before, seen[run.path] = seen.get(run.path), holder
            if before != holder:
                continue
        if is_own(run) and not run.operator_job.exists():
            registry.add(run, Shell.here(), again=False)


def operate_all(registry: Registry, make: Callable[[], OperatorProcess]) -> bool:
    """Operate the runs of the registry until TERM or INT. False if another process operates them."""
    if not registry.lock():
        return False
    logging.basicConfig(level=logging.INFO, handlers=[RunLogs()], force=True)
    os.environ.pop("MALLOC_ARENA_MAX", None)
    threading.stack_size(STACK)
    process = make()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.leave())
    log.info("operating all runs in %s", registry.folder)
    try:
        process.run()
    finally:
        registry.unlock()
    log.info("leaving")
    return True

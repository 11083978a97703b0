"""Metrics in Prometheus' formats: a text file and an HTTP endpoint. Only this module imports prometheus-client."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from transom_cli.notify.metrics import COUNTER, SUMMARY, Family

OURS = "transom-"
FORGOTTEN = 3600.0  # seconds after which an unchanged file belongs to a finished run


class _Families(Collector):
    def __init__(self, run_id: str, families: Callable[[], Iterable[Family]]) -> None:
        self._run_id, self._families = run_id, families

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            if family.samples:
                yield _metric(self._run_id, family)


def _metric(run_id: str, family: Family) -> Metric:
    names = ("run", *family.labels)
    if family.kind == SUMMARY:
        summary = SummaryMetricFamily(family.name, family.help, labels=names, unit=family.unit)
        for values, total in family.samples:
            summary.add_metric((run_id, *values), family.count, total)
        return summary
    kind = CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=names, unit=family.unit)
    for values, value in family.samples:
        metric.add_metric((run_id, *values), value)
    return metric


def registry(run_id: str, families: Callable[[], Iterable[Family]]) -> CollectorRegistry:
    """Return a registry that calls `families` for each scrape."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Families(run_id, families))
    return made


def serve(made: CollectorRegistry, address: str, port: int) -> Callable[[], None]:
    """Serve metrics in threads; the returned function stops it. Raises OSError if the port is taken."""
    server, _thread = start_http_server(port, address, made)

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop


def write_text(made: CollectorRegistry, folder: Path, run_id: str) -> None:
    """Write `transom-<run>.prom` for node_exporter's textfile collector, atomically and readable by all.

    Unlike `files.publish_bytes`, regardless of the umask and without fsync. Others may write to the folder, so no
    existing file is opened.
    """
    path = folder / f"{OURS}{run_id}.prom"
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(generate_latest(made))
            os.fchmod(file.fileno(), 0o644)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Remove files that finished runs of this user left. The last metrics stay for an hour."""
    for path in (*folder.glob(f"{OURS}*.prom"), *folder.glob(f".{OURS}*.tmp")):
        with contextlib.suppress(OSError):
            stat = path.lstat()
            if stat.st_uid == os.geteuid() and time.time() - stat.st_mtime > FORGOTTEN:
                path.unlink()

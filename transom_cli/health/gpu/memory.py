"""GPU memory: ECC errors, remapped rows, retired pages. Judges are pure.

A counter may include an earlier job's errors, long repaired. So an uncorrected error that is only counted makes a node
suspect; one that is new drains it. NVIDIA's own criteria for replacing a GPU (failed remapping, the SRAM threshold)
drain it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.reading import (
    Anomaly,
    Ecc,
    Gpu,
    GpuLimits,
    NvmlReading,
    Pages,
    Rows,
    Sram,
    gpu_finding,
    gpu_findings,
    growth,
    spread,
)

if TYPE_CHECKING:
    from transom_cli.health.gpu.nvml import Device

FINDINGS = ("gpu_ecc", "gpu_ecc_corrected", "gpu_sram", "gpu_rows", "gpu_pages")


def read_memory(device: Device) -> dict[str, Any]:
    on, on_next = device.switches("nvmlDeviceGetEccMode")
    counts = [device.get("nvmlDeviceGetTotalEccErrors", kind, since) for kind in (1, 0) for since in (0, 1)]
    sram = device.fill("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    rows = device.get("nvmlDeviceGetRemappedRows")
    return {
        "ecc_on": on,
        "ecc_on_next": on_next,
        "ecc": Ecc(*counts),
        "sram": sram
        and Sram(
            uncorrected_volatile=sram.volatileUncParity + sram.volatileUncSecDed,
            uncorrected_aggregate=sram.aggregateUncParity + sram.aggregateUncSecDed,
            corrected_volatile=sram.volatileCor,
            exceeded=bool(sram.bThresholdExceeded),
        ),
        "rows": rows and Rows(rows[0], rows[1], bool(rows[2]), bool(rows[3])),
        "pages": None if rows else _read_pages(device),
    }


def _read_pages(device: Device) -> Pages | None:
    single, double = (device.get("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1))
    if single is None or double is None:
        return None
    return Pages(len(single), len(double), bool(device.get("nvmlDeviceGetRetiredPagesPendingStatus")))


def judge_memory(node: str, reading: NvmlReading, limits: GpuLimits) -> list[Finding]:
    gpus = [gpu for gpu in reading.gpus if gpu.readable]
    ecc = [gpu for gpu in gpus if gpu.ecc.uncorrected_volatile is not None]
    corrected = [gpu for gpu in gpus if gpu.ecc.corrected_volatile is not None]
    corrected_text = f"{spread(gpu.ecc.corrected_volatile for gpu in corrected)} corrected ECC errors"
    sram = [gpu for gpu in gpus if gpu.sram]
    remapped = [gpu.rows for gpu in gpus if gpu.rows]
    rows_text = f"{spread(r.corrected + r.uncorrected for r in remapped)} rows remapped, none pending or failed"
    retired = [gpu.pages for gpu in gpus if gpu.pages]
    pages_text = f"{spread(p.single_bit + p.double_bit for p in retired)} pages retired"
    no_pages = "no page retirement (rows are remapped instead)"
    return [
        *gpu_findings("gpu_ecc", node, len(ecc), _ecc(ecc), "no uncorrected ECC error", "no ECC counters"),
        *gpu_findings(
            "gpu_ecc_corrected", node, len(corrected), _corrected(corrected, limits), corrected_text, "no ECC counters"
        ),
        *gpu_findings("gpu_sram", node, len(sram), _sram(sram, limits), "no SRAM errors to report", "no SRAM counters"),
        *gpu_findings("gpu_rows", node, len(remapped), _rows(gpus, limits), rows_text, "no row remapping"),
        *gpu_findings("gpu_pages", node, len(retired), _pages(gpus, limits), pages_text, no_pages),
    ]


def judge_memory_changes(node: str, old: Gpu, new: Gpu) -> Iterator[Finding]:
    """Yield a FAIL for new uncorrected errors on one GPU."""
    if more := growth(old.ecc.uncorrected_volatile, new.ecc.uncorrected_volatile):
        text = f"{more} new uncorrected ECC errors ({new.ecc.uncorrected_volatile} since its last reset)"
        yield gpu_finding("gpu_ecc", node, Anomaly(new, Verdict.FAIL, text, Remedy.RESET_GPU))
    if old.sram and new.sram and (more := growth(old.sram.uncorrected_volatile, new.sram.uncorrected_volatile)):
        text = f"{more} new uncorrected SRAM errors ({new.sram.uncorrected_volatile} since its last reset)"
        yield gpu_finding("gpu_sram", node, Anomaly(new, Verdict.FAIL, text, Remedy.RESET_GPU))


def _ecc(gpus: list[Gpu]) -> Iterator[Anomaly]:
    for gpu in gpus:
        since_reset, ever = gpu.ecc.uncorrected_volatile, gpu.ecc.uncorrected_aggregate
        text = f"{since_reset} uncorrected ECC errors since its last reset, {ever} ever"
        if since_reset:  # gcm: more than 0 is critical; awsome-distributed-training: reset
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.RESET_GPU)
        elif ever:
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)


def _corrected(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Anomaly]:
    for gpu in gpus:
        count = gpu.ecc.corrected_volatile or 0
        if count > limits.gpu_ecc_corrected:
            text = f"{count} corrected ECC errors since its last reset (limit {limits.gpu_ecc_corrected})"
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)


def _sram(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Anomaly]:
    for gpu in gpus:
        sram = gpu.sram
        if sram is None:
            continue
        text = (
            f"SRAM: {sram.uncorrected_volatile} uncorrected errors since its last reset,"
            f" {sram.uncorrected_aggregate} ever, {sram.corrected_volatile} corrected"
        )
        if sram.exceeded:
            yield Anomaly(gpu, Verdict.FAIL, f"{text}; above NVIDIA's threshold", Remedy.REPAIR)
        elif sram.uncorrected_volatile:
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.RESET_GPU)
        elif sram.uncorrected_aggregate or sram.corrected_volatile > limits.gpu_sram_corrected:
            yield Anomaly(gpu, Verdict.MONITOR, text, Remedy.WATCH)


def _rows(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Anomaly]:
    for gpu in gpus:
        rows = gpu.rows
        if rows is None:
            continue
        text = f"rows remapped: {rows.corrected} after corrected, {rows.uncorrected} after uncorrected errors"
        if rows.failed:
            yield Anomaly(gpu, Verdict.FAIL, f"row remapping failed; {text}", Remedy.REPAIR)
        elif rows.pending:
            yield Anomaly(gpu, Verdict.SUSPECT, f"a row remapping waits for a reset; {text}", Remedy.RESET_GPU)
        elif rows.uncorrected > limits.gpu_rows_uncorrected:
            text += f" (limit {limits.gpu_rows_uncorrected})"
            yield Anomaly(gpu, Verdict.SUSPECT, text, Remedy.REPAIR)


def _pages(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Anomaly]:
    for gpu in gpus:
        pages = gpu.pages
        if pages is None:
            continue
        count = pages.single_bit + pages.double_bit
        text = f"pages retired: {pages.single_bit} after single-bit, {pages.double_bit} after double-bit errors"
        if count > limits.gpu_pages:
            yield Anomaly(gpu, Verdict.FAIL, f"{text} (limit {limits.gpu_pages})", Remedy.REPAIR)
        elif pages.pending:
            yield Anomaly(gpu, Verdict.SUSPECT, f"a page retirement waits for a reboot; {text}", Remedy.REBOOT)
        elif count > limits.gpu_pages_soft:
            yield Anomaly(gpu, Verdict.MONITOR, f"{text} (soft limit {limits.gpu_pages_soft})", Remedy.WATCH)

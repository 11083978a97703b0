"""Are the GPUs' memories well: ECC errors, remapped rows, retired pages? Pure.

What a counter has reached since the last reset, or over a GPU's life, may be an earlier job's doing and long repaired.
So an uncorrected error that is only counted makes a node suspect and drains it only when it is new (`judge_changes`);
what NVIDIA itself calls the end of a GPU (a failed remapping, the SRAM threshold) drains it at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu.limits import GpuLimits
from transom_cli.health.gpu.reading import Gpu, NvmlReading
from transom_cli.health.gpu.telling import Odd, spread, told


def judge_memory(node: str, reading: NvmlReading, limits: GpuLimits) -> list[Finding]:
    gpus = [gpu for gpu in reading.gpus if gpu.readable]
    with_ecc = [gpu for gpu in gpus if gpu.ecc.uncorrected_volatile is not None]
    corrected = [gpu for gpu in gpus if gpu.ecc.corrected_volatile is not None]
    with_sram = [gpu for gpu in gpus if gpu.sram]
    with_rows = [gpu for gpu in gpus if gpu.rows]
    with_pages = [gpu for gpu in gpus if gpu.pages]
    return [
        *told("gpu_ecc", node, len(with_ecc), _ecc(with_ecc), "no uncorrected ECC error", "no ECC counters"),
        *told(
            "gpu_ecc_corrected",
            node,
            len(corrected),
            _corrected(corrected, limits),
            f"{spread(gpu.ecc.corrected_volatile for gpu in corrected)} corrected ECC errors",
            "no ECC counters",
        ),
        *told("gpu_sram", node, len(with_sram), _sram(with_sram, limits), "no odd SRAM errors", "no SRAM counters"),
        *told(
            "gpu_rows",
            node,
            len(with_rows),
            _rows(with_rows, limits),
            f"{spread(gpu.rows.corrected + gpu.rows.uncorrected for gpu in with_rows if gpu.rows)} rows remapped,"
            " none pending or failed",
            "no row remapping",
        ),
        *told(
            "gpu_pages",
            node,
            len(with_pages),
            _pages(with_pages, limits),
            f"{spread(gpu.pages.single_bit + gpu.pages.double_bit for gpu in with_pages if gpu.pages)} pages retired",
            "no page retirement (rows are remapped instead)",
        ),
    ]


def _ecc(gpus: list[Gpu]) -> Iterator[Odd]:
    for gpu in gpus:
        since_reset, ever = gpu.ecc.uncorrected_volatile, gpu.ecc.uncorrected_aggregate
        said = f"{since_reset} uncorrected ECC errors since its last reset, {ever} ever"
        if since_reset:  # gcm: more than 0 is critical; awsome-distributed-training: reset
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.RESET_GPU)
        elif ever:
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.WATCH)


def _corrected(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Odd]:
    for gpu in gpus:
        count = gpu.ecc.corrected_volatile or 0
        if count > limits.gpu_ecc_corrected:
            said = f"{count} corrected ECC errors since its last reset (limit {limits.gpu_ecc_corrected})"
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.WATCH)


def _sram(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Odd]:
    for gpu in gpus:
        sram = gpu.sram
        if sram is None:
            continue
        said = (
            f"SRAM: {sram.uncorrected_volatile} uncorrected errors since its last reset,"
            f" {sram.uncorrected_aggregate} ever, {sram.corrected_volatile} corrected"
        )
        if sram.exceeded:
            yield Odd(gpu, Verdict.FAIL, f"{said}; NVIDIA's threshold is exceeded", Remedy.REPAIR)
        elif sram.uncorrected_volatile:
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.RESET_GPU)
        elif sram.uncorrected_aggregate or sram.corrected_volatile > limits.gpu_sram_corrected:
            yield Odd(gpu, Verdict.MONITOR, said, Remedy.WATCH)


def _rows(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Odd]:
    for gpu in gpus:
        rows = gpu.rows
        if rows is None:
            continue
        said = f"rows remapped: {rows.corrected} after corrected, {rows.uncorrected} after uncorrected errors"
        if rows.failed:
            yield Odd(gpu, Verdict.FAIL, f"row remapping has failed; {said}", Remedy.REPAIR)
        elif rows.pending:
            yield Odd(gpu, Verdict.SUSPECT, f"a row remapping is pending until a reset; {said}", Remedy.RESET_GPU)
        elif rows.uncorrected > limits.gpu_rows_uncorrected:
            said += f" (limit {limits.gpu_rows_uncorrected})"
            yield Odd(gpu, Verdict.SUSPECT, said, Remedy.REPAIR)


def _pages(gpus: list[Gpu], limits: GpuLimits) -> Iterator[Odd]:
    for gpu in gpus:
        pages = gpu.pages
        if pages is None:
            continue
        count = pages.single_bit + pages.double_bit
        said = f"pages retired: {pages.single_bit} after single-bit, {pages.double_bit} after double-bit errors"
        if count > limits.gpu_pages:
            yield Odd(gpu, Verdict.FAIL, f"{said} (limit {limits.gpu_pages})", Remedy.REPAIR)
        elif pages.pending:
            yield Odd(gpu, Verdict.SUSPECT, f"a page retirement is pending until a reboot; {said}", Remedy.REBOOT)
        elif count > limits.gpu_pages_soft:
            yield Odd(gpu, Verdict.MONITOR, f"{said} (soft limit {limits.gpu_pages_soft})", Remedy.WATCH)

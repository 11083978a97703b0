"""Faults of file systems and clocks, beside those of processes that `transom sandbox fault` makes.

Tests and benches ask for them. `heal` undoes these as well as `faults.heal` the others.
"""

from __future__ import annotations

from injected.clocks import clock_env as clock_env
from injected.clocks import jump_clock as jump_clock
from injected.clocks import reset_clock as reset_clock
from injected.disks import cont_disk as cont_disk
from injected.disks import fill_disk as fill_disk
from injected.disks import free_disk as free_disk
from injected.disks import fresh_files as fresh_files
from injected.disks import late_files as late_files
from injected.disks import late_view as late_view
from injected.disks import mounts as mounts
from injected.disks import readonly_disk as readonly_disk
from injected.disks import remove as remove
from injected.disks import served as served
from injected.disks import share_disk as share_disk
from injected.disks import small_disk as small_disk
from injected.disks import small_disks as small_disks
from injected.disks import stall_disk as stall_disk
from injected.disks import unshare_disk as unshare_disk
from injected.disks import writable_disk as writable_disk
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox


def heal(sb: Sandbox) -> None:
    """Undo everything: the faults of this package, and those of `faults`."""
    for disk in mounts(sb):  # blocked processes cannot end; it is unmounted when no job uses it
        cont_disk(sb, disk)
        writable_disk(sb, disk)
    for disk in small_disks(sb):
        free_disk(sb, disk)
    reset_clock(sb)
    faults.heal(sb)
    if late := late_view(sb):
        for folder in late:
            fresh_files(sb, folder)
        sb.wait_nodes(sb.node_names, only_idle=True)
    for disk in mounts(sb):
        unshare_disk(sb, disk)
    for disk in small_disks(sb):
        free_disk(sb, disk, unmount=True)

"""Composed answers of NCCL's RAS, for tests: as text (NCCL 2.27) and as JSON (2.28)."""

from __future__ import annotations

import json
from typing import Any

HEAD = """SERVER PROTOCOL 2
OK
ERROR: Unknown command SET FORMAT json
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {0}

Errors
======

"""
BEHIND = """Warnings
========

#0-0 (9c1bcf6fe3a5c2b1) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 1 managed by process 105 on node 10.0.0.4

"""
SILENT = """#0-0 (9c1bcf6fe3a5c2b1) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 1 managed by process 105 on node 10.0.0.4

Warnings
========

"""


def comm(counts: dict[int, int], name: str = "0x9c1b", size: int = 0, silent: tuple[int, ...] = ()) -> dict[str, Any]:
    """A communicator of ranks by their number in the job. Ranks 0 to 3 are on one host, the others on another."""

    def about(at: int, rank: int) -> dict[str, Any]:
        place = {"host": f"10.0.0.{3 + rank // 4}", "pid": 100 + rank, "cuda_dev": rank % 4, "nvml_dev": rank % 4}
        return {"rank": at, **place, "status": {"init_state": 0, "async_error": 0}}

    everyone = [*counts, *silent]
    ranks = [
        about(at, rank) | {"collective_counts": {"Broadcast": 2, "AllReduce": counts[rank], "SendRecv": rank}}
        for at, rank in enumerate(everyone)
        if rank in counts
    ]
    missing = [
        about(at, rank) | {"status": {"unresponsive": True, "considered_dead": False}}
        for at, rank in enumerate(everyone)
        if rank in silent
    ]
    return {"hash": name, "size": size or len(everyone), "ranks": ranks, "missing_ranks": missing}


def answer(*comms: dict[str, Any]) -> str:
    head = {"nccl_version": "2.28.9", "communicators_count": len(comms)}
    return "SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps({**head, "communicators": comms}, indent=2)

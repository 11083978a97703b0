"""One of several gloo ranks with sharded and shared tensors. Usage: ckpt_incremental_worker.py DIRECTORY [read].

Prints what it restored or wrote, and a digest of the whole state, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from transom_cli.ckpt.checkpointer import Checkpointer


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    seed = 1 if sys.argv[2:] == ["read"] else 0
    torch.manual_seed(seed)
    state = {
        "table": distribute_tensor(torch.randn(20_001, 128), mesh, [Shard(0)]),
        "wide": distribute_tensor(torch.randn(512, 2051), mesh, [Shard(1)]),
        "shared": {str(k): torch.randn(256, 1024) for k in range(6)},
    }
    checkpointer = Checkpointer(state, directory, every=1, keep=2, full_every=10, reshard=True)
    restored = checkpointer.restore()
    answer: dict[str, object] = {"restored": restored}
    if restored is None:
        for step in range(1, 6):
            local = state["table"].to_local()
            local[step] += 1
            state["shared"][str(step % 2)] += 1
            checkpointer.save(step)
            checkpointer.wait(strict=True)
        answer["written"] = (directory / "step-5" / f"__{rank}_0.distcp").stat().st_size
        answer["whole"] = sum(path.stat().st_size for path in (directory / "step-5").glob(f"__{rank}_0.step-1.distcp"))
    digest = hashlib.sha256()
    for value in (state["table"], state["wide"], *state["shared"].values()):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        digest.update(whole.contiguous().numpy().tobytes())
    answer["digest"] = digest.hexdigest()
    checkpointer.close()
    dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

"""torchtitan's checkpoint manager with seals, at its seam: torchtitan's Trainer itself assumes a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.ckpt.seal import sealed
from transom_cli.heartbeat import paths
from transom_cli.rpc.sockets import free_port

WORKER = """
import os, signal, sys
import torch
import torch.distributed as dist
from transom_cli import recoverable
from transom_cli.heartbeat import paths, reentry
from transom_cli.integrations.torchtitan import TransomCheckpointManager

folder, mode, steps, warn = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def main(ctx=None):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)

    class Counter:  # as torchtitan's train state
        step = 0
        def state_dict(self): return {"step": torch.tensor(self.step)}
        def load_state_dict(self, state): self.step = int(state["step"])

    class Optimizers:
        def __init__(self): self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def state_dict(self): return {"lr": torch.tensor(self.optimizer.param_groups[0]["lr"])}
        def load_state_dict(self, state): pass

    config = TransomCheckpointManager.Config(
        enable=True, interval=4, keep_latest_k=0, async_mode=mode, last_save_model_only=False
    )
    state = Counter()
    manager = config.build(
        dataloader=Counter(), model_parts=[model], optimizers=Optimizers(), lr_schedulers=Counter(),
        states={"train_state": state}, sd_adapter=None, base_folder=folder,
    )
    manager.load()
    began = state.step
    for state.step in range(began + 1, steps + 1):
        torch.nn.init.constant_(model.weight, state.step)
        if state.step == warn and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        manager.maybe_wait_for_staging()
        manager.save(state.step, last_step=state.step == steps)
        if ctx and ctx.entry == 0 and state.step == 7:
            manager.maybe_wait_for_saving()
            dist.barrier()
            if dist.get_rank() == 0:
                order = {paths.LAUNCH: "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[5]}
                reentry.write_order(os.environ[paths.BEAT_DIR], 0, order)
            dist.recv(torch.ones(1), 1 - dist.get_rank())  # forever
    manager.maybe_wait_for_saving()
    manager.close()
    print(f"from {began} to {state.step} weight {model.weight[0, 0]:g}")
    dist.destroy_process_group()

if len(sys.argv) <= 5:
    main()
else:
    recoverable(main)()
"""


def train(folder: Path, mode: str, steps: int, warn: int = 0, again: bool = False) -> list[str]:
    """again: after step 7, both ranks enter their training again."""
    port, later = str(free_port()), str(free_port())
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TRANSOM_"))}
    env |= {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if again:
        beats, attempt = folder / "beats", folder / "attempts" / "1.0"
        beats.mkdir(mode=0o700)
        attempt.mkdir(parents=True)
        (folder / "run.toml").touch()
        env |= {paths.BEAT_DIR: str(beats), paths.ATTEMPT_DIR: str(attempt), paths.LAUNCH: "0", paths.RECOVERABLE: "1"}
    command = (sys.executable, "-c", WORKER, str(folder), mode, str(steps), str(warn), *([later] if again else []))
    ranks = [
        subprocess.Popen(
            command, env={**env, "RANK": str(n)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for n in range(2)
    ]
    ends = [(*one.communicate(timeout=600), one.returncode) for one in ranks]
    assert [code for *_, code in ends] == [0, 0], ends[0][1]
    return [out.splitlines()[-1] for out, _, _ in ends]


def steps_in(folder: Path) -> list[int]:
    return [one.step for one in sealed(folder / "checkpoint")]


@pytest.mark.parametrize("mode", ("disabled", "async"))
def test_checkpoints_are_sealed_and_the_newest_whole_one_is_loaded(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("torchtitan")
    assert train(tmp_path, mode, 10, warn=6) == ["from 0 to 10 weight 10"] * 2
    assert steps_in(tmp_path) == [10, 8, 6, 4], "step 6 by request, on both ranks although only one was warned"
    assert train(tmp_path, mode, 11) == ["from 10 to 11 weight 11"] * 2
    for part in (tmp_path / "checkpoint" / "step-11").glob("*.distcp"):
        part.write_bytes(part.read_bytes()[:-1])
    (tmp_path / "checkpoint" / "step-12").mkdir()
    (tmp_path / "checkpoint" / "step-12" / ".metadata").touch()  # torchtitan's own rule would take it
    assert train(tmp_path, mode, 14)[0].startswith("from 10 to 14")


@pytest.mark.parametrize("mode", ("disabled", "async"))
def test_manager_of_a_training_that_is_entered_again_loads_the_newest_checkpoint(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("torchtitan")
    assert train(tmp_path, mode, 10, again=True) == ["from 4 to 10 weight 10"] * 2
    assert steps_in(tmp_path) == [10, 8, 4]

"""A tiny GPT-2 under the Hugging Face Trainer. Prints the steps done in this start.

Usage: huggingface_worker.py OUTPUT_DIR STEPS [WARN_STEP WARN_RANK]: the rank sends SIGUSR2 to itself after that step.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from transom_cli.integrations.huggingface import TransomCallback, latest

folder, steps = sys.argv[1], int(sys.argv[2])
warn_step, warn_rank = (int(word) for word in sys.argv[3:5]) if len(sys.argv) > 3 else (0, 0)


class Warner(TrainerCallback):
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == warn_step and int(os.environ.get("RANK", "0")) == warn_rank:
            os.kill(os.getpid(), signal.SIGUSR2)


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
arguments = TrainingArguments(
    folder, max_steps=steps, save_steps=3, logging_steps=1, use_cpu=True, report_to=[], disable_tqdm=True,
    per_device_train_batch_size=2, ddp_backend="gloo" if "RANK" in os.environ else None,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Warner(), TransomCallback()])
newest = latest(folder)
trainer.train(resume_from_checkpoint=newest)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()  # a rank that exits first can abort one that still waits for it
print("from", newest and newest.rsplit("-", 1)[1], "to", trainer.state.global_step, flush=True)

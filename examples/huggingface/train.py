"""A tiny GPT-2 under the Hugging Face Trainer, made and trained without downloads. The lines for transom are marked.

transom run -N 2 -- python train.py out
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from transom_cli.integrations.huggingface import TransomCallback, latest  # transom

parser = argparse.ArgumentParser()
parser.add_argument("out", help="folder of the checkpoints")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--snapshot-every", type=int, help="steps between two snapshots in memory")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds; a real step takes longer than this one")
parser.add_argument("--final", type=Path, help="file for a hash of the final parameters")
args = parser.parse_args()


class Pause(TrainerCallback):
    def on_step_begin(self, *_, **__):
        time.sleep(args.step_delay)


torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))  # with dropout
tokens = torch.randint(32, (256, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(
    model,
    TrainingArguments(
        args.out,
        max_steps=args.steps,
        save_steps=args.every,
        save_total_limit=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=data,
    callbacks=[TransomCallback(snapshot_every=args.snapshot_every), Pause()],  # transom
)
trainer.train(resume_from_checkpoint=latest(trainer))  # transom
if args.final and trainer.is_world_process_zero():
    parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    args.final.write_text(hashlib.sha256(parameters).hexdigest())
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()

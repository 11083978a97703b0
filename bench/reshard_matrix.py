"""Save in layout A, restore in layout B, with the optimizer: who loads every bit, who refuses, who is silently wrong?

    python bench/reshard_matrix.py [--family plain] [--width 5] [--out FILE]

Every pair of layouts, for three ways to write a checkpoint: transom's Checkpointer; torch.distributed.checkpoint (DCP)
with `get_state_dict` and `set_state_dict`, as torchtitan uses it; and DCP with the state_dicts of a model and a fresh
AdamW, as many trainers use it. Every element of every tensor has known random bits (`ckpt_fuzz_build`), and rows that
do not divide by the ranks. Prints a table per way: `=` all bits, `x` refused with an error, `!` wrong without an error.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckpt_fuzz_build import make_state
from ckpt_fuzz_case import FAMILIES, Case, Layout
from ckpt_fuzz_rank import OTHER, Trainer, join
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from transom_cli.ckpt import Checkpointer
from transom_cli.ckpt.state import unwrap

LAYOUTS = tuple(
    Layout(kind, ranks)
    for kind, ranks in (
        ("single", 1), ("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4), ("hsdp", 4), ("tp", 2), ("tp", 4),
        ("fsdp_tp", 4), ("pipeline", 2), ("pipeline", 4),
    )
)  # fmt: skip
WAYS = ("transom", "dcp + set_state_dict", "dcp, naive")
SIGNS = {"right": "=", "refused": "x", "wrong": "!"}


CANNOT = {"tied": ("pipeline",), "experts": ("tp", "fsdp_tp"), "norms": ("tp", "fsdp_tp")}  # torch itself


def layouts(args: argparse.Namespace) -> list[Layout]:
    return [layout for layout in LAYOUTS if layout.kind not in CANNOT.get(args.family, ())]


def case_of(args: argparse.Namespace, save: Layout, restore: Layout) -> Case:
    return Case(f"matrix/{args.family}", args.family, 4, args.width, ("float32",), "adam", (), save, restore)


def save(trainer: Trainer, way: str, folder: Path) -> None:
    trainer.fill(1)
    alone = not dist.is_initialized()
    if way == "transom":
        checkpointer = Checkpointer(trainer.state, folder, every=1)
        checkpointer.save(1)
        checkpointer.close(strict=True)
    elif way == "dcp, naive":
        held = {"model": unwrap(trainer.net).state_dict(), "optim": trainer.optimizer.state_dict()}
        dcp.save(held, checkpoint_id=str(folder), no_dist=alone)
    else:
        model, optimizer = get_state_dict(unwrap(trainer.net), trainer.optimizer)
        trainer.fill(1)
        dcp.save({"model": model, "optim": optimizer}, checkpoint_id=str(folder), no_dist=alone)


def load(trainer: Trainer, way: str, folder: Path) -> None:
    alone = not dist.is_initialized()
    net = unwrap(trainer.net)
    if way == "transom":
        checkpointer = Checkpointer(trainer.state, folder, every=1)
        checkpointer.restore()
        checkpointer.close()
    elif way == "dcp, naive":
        held = {"model": net.state_dict(), "optim": trainer.optimizer.state_dict()}
        dcp.load(held, checkpoint_id=str(folder), no_dist=alone)
        net.load_state_dict(held["model"])
        trainer.optimizer.load_state_dict(held["optim"])
    else:
        model, optimizer = get_state_dict(net, trainer.optimizer)
        held = {"model": model, "optim": optimizer}
        dcp.load(held, checkpoint_id=str(folder), no_dist=alone)
        set_state_dict(net, trainer.optimizer, model_state_dict=held["model"], optim_state_dict=held["optim"])


def result(args: argparse.Namespace, rank: int, way: str, case: Case, folder: Path) -> tuple[str, str]:
    """right, refused or wrong on this rank, and why."""
    not_saved = folder.parents[1] / f"{way} {case.save.text}"
    if not_saved.exists():
        return "refused", not_saved.read_text()
    trainer = Trainer(case, case.restore, rank, stepped=False)
    trainer.fill(OTHER)
    try:
        load(trainer, way, folder)
    except (Exception, CheckpointException) as error:
        return "refused", f"{type(error).__name__}: {str(error).splitlines()[-1:]}"
    missing = [n for g in trainer.optimizer.param_groups for n in g["params"] if not trainer.optimizer.state.get(n)]
    if missing:
        return "wrong", f"no optimizer state of {len(missing)} parameters"
    try:
        wrong = trainer.differences(1, per_rank=False)
    except (KeyError, RuntimeError) as error:
        wrong = [f"the optimizer lacks {error}"]
    return ("wrong", ", ".join(wrong[:3])) if wrong else ("right", "")


def rank_main(rank: int, world: int, args: argparse.Namespace, root: Path, meeting: Path, phase: str, out: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.pop("TRANSOM_CHECKPOINT_DIR", None)
    join(Layout("single" if world == 1 else "ddp", world), rank, meeting)
    mine = [layout for layout in layouts(args) if layout.ranks == world]
    if phase == "save":
        for layout in mine:
            for way in WAYS:
                trainer = Trainer(case_of(args, layout, layout), layout, rank)
                make_state(trainer.optimizer)
                try:
                    save(trainer, way, root / way / layout.text)
                except (Exception, CheckpointException) as error:  # on every rank
                    (root / f"{way} {layout.text}").write_text(f"not saved: {str(error).splitlines()[-1][:150]}")
        return
    for restore in mine:
        for saved in layouts(args):
            for way in WAYS:
                found = result(args, rank, way, case_of(args, saved, restore), root / way / saved.text)
                out.put((way, saved.text, restore.text, rank, *found))


def spawned(args: argparse.Namespace, root: Path, phase: str) -> list[tuple[Any, ...]]:
    context, found = multiprocessing.get_context("spawn"), []
    for world in sorted({layout.ranks for layout in layouts(args)}):
        out = context.Queue()
        about = (world, args, root, root / f"meeting-{phase}-{world}", phase, out)
        ranks = [context.Process(target=rank_main, args=(rank, *about)) for rank in range(world)]
        for one in ranks:
            one.start()
        if phase == "restore":
            here = sum(layout.ranks == world for layout in layouts(args))
            found += [out.get(timeout=600) for _ in range(here * len(layouts(args)) * len(WAYS) * world)]
        for one in ranks:
            one.join()
        if any(one.exitcode for one in ranks):
            raise SystemExit(f"{phase} with {world} ranks: exit codes {[one.exitcode for one in ranks]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="plain", choices=FAMILIES)
    parser.add_argument("--width", type=int, default=5, help="of the model: rows of 5 and 10 do not divide by 4 ranks")
    parser.add_argument("--out", type=Path, help="write every cell, with the reason, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawned(args, Path(folder), "save")
        answers = spawned(args, Path(folder), "restore")
    cells: dict[tuple[str, str, str], tuple[str, str]] = {}
    worst = ("wrong", "refused", "right")
    for way, saved, restored, _, kind, why in answers:
        before = cells.get((way, saved, restored), ("right", ""))
        cells[way, saved, restored] = min(before, (kind, why), key=lambda one: worst.index(one[0]))
    names = [layout.text for layout in layouts(args)]
    for way in WAYS:
        counts = Counter(kind for (one, _, _), (kind, _) in cells.items() if one == way)
        print(f"\n{way}: {counts['right']} right, {counts['refused']} refused, {counts['wrong']} silently wrong")
        print(f"{'saved as / restored as':<24}" + " ".join(f"{name:>10}" for name in names))
        for saved in names:
            print(f"{saved:<24}" + " ".join(f"{SIGNS[cells[way, saved, name][0]]:>10}" for name in names))
    for way in WAYS:
        reasons = Counter(why[:100] for (one, _, _), (_, why) in cells.items() if one == way and why)
        for why, count in reasons.most_common(3):
            print(f"{way}: {count} times: {why}")
    if args.out:
        args.out.write_text(json.dumps([[*key, *value] for key, value in cells.items()], indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""`transom ckpt plan`: the memory that snapshots will take on each node."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from transom_cli.cli.options import Json
from transom_cli.cli.units import parameters
from transom_cli.errors import UsageError
from transom_cli.plural import several
from transom_cli.view.text import size

_Params = Annotated[str, typer.Option("--params", metavar="N", help="Parameters of the model: 70e9, or 70B.")]
_Ranks = Annotated[int, typer.Option("--ranks", min=1, help="Ranks of the training.")]
_PerNode = Annotated[int, typer.Option("--ranks-per-node", min=1, help="Ranks on each node.")]
_Bytes = Annotated[
    float,
    typer.Option(
        "--bytes-per-param",
        help="Saved bytes for each parameter: 12 for AdamW on fp32 parameters, 14 with a bf16 copy, 4 for SGD.",
    ),
]
_Protect = Annotated[str, typer.Option("--protect", help="As for the Checkpointer: none, replica, xor:4, rs:4+2, ...")]
_Persist = Annotated[int, typer.Option("--persist", min=1, help="Every how many saves one goes to disk.")]
_Also = Annotated[bool, typer.Option("--also", help="Checkpoints are also copied to a second directory.")]


def plan(
    params: _Params, ranks: _Ranks, ranks_per_node: _PerNode = 8, bytes_per_param: _Bytes = 12.0,
    protect: _Protect = "none", persist: _Persist = 1, also: _Also = False, json_: Json = False,
) -> None:  # fmt: skip
    """Show how much memory snapshots take per node.

    The trainer's own tensors come on top. The state of all ranks counts once, as it is written to disk.
    """
    from transom_cli.ckpt.snapshot.protection import NONE, memory_plan, parse

    protection, count = parse(protect), parameters(params)
    if not 0 < bytes_per_param < 1e18:
        raise UsageError(f"--bytes-per-param is {bytes_per_param:g}", "it must be more than 0", "--bytes-per-param 12")
    found = memory_plan(
        int(count * bytes_per_param), ranks, ranks_per_node, protection, every_durable=persist == 1, also=also
    )
    if json_:
        typer.echo(json.dumps({"schema": 1, **asdict(found), "total": found.total}))
        return
    faster = f"; {found.most_slots} if saves come faster than protection" if found.most_slots > found.slots else ""
    rows = [
        ("state", found.state, f"{count:g} parameters, {bytes_per_param:g} bytes each"),
        ("share of a rank", found.rank_share, several(ranks, "rank")),
        ("share of a node", found.node_share, several(found.nodes, "node")),
        ("buffers", found.buffers, f"{found.slots} for each rank{faster}"),
    ]
    if protection != NONE and not found.data:
        rows.append(("parity", 0, "a node alone has no other to protect it"))
    elif protection != NONE:
        steps = "1 step" if found.sides == 1 else "2 steps, since not every save becomes durable"
        rows.append(("parity", found.parity, f"{protection}: {found.rows} of parity for {found.data} of data; {steps}"))
    rows.append(("memory of a node", found.total, f"up to {size(found.most)}" if found.most > found.total else ""))
    for name, taken, about in rows:
        typer.echo(f"{name:18}{size(taken):>11}  {about}".rstrip())

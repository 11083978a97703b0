"""The checks of a node, one module per subject: reader, judge, limits and messages side by side.

`read_*` touches the machine and returns a frozen dataclass of plain values; `judge_*` is pure and turns such a reading
into findings. Each module ends with its `CHECK`, which `transom_cli.health.registry` lists.
"""

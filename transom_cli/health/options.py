"""How a run has its nodes examined, from its settings. Pure; see `config.model.Health` for what each means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthOptions:
    """preflight: the tier before the first launch, or "off". Times in seconds. python: of the probe, with its flags."""

    preflight: str = "off"
    budget: float = 30.0
    deep: bool = False
    deep_budget: float = 300.0
    probe: bool = True
    python: tuple[str, ...] = ()
    watch: bool = True
    every: float = 30.0
    off: tuple[str, ...] = ()
    limits: tuple[tuple[str, float], ...] = ()
    site_checks: str = ""

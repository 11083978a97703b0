"""What can be odd about a training that still steps: the names, as reports, rules and policies use them. Pure."""

from __future__ import annotations

import enum


class Slow(str, enum.Enum):
    """Why a training is slow. `Category` has no slowness: the one that comes nearest stands in the clue."""

    STORAGE = "slow_storage"
    LOADER = "slow_loader"
    DEVICE = "slow_device"
    NODE = "slow_node"
    LINK = "slow_link"
    ALL = "slow_all"


class Trouble(str, enum.Enum):
    """What is wrong with the loss, the gradients' norm or the loss's scale."""

    NAN = "nan_loss"
    INF = "infinite_loss"
    SPIKE = "loss_spike"
    STUCK = "stuck_loss"
    NORM = "gradient_not_finite"
    EXPLODING = "gradient_explosion"
    SCALE = "loss_scale_at_minimum"


ODDITIES = tuple(one.value for one in (*Slow, *Trouble))

"""The probe's thresholds and how much of it a tier has time for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.health.about import Tier


@dataclass(frozen=True)
class ProbeLimits:
    """Seconds, and shares of a median. What has no source is ours.

    probe_hello: for torch to be imported, beside everything else. probe_compute, probe_link: deadlines of one ask.
    probe_link_gpu: the same where NCCL sets its rings up. probe_quick, probe_deep: all of it.

    probe_odd, probe_spread: slower than the median by this share and by so many robust deviations is odd (Megatron's
    straggler report: more than 10 % and a deviation; SuperBench learns its limits from the cluster too, and flags 5 %).
    probe_again: slower than this share of it, however noisy the others, is measured twice more, beside nodes that are
    well. probe_slow: slower than this share of those, both times, is SUSPECT (DLRover: a straggler takes more than
    twice the median). probe_rate: a link with less than this share of the median node's bandwidth is slow, if it is
    below it by probe_spread deviations too. probe_delay: so is one with so many times the median delay, if it is longer
    by probe_delay_floor, a busy host's time slice. probe_starved: a process that waited for a processor for this share
    of the time says nothing of its link; a node on which it did, and on the others less than half as long, is odd. With
    probe_no_processor of the time, in all looks, it is SUSPECT: a training there would get as little.

    probe_hot: a node is at fault when at least this share of its links is, all as a sender or all as a receiver. With
    two or three partners: every one. probe_most: where more than this share of the nodes does not do, it is the probe,
    or what all share, that does not.
    """

    probe_hello: float = 20.0
    probe_compute: float = 8.0
    probe_link: float = 5.0
    probe_link_gpu: float = 15.0
    probe_quick: float = 28.0
    probe_deep: float = 240.0
    probe_odd: float = 0.10
    probe_spread: float = 3.0
    probe_again: float = 0.67
    probe_slow: float = 0.5
    probe_rate: float = 0.4
    probe_delay: float = 10.0
    probe_delay_floor: float = 0.005
    probe_starved: float = 0.3
    probe_no_processor: float = 0.75
    probe_hot: float = 0.75
    probe_most: float = 0.5


@dataclass(frozen=True)
class Pace:
    """How much is done. all_bytes: added up over all. pair_bytes: the longest transfer between two; link_seconds: of
    sending, each way. together: members of one group, beyond which all meet as rows and columns. rounds: of a
    tournament; 0 for two partners each. deadline: of one ask of links. budget: of everything.
    """

    compute_seconds: float
    all_bytes: int
    pair_bytes: int
    trips: int
    link_seconds: float
    together: int
    rounds: int
    deadline: float
    budget: float


def pace_of(tier: Tier, limits: ProbeLimits, gpu: bool) -> Pace:
    """gpu: the devices are GPUs, whose links carry hundreds of times as much, and NCCL needs no full mesh."""
    deep = tier is Tier.DEEP
    return Pace(
        compute_seconds=10.0 if deep else 0.8,
        all_bytes=(256 if gpu else 1) << 20,
        pair_bytes=(128 if gpu else 1) << 20,
        trips=100 if deep else 20,
        link_seconds=1.0 if deep else 0.15,
        together=16384 if gpu else 16,
        rounds=15 if deep else 0,
        deadline=limits.probe_link_gpu if gpu else limits.probe_link,
        budget=limits.probe_deep if deep else limits.probe_quick,
    )

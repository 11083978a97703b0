"""Where standbys wait, and which ranks they become."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_launcher import NODES, SPARE, training, with_spare

from transom_cli.core.launcher.standbys import MOST, Sites, Taken, on_spares, take


def test_ready_spares_hold_standbys() -> None:
    assert on_spares(training(), (), ()) == Sites()
    assert on_spares(with_spare(), (), ("--cpu-bind=cores", "--gpus-per-task=1")) == Sites((SPARE,))


@pytest.mark.parametrize(
    ("borrowed", "args", "draining", "why"),
    [
        ((SPARE,), (), (), "the run has nodes of two jobs"),
        (("n1",), (), (), "the run has nodes of two jobs"),
        ((), ("--gpus=8",), (), "--gpus=8 in launch.srun_args counts for all nodes of a step"),
        ((), ("-G8",), (), "-G8 in launch.srun_args counts for all nodes of a step"),
        ((), (), (SPARE,), "it is being drained"),
    ],
)
def test_spare_on_which_a_rank_would_have_another_step_holds_none(
    borrowed: tuple[str, ...], args: tuple[str, ...], draining: tuple[str, ...], why: str
) -> None:
    state = with_spare()
    state = replace(state, nodes=replace(state.nodes, draining=draining))
    assert on_spares(state, borrowed, args) == Sites((), ((SPARE, why),))


def test_only_the_first_spares_hold_standbys() -> None:
    names = tuple(f"s{n}" for n in range(MOST + 1))
    state = with_spare()
    state = replace(state, nodes=replace(state.nodes, ready=names))
    assert on_spares(state, (), ()) == Sites(names[:MOST], ((names[MOST], f"{MOST} others have some"),))


def test_ranks_take_the_standbys_of_their_node() -> None:
    assert take(NODES, (0, 1, 2), 1, NODES, ()) == Taken((0, 1, 2))
    assert take(NODES, (2, 3), 2, NODES, (SPARE,)) == Taken((2, 3))


def test_ranks_of_a_replaced_node_take_those_of_the_spare() -> None:
    swapped = ("n1", SPARE, "n3")
    assert take(swapped, (0, 1, 2), 1, NODES, (SPARE,)) == Taken((0, 2), ((SPARE, (1,)),))
    assert take(swapped, (2, 3), 2, (), (SPARE, "n5")) == Taken((), ((SPARE, (2, 3)),))
    assert take(swapped, (1, 2, 3), 2, NODES, (SPARE,)) == Taken((1,), ((SPARE, (2, 3)),))


@pytest.mark.parametrize(
    ("nodes", "here", "spares", "why"),
    [
        (NODES, (), (), "no standby is ready"),
        (("n1", SPARE, "n3"), NODES, (), "none on n4 can become rank 1"),
        (("n1", SPARE, "n3"), (), (SPARE,), "none on n1 can become rank 0"),
        (("n1", "n3"), NODES, (), "none on n1 can become rank 0"),
        (("n1", "n3", "n2"), NODES, (SPARE,), "none on n3 can become rank 1"),
    ],
)
def test_without_one_for_each_rank_no_standby_is_used(
    nodes: tuple[str, ...], here: tuple[str, ...], spares: tuple[str, ...], why: str
) -> None:
    assert take(nodes, tuple(range(len(nodes))), 1, here, spares) == Taken(why=why)

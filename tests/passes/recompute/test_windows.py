"""Where the backward pass is split into windows, and what is kept for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from support.ir_blocks import BlockOf
from support.training_blocks import TrainingBlock, random_lines

from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.framework.target import CPU_SPEED
from hloom.passes.recompute.block.values import ForwardValues
from hloom.passes.recompute.block.windows import PriceSchedule, keep, split

FREE = PriceSchedule.flat(Rates(0.0, 0.0))
NEVER = Rates(math.inf, math.inf)
PRICING = Pricing(CPU_SPEED)


def kept_of(
    block: TrainingBlock, *windows: tuple[str, str], price_schedule: PriceSchedule = FREE
) -> list[str]:
    """What is kept where each window is from one value's operation to another's."""
    return kept_at(block, windows, [price_schedule] * len(windows))


def kept_at(
    block: TrainingBlock,
    windows: Sequence[tuple[str, str]],
    price_schedules: Sequence[PriceSchedule],
) -> list[str]:
    """What is kept beside what is there anyway, each window with its price_schedule."""
    stretches = [
        block.window(range(block.position(first), block.position(last) + 1))
        for first, last in windows
    ]
    kept = keep(block.forward, stretches, price_schedules)[0]
    return block.names(value for value in kept if block.forward.weights[value])


# Windows.


def bytes_across(forward: ForwardValues, bound: int) -> int:
    """Bytes of forward values that are read by the backward pass before the bound and after it."""
    return sum(
        forward.weights[value]
        for value, first, last in forward.reads_within(
            range(forward.borders.highest, len(forward.graph.ops))
        )
        if first < bound <= last
    )


@pytest.mark.parametrize("length", [1, 4, 7, 100])
@pytest.mark.parametrize("seed", range(8))
def test_windows_cover_the_backward_pass_and_cross_the_least(
    block_of: BlockOf, seed: int, length: int
) -> None:
    forward = TrainingBlock(block_of, random_lines(seed)).forward
    windows = [window.positions for window in split(forward, length)]
    assert windows[0].start == forward.borders.highest
    assert windows[-1].stop == len(forward.graph.ops)
    assert all(one.stop == other.start for one, other in pairwise(windows))
    assert 0 < len(windows[-1]) <= 3 * length // 2
    for window in windows[:-1]:
        reach = range(window.start + max(length // 2, 1), window.start + 3 * length // 2 + 1)
        assert window.stop in reach
        assert bytes_across(forward, window.stop) == min(bytes_across(forward, p) for p in reach)


def test_a_window_ends_where_one_value_was_read_for_the_last_time(block_of: BlockOf) -> None:
    block = TrainingBlock(
        block_of,
        """
        a call x
        b call a
        ---
        p call d b
        q call p b
        r call q b
        s call r a
        t call s a
        u call t a
        v call u
        """,
    )
    first, second = (window.positions for window in split(block.forward, 4))
    assert block.made_at(first) == ["p", "q", "r"]
    assert second.start == block.position("s")


def test_of_equal_ends_that_of_the_wanted_length_is_taken(block_of: BlockOf) -> None:
    lines = "a call x\n---\n" + "\n".join(f"g{n} call d a" for n in range(20))
    forward = TrainingBlock(block_of, lines).forward
    # The last is one longer: the terminator is in it.
    assert [len(window.positions) for window in split(forward, 6)] == [6, 6, 9]


def test_ends_that_are_as_far_from_the_wanted_one_are_taken_in_order(block_of: BlockOf) -> None:
    lines = "a call x\nb call a\nc call b\n---\n" + "\n".join(
        f"g{n} call d {value}" for n, value in enumerate("cccbbaaaaaaaaa")
    )
    forward = TrainingBlock(block_of, lines).forward
    # Nothing is read across either of 3 and 5.
    assert len(split(forward, 4)[0].positions) == 3
    assert len(split(forward, 5)[0].positions) == 5


def test_the_losss_window_is_short(block_of: BlockOf) -> None:
    lines = "a call x\n---\n" + "\n".join(f"g{n} call d a" for n in range(399))
    forward = TrainingBlock(block_of, lines).forward
    assert [len(window.positions) for window in split(forward, 160)] == [160, 240]
    assert [len(window.positions) for window in split(forward, 160, loss_apart=True)] == [
        48,
        160,
        192,
    ]
    assert [len(window.positions) for window in split(forward, 16, loss_apart=True)][:2] == [16, 16]


def test_no_backward_pass_is_one_window_of_nothing(block_of: BlockOf) -> None:
    forward = TrainingBlock(block_of, "a call x\nb tanh a").forward
    assert [len(window.positions) for window in split(forward, 4)] == [0]


# What is kept.


def test_what_is_read_is_kept_where_nothing_else_is_less(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a call x\nb tanh a\nc tanh b\n---\ng call d c")
    assert kept_of(block, ("g", "g")) == ["c"]


def test_what_several_reads_are_made_of_is_kept_in_their_place(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a call x\nb tanh a\nc tanh b\n---\ng call d c\nh call g b")
    assert kept_of(block, ("g", "h")) == ["b"]


def test_what_is_small_is_kept(block_of: BlockOf) -> None:
    block = TrainingBlock(
        block_of, "a call x\nb slice a 2\nc slice a 4\ne tanh c\n---\ng call d e\nh call g b\n"
    )
    assert kept_of(block, ("g", "h")) == ["b", "e"]


def test_what_one_window_keeps_is_free_for_those_that_run_before(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a call x\nb slice a 4\n---\ng call d b\nh call g a")
    assert kept_of(block, ("g", "g"), ("h", "h")) == ["a"]
    # Not so for those that run after: their cut comes first.
    block = TrainingBlock(block_of, "a call x\nb slice a 4\n---\ng call d a\nh call g b")
    assert kept_of(block, ("g", "g"), ("h", "h")) == ["a", "b"]


def test_expensive_work_is_done_again_only_at_a_price(block_of: BlockOf) -> None:
    lines = "a dot x x\nb dot a a\n---\ng call d b"
    assert kept_of(TrainingBlock(block_of, lines), ("g", "g")) == ["b"]
    priced = TrainingBlock(block_of, lines, PRICING)
    assert kept_of(priced, ("g", "g")) == []
    assert kept_of(priced, ("g", "g"), price_schedule=PriceSchedule.flat(NEVER)) == ["b"]


def test_a_tariff_tells_early_work_from_late(block_of: BlockOf) -> None:
    lines = "a dot x x\nb dot x x\n---\ng call d b\nh call g a"
    block = TrainingBlock(block_of, lines, PRICING)
    late_is_free = PriceSchedule(NEVER, Rates(0.0, 0.0), block.position("b"))
    assert kept_of(block, ("g", "h"), price_schedule=late_is_free) == ["a"]
    early_is_free = PriceSchedule(Rates(0.0, 0.0), NEVER, block.position("b"))
    assert kept_of(block, ("g", "h"), price_schedule=early_is_free) == ["b"]


def test_each_window_has_its_tariff(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a dot x x\nb dot x x\n---\ng call d b\nh call g a", PRICING)
    windows = [("g", "g"), ("h", "h")]
    assert kept_at(block, windows, [PriceSchedule.flat(NEVER), FREE]) == ["b"]
    assert kept_at(block, windows, [FREE, PriceSchedule.flat(NEVER)]) == ["a"]


@pytest.mark.parametrize(("steps", "kept"), [(256, []), (257, ["f256"])])
def test_nothing_is_computed_again_from_too_far_away(
    block_of: BlockOf, steps: int, kept: list[str]
) -> None:
    chain = ["f0 tanh x", *(f"f{n} tanh f{n - 1}" for n in range(1, steps))]
    block = TrainingBlock(block_of, "\n".join([*chain, "---", f"g call f{steps - 1}"]))
    assert kept_of(block, ("g", "g")) == kept


@pytest.mark.parametrize("rate", [0.0, 1e8, math.inf])
@pytest.mark.parametrize("seed", range(12))
def test_all_that_is_read_is_kept_or_can_be_made_of_it(
    block_of: BlockOf, seed: int, rate: float
) -> None:
    forward = TrainingBlock(block_of, random_lines(seed), PRICING).forward
    windows = split(forward, 6)
    kept = keep(forward, windows, [PriceSchedule.flat(Rates(rate, rate))] * len(windows))[0]
    available = set(kept)
    for value in range(len(forward.weights)):
        if forward.constant[value] or (
            forward.recomputable[value] and available.issuperset(forward.made_of[value])
        ):
            available.add(value)
    assert available.issuperset(forward.read_across)
    assert forward.weigh(kept) <= forward.weigh(forward.read_across)

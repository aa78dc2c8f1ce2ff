"""What is computed again for what is not kept: where the clones stand, and what holds them back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.ir_blocks import BlockOf
from support.training_blocks import TrainingBlock, random_lines

from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.framework.target import CPU_SPEED
from hloom.passes.recompute.block.schedule import ClonePlacement, CloneSchedule, WindowClones
from hloom.passes.recompute.block.values import ForwardValues, Window
from hloom.passes.recompute.block.windows import PriceSchedule, keep, split

PRICING = Pricing(CPU_SPEED)


def schedule_of(block: TrainingBlock, *windows: tuple[str, str], kept: str = "") -> CloneSchedule:
    """The schedule where each window is from one value's operation to another's."""
    ranges = [range(block.position(first), block.position(last) + 1) for first, last in windows]
    saved = frozenset(block.number[name] for name in kept.split())
    return CloneSchedule(block.forward, list(map(block.window, ranges)), [saved] * len(ranges))


def told(block: TrainingBlock, placement: ClonePlacement) -> tuple[str, list[str], list[str], str]:
    """A placement by names: the operation it is before, its clones, its leaves, its gradient."""
    gate = placement.gate
    return (
        *block.made_at([placement.before]),
        block.made_at(placement.cloned),
        block.names(placement.leaves),
        " ".join(block.names(gate.values)) if gate else "",
    )


# What is cloned.


def test_what_is_read_is_cloned_with_what_it_is_made_of_up_to_what_is_kept(
    block_of: BlockOf,
) -> None:
    block = TrainingBlock(
        block_of, "a call x\nb tanh a\nc tanh b\ne tanh c\nf add e b\n---\ng call d\nh call g f"
    )
    schedule = schedule_of(block, ("g", "h"), kept="b")
    (window,) = schedule.windows
    (placement,) = window.placements
    assert told(block, placement) == ("h", ["c", "e", "f"], ["b"], "g")
    assert window.reads == {block.position("h"): [block.number["f"]]}


def test_what_is_kept_is_not_cloned(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a call x\nb tanh a\n---\ng call d\nh call g b a")
    assert schedule_of(block, ("g", "h"), kept="b").windows == ()


def test_what_is_made_of_constants_alone_is_kept_apart_from_the_original(block_of: BlockOf) -> None:
    """XLA merges operations that read the same: the smallest constant passes the barrier."""
    lines = "k constant\nm constant 4\nn slice k 4\na dot m n\n---\ng call d 4\nh call g a"
    block = TrainingBlock(block_of, lines, PRICING)
    (window,) = schedule_of(block, ("g", "h")).windows
    assert [told(block, each) for each in window.placements] == [("h", ["k", "n", "a"], ["m"], "g")]


def test_a_value_is_cloned_once_in_a_window_and_once_more_in_the_next(block_of: BlockOf) -> None:
    block = TrainingBlock(
        block_of,
        "a call x\nb tanh a\nc tanh b\n---\ng call d\nh call g b\ni call h c\nj call i\nk call j b",
    )
    (window,) = schedule_of(block, ("g", "k"), kept="a").windows
    assert [told(block, each) for each in window.placements] == [
        ("h", ["b"], ["a"], "g"),
        # It starts from the first clone, which needs no barrier.
        ("i", ["c"], [], ""),
    ]
    assert sorted(window.reads) == [block.position(name) for name in "hik"]
    first, second = schedule_of(block, ("g", "i"), ("j", "k"), kept="a").windows
    assert first.placements == window.placements
    assert [told(block, each) for each in second.placements] == [("k", ["b"], ["a"], "j")]


def test_the_time_is_that_of_all_clones(block_of: BlockOf) -> None:
    block = TrainingBlock(
        block_of, "a dot x x\nb dot a x\n---\ng call d\nh call g b\ni call h b", PRICING
    )
    one = PRICING.seconds(block.forward.graph.ops[block.position("a")])
    assert one > 0
    assert schedule_of(block, ("g", "i")).seconds == pytest.approx(2 * one)
    assert schedule_of(block, ("g", "h"), ("i", "i")).seconds == pytest.approx(4 * one)
    assert schedule_of(block, ("g", "h"), ("i", "i"), kept="a").seconds == pytest.approx(2 * one)
    assert schedule_of(block, ("g", "i"), kept="b").seconds == 0


# Where clones stand.

WINDOWS = {
    "constants are cloned and tables are read": (
        "a call x\nk constant\nt table\ni iota\nb add a k\nc add b t\ne add c i\n---\n"
        "g call d\nh call g e",
        "g h",
        [("h", ["k", "i", "b", "c", "e"], ["a"], "g")],
    ),
    "without a gradient clones stand right before their reader": (
        "a call x\nb tanh a\n---\ng call d b",
        "g g",
        [("g", ["b"], ["a"], "")],
    ),
    "clones do not stand before what they read": (
        "a call x\nb tanh a\nc tanh b\ne add c a\n---\n"
        "g call d\nh add g b\ni add h c\nj add i e\nk call j g",
        "g k",
        [("h", ["b"], ["a"], "g"), ("i", ["c"], [], ""), ("i", ["e"], ["a"], "g")],
    ),
    "neighbours with one place and gradient are cloned together": (
        "a call x\nb tanh a\nc sine a\n---\ng call d\nh tanh d\ni add h c\nj add i b\nk call j g",
        "g k",
        [("h", ["b", "c"], ["a"], "g")],
    ),
}
"""Blocks, the first and last operation of their window, and its placements with ``a`` kept."""


def test_placements(block_of: BlockOf) -> None:
    for name, (lines, ends, placements) in WINDOWS.items():
        block = TrainingBlock(block_of, lines)
        first, last = ends.split()
        (window,) = schedule_of(block, (first, last), kept="a").windows
        assert [told(block, each) for each in window.placements] == placements, name


def test_the_youngest_gradient_that_is_still_read_holds_the_clones(block_of: BlockOf) -> None:
    """Not one that nobody reads any more, nor one of cheap work: XLA fuses that."""
    block = TrainingBlock(
        block_of,
        """
        a call x
        b tanh a
        ---
        old call d
        held call old
        dead call held
        cheap tanh held
        h call cheap b
        i call held h
        """,
    )
    (window,) = schedule_of(block, ("old", "i"), kept="a").windows
    (placement,) = window.placements
    # Right after ``held``: nothing later is both in memory and still read.
    assert told(block, placement) == ("dead", ["b"], ["a"], "held")
    assert block.made_at(placement.gate.readers[0]) == ["dead", "cheap", "i"]


def test_the_reader_itself_may_be_the_gradients_only_reader(block_of: BlockOf) -> None:
    block = TrainingBlock(block_of, "a call x\nb tanh a\n---\ng call d\nh call g b\ni call h d")
    (window,) = schedule_of(block, ("g", "i"), kept="a").windows
    (placement,) = window.placements
    assert told(block, placement) == ("h", ["b"], ["a"], "g")
    assert block.made_at(placement.gate.readers[0]) == ["h"]


def test_clones_do_not_stand_before_their_window(block_of: BlockOf) -> None:
    lines = "a call x\nb tanh a\n---\ng call d\nh tanh d\ni tanh h\nj call i b\nk call g"
    block = TrainingBlock(block_of, lines)
    (window,) = schedule_of(block, ("g", "k"), kept="a").windows
    assert [told(block, each)[0] for each in window.placements] == ["h"]
    (window,) = schedule_of(block, ("i", "k"), kept="a").windows
    assert [told(block, each)[0] for each in window.placements] == ["i"]


def test_what_is_made_behind_the_border_is_not_made_again(block_of: BlockOf) -> None:
    lines = "a call x\nb tanh a\n---\ng call d\nc tanh b\nh call g c\ni call h b"
    block = TrainingBlock(block_of, lines)
    (window,) = schedule_of(block, ("g", "i"), kept="a").windows
    assert [told(block, each) for each in window.placements] == [("c", ["b"], ["a"], "g")]
    assert sorted(window.reads) == [block.position("c"), block.position("i")]


def nested(block_of: BlockOf) -> tuple[TrainingBlock, CloneSchedule]:
    """A block where a window behind the second border makes again what reads the first's clones."""
    block = TrainingBlock(
        block_of,
        """
        a call x
        b tanh a
        ---
        g call d
        h tanh b
        i call g h
        ---
        j call i
        k call j h
        """,
    )
    first, second = block.position("g"), block.position("j")
    windows = [
        Window(range(first, second), range(first)),
        Window(range(second, len(block.forward.graph.ops)), range(second)),
    ]
    kept = frozenset({block.number["a"], block.number["i"]})
    return block, CloneSchedule(block.forward, windows, [kept, kept])


def test_windows_behind_a_later_border_are_written_first(block_of: BlockOf) -> None:
    block, schedule = nested(block_of)
    late, early = schedule.windows
    assert [told(block, each) for each in late.placements] == [("k", ["b", "h"], ["a"], "j")]
    assert [told(block, each) for each in early.placements] == [("h", ["b"], ["a"], "g")]
    # What is read behind the next border does not wait for this one's clones.
    assert block.made_at(early.placements[0].gate.readers[0]) == ["i"]


def test_a_segment_is_cloned_together_where_its_window_starts(block_of: BlockOf) -> None:
    """It waits for all that the operations before its window made, and for what it reads itself."""
    block = TrainingBlock(
        block_of,
        """
        a call x
        b tanh a
        c tanh b
        e tanh a
        ---
        g call d
        h tanh g
        i call h
        j call i b
        k call h c
        l call k e
        """,
    )
    border, start = block.position("g"), block.position("i")
    window = Window(range(start, start + 5), range(border), range(border, start))
    kept = frozenset({block.number["a"], block.number["e"]})
    (found,) = CloneSchedule(block.forward, [window], [kept]).windows
    assert [told(block, each) for each in found.placements] == [("i", ["b", "c"], ["a"], "e h")]
    (placement,) = found.placements
    assert [block.made_at(readers) for readers in placement.gate.readers] == [["i", "k"], ["l"]]


# Of blocks drawn at random.


def drawn(block_of: BlockOf, seed: int) -> tuple[ForwardValues, list[Window], CloneSchedule]:
    forward = TrainingBlock(block_of, random_lines(seed), PRICING).forward
    windows = split(forward, 8)
    return forward, windows, CloneSchedule(forward, windows, keep_of(forward, windows, seed))


def keep_of(forward: ForwardValues, windows: list[Window], seed: int) -> tuple[frozenset[int], ...]:
    rates = Rates(expensive=0.0 if seed % 2 else 1e7, cheap=0.0)
    return keep(forward, windows, [PriceSchedule.flat(rates)] * len(windows))


def window_around(windows: list[Window], window: WindowClones) -> range:
    positions = (each.positions for each in windows)
    return next(each for each in positions if min(window.reads) in each)


SEEDS = pytest.mark.parametrize("seed", range(25))


@SEEDS
def test_operations_stand_after_all_that_they_read(block_of: BlockOf, seed: int) -> None:
    forward, _, schedule = drawn(block_of, seed)
    graph = forward.graph
    assert schedule.windows
    for window in schedule.windows:
        cloned: dict[int, int] = {}
        for placement in window.placements:
            assert all(one < other for one, other in pairwise(placement.cloned))
            for position in placement.cloned:
                for read in graph.operands[position]:
                    if read in placement.leaves:
                        assert graph.producers[read] < placement.before
                    elif not forward.constant[read]:
                        assert cloned[read] <= placement.before
                cloned |= dict.fromkeys(graph.results[position], placement.before)
        for reader, values in window.reads.items():
            assert all(cloned[value] <= reader for value in values)


@SEEDS
def test_every_reader_has_clones_and_nothing_is_cloned_for_nobody(
    block_of: BlockOf, seed: int
) -> None:
    forward, windows, schedule = drawn(block_of, seed)
    graph = forward.graph
    kept = keep_of(forward, windows, seed)
    assert {reader: v for window in schedule.windows for reader, v in window.reads.items()} == {
        position: missing
        for window, saved in zip(windows, kept, strict=True)
        for position in window.positions
        if (
            missing := [
                value
                for value in graph.operands[position]
                if forward.may_recompute(value, window) and value not in saved
            ]
        )
    }
    for window in schedule.windows:
        positions = [position for each in window.placements for position in each.cloned]
        wanted = {value for values in window.reads.values() for value in values}
        wanted |= {value for position in positions for value in graph.operands[position]}
        assert all(wanted.intersection(graph.results[position]) for position in positions)
        changing = [p for p in positions if not forward.constant[graph.results[p][0]]]
        assert len(changing) == len(set(changing))
        around = window_around(windows, window)
        assert all(placement.before in around for placement in window.placements)


@SEEDS
def test_leaves_are_kept_or_cannot_be_made_again(block_of: BlockOf, seed: int) -> None:
    forward, _, schedule = drawn(block_of, seed)
    for window in schedule.windows:
        for placement in window.placements:
            for leaf in placement.leaves:
                assert leaf in schedule.kept or not forward.recomputable[leaf]
                assert not forward.constant[leaf] or leaf in forward.starts.values()


@SEEDS
def test_clones_wait_for_the_youngest_gradient_that_their_barrier_can_take(
    block_of: BlockOf, seed: int
) -> None:
    forward, windows, schedule = drawn(block_of, seed)
    graph = forward.graph
    for window in schedule.windows:
        start = window_around(windows, window).start
        placed: dict[int, int] = {}
        for placement in window.placements:
            made = {value for position in placement.cloned for value in graph.results[position]}
            first_reader = min(
                reader for reader, values in window.reads.items() if made.intersection(values)
            )
            gate = placement.gate
            if gate is None:
                assert placement.before == first_reader
                continue
            (value_of_gate,), (readers,) = gate.values, gate.readers
            made_at = graph.producers[value_of_gate]
            users = graph.users[value_of_gate]
            assert placement.leaves
            assert made_at < gate.before == placement.before <= first_reader
            assert readers
            assert readers == tuple(user for user in users if user >= placement.before)
            for value in forward.gates:
                if made_at < graph.producers[value] < first_reader:
                    nearest = max(start, graph.producers[value] + 1, placed.get(value, 0))
                    assert all(user < nearest for user in graph.users[value])
            placed[value_of_gate] = placement.before

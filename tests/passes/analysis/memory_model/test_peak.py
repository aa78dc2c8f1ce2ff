"""The simulation of a line: lines counted by hand, and its invariants on drawn ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloom.passes.analysis.memory_model.fusion import Kernels
from hloom.passes.analysis.memory_model.latency_hiding import latency_hiding_order
from hloom.passes.analysis.memory_model.peak import buffer_timeline, peak_in_order, simulate
from hloom.passes.analysis.memory_model.schedulers import depth_first_order, greedy_order
from hloom.passes.analysis.memory_model.trace import Exchanging, OpTrace, Timing
from hloom.passes.analysis.shardings.exchanges import Exchange
from hloom.passes.ir.op_facts import BufferUse

Step = tuple[BufferUse, list[str], list[str]]


def line(
    steps: Sequence[Step],
    sizes: dict[str, int],
    *,
    given: str = "",
    returned: str = "",
    into: Sequence[tuple[str, str]] = (),
    inner: Sequence[int] = (),
) -> OpTrace:
    """A line whose values are named; those without a size have 10 bytes.

    But ``r``, which tests return, has 1: a larger one would have room for other values.
    """
    names = list(dict.fromkeys([*given.split(), *itertools.chain(*(s[2] for s in steps))]))
    number = {name: place for place, name in enumerate(names)}
    return OpTrace(
        uses=[work for work, _, _ in steps],
        reads=[[number[name] for name in reads] for _, reads, _ in steps],
        makes=[[number[name] for name in makes] for _, _, makes in steps],
        sizes=[sizes.get(name, 1 if name == "r" else 10) for name in names],
        inner=list(inner) or [0] * len(steps),
        inputs=frozenset(number[name] for name in given.split()),
        returned=frozenset(number[name] for name in returned.split()),
        donations=tuple((number[value], number[target]) for value, target in into),
        writes_over=True,
    )


def whole(reads: str, makes: str) -> Step:
    return BufferUse.WHOLE, reads.split(), makes.split()


def fused(reads: str, makes: str) -> Step:
    return BufferUse.FUSED, reads.split(), makes.split()


def elementwise(reads: str, makes: str) -> Step:
    return BufferUse.ELEMENTWISE, reads.split(), makes.split()


def reduction(reads: str, makes: str) -> Step:
    return BufferUse.REDUCTION, reads.split(), makes.split()


# Lines counted by hand.


def test_nothing_needs_nothing() -> None:
    assert simulate(OpTrace()).bytes == 0


def test_a_value_is_alive_from_its_maker_to_its_last_reader() -> None:
    steps = [whole("x", "a"), whole("a", "b"), whole("b", "c"), whole("c a", "d"), whole("d", "r")]
    peak = simulate(line(steps, {"a": 100, "c": 7}, given="x", returned="r"))
    assert (peak.bytes, peak.position) == (117, 2)  # a, b and c while c is made; so is a, c and d
    assert peak.alive == ((1, 100), (2, 10), (3, 7))


def test_arguments_and_results_are_not_counted() -> None:
    steps = [whole("x", "r")]
    assert simulate(line(steps, {"x": 100, "r": 100}, given="x", returned="r")).bytes == 0


def test_what_runs_inside_an_operation_counts_while_it_runs() -> None:
    steps = [whole("x", "a"), whole("a", "b"), whole("b", "r")]
    peak = simulate(line(steps, {}, given="x", returned="r", inner=[0, 50, 30]))
    assert (peak.bytes, peak.position, peak.inner_bytes) == (70, 1, 50)


def test_a_fused_value_is_in_memory_only_for_a_reader_that_cannot_fuse_it() -> None:
    into_reduction = [whole("x", "a"), fused("a", "f"), reduction("f", "r")]
    assert simulate(line(into_reduction, {"f": 99}, given="x", returned="r")).bytes == 10
    into_product = [whole("x", "a"), fused("a", "f"), whole("f", "r")]
    assert simulate(line(into_product, {"f": 99}, given="x", returned="r")).bytes == 109


def test_what_a_fused_value_is_made_of_lives_until_its_reader_runs() -> None:
    steps = [
        whole("x", "a"),
        fused("a", "f"),
        whole("x", "b"),
        whole("b", "c"),
        reduction("f c", "r"),
    ]
    found = simulate(line(steps, {"a": 100, "b": 30}, given="x", returned="r"))
    assert found.bytes == 110  # b is gone before a is made: XLA orders it so


OVER = {
    "what nothing reads later": ([whole("x", "a"), elementwise("a", "e")], 100),
    "through other elementwise work": (
        [whole("x", "a"), elementwise("a", "b"), elementwise("b", "e")],
        100,
    ),
    "what is reduced in another kernel": (
        [whole("x", "a"), reduction("a", "m"), elementwise("a m", "e")],
        110,
    ),
    "what elementwise work made": (
        [whole("x", "n"), elementwise("n", "a"), whole("a", "w"), elementwise("a w", "e")],
        110,
    ),
}
"""Where elementwise work is written over what it reads, with the bytes; values that are named a, b
and e have 100, the others 10."""

NOT_OVER = {
    "what is read later": ([whole("x", "a"), elementwise("a", "e"), whole("a e", "n")], 210),
    "what is moved": ([whole("x", "a"), fused("a", "e")], 200),
    "what is moved as well": ([whole("x", "a"), fused("a", "f"), elementwise("a f", "e")], 200),
    "what a library made": ([(BufferUse.LIBRARY, ["x"], ["a"]), elementwise("a", "e")], 200),
    "one of several": ([(BufferUse.WHOLE, ["x"], ["a", "n"]), elementwise("a", "e")], 200),
    "a smaller value": ([whole("x", "n"), elementwise("n", "e")], 110),
    "what is normalized": (
        [whole("x", "a"), (BufferUse.ROWS, ["a"], ["m"]), elementwise("a m", "e")],
        210,
    ),
}
"""Where it is not."""


@pytest.mark.parametrize(("steps", "expected"), OVER.values(), ids=OVER)
def test_elementwise_work_is_written_over(steps: list[Step], expected: int) -> None:
    assert bytes_until_read(steps) == expected


@pytest.mark.parametrize(("steps", "expected"), NOT_OVER.values(), ids=NOT_OVER)
def test_elementwise_work_is_not_written_over(steps: list[Step], expected: int) -> None:
    assert bytes_until_read(steps) == expected


def bytes_until_read(steps: list[Step]) -> int:
    sizes = dict.fromkeys("abef", 100)
    end = whole(steps[-1][2][0], "r")
    return simulate(line([*steps, end], sizes, given="x", returned="r")).bytes


def test_what_is_written_over_has_the_name_of_what_is_there() -> None:
    steps = [whole("x", "a"), elementwise("a", "e"), whole("e", "b"), whole("b e", "r")]
    found = line(steps, {"a": 100, "e": 100}, given="x", returned="r")
    assert simulate(found).alive == ((2, 100), (3, 10))  # e and b
    ranges = [(one.value, one.start, one.end) for one in buffer_timeline(found).live_ranges]
    assert ranges == [(1, 0, 0), (2, 1, 3), (3, 2, 3)]


def test_heavy_work_is_done_once_for_several_readers() -> None:
    def peak(work: BufferUse) -> int:
        steps = [
            whole("x", "a"),
            (work, ["a"], ["t"]),
            reduction("t", "m"),
            whole("x m", "b"),
            reduction("t b", "r"),
        ]
        return simulate(line(steps, {"a": 40, "t": 100}, given="x", returned="r")).bytes

    assert peak(BufferUse.FUSED) == 40 + 10 + 10
    assert peak(BufferUse.HEAVY) == 40 + 100


@pytest.mark.parametrize(("also_reads_maximum", "expected"), [(False, 150), (True, 70)])
def test_a_shift_is_kept_where_its_maximum_is_for_it_alone(
    also_reads_maximum: bool, expected: int
) -> None:
    steps = [
        whole("x", "a"),
        reduction("a", "m"),
        fused("m", "spread"),
        (BufferUse.SHIFT, ["a", "spread"], ["s"]),
        reduction("s", "n"),
        whole("n m" if also_reads_maximum else "n", "b"),
        reduction("s b", "r"),
    ]
    found = simulate(line(steps, {"a": 40, "s": 100, "spread": 100}, given="x", returned="r"))
    assert found.bytes == expected


def test_a_barrier_keeps_the_memory_and_holds_the_value() -> None:
    barrier = (BufferUse.ALIAS, ["a", "g"], ["a2", "g2"])
    steps = [whole("x", "a"), whole("x", "g"), barrier, whole("a2", "b"), whole("b g2", "r")]
    assert simulate(line(steps, {"a": 100, "a2": 100}, given="x", returned="r")).bytes == 120


def test_a_view_is_its_operand() -> None:
    steps = [whole("x", "a"), (BufferUse.VIEW, ["a"], ["v"]), whole("v", "b"), whole("v b", "r")]
    assert simulate(line(steps, {"a": 100, "v": 100}, given="x", returned="r")).bytes == 110


def test_an_update_in_place_takes_its_operands_memory() -> None:
    steps = [whole("x", "a"), (BufferUse.IN_PLACE, ["a", "x"], ["u"]), whole("u", "r")]
    assert simulate(line(steps, {"a": 100, "u": 100}, given="x", returned="r")).bytes == 100


def test_an_update_of_what_is_read_later_is_a_copy() -> None:
    steps = [whole("x", "a"), (BufferUse.IN_PLACE, ["a", "x"], ["u"]), whole("u a", "r")]
    assert simulate(line(steps, {"a": 100, "u": 100}, given="x", returned="r")).bytes == 200


@pytest.mark.parametrize(("into", "expected"), [([], 100), ([("s", "x")], 0)])
def test_an_argument_is_updated_in_place_where_it_was_given_away(
    into: list[tuple[str, str]], expected: int
) -> None:
    update = (BufferUse.IN_PLACE, ["x", "y"], ["u"])
    steps = [update, whole("u", "r"), (BufferUse.IN_PLACE, ["u", "r"], ["s"])]
    sizes = dict.fromkeys("xus", 100)
    found = simulate(line(steps, sizes, given="x y", returned="r s", into=into))
    # Without, the copy of x is in memory of the caller's for s.
    assert found.bytes == 0
    steps[2] = fused("u", "s")
    found = simulate(line(steps, sizes | {"s": 1}, given="x y", returned="r s", into=into))
    assert found.bytes == expected


def test_constants_that_are_written_over_are_made_together() -> None:
    steps = [
        (BufferUse.FREE, [], ["zero"]),
        (BufferUse.IN_PLACE, ["zero", "x"], ["a"]),
        whole("a", "m"),
        (BufferUse.IN_PLACE, ["zero", "m"], ["b"]),
        whole("b", "r"),
    ]
    sizes = dict.fromkeys(("zero", "a", "b"), 100)
    together = line(steps, sizes, given="x", returned="r")
    assert simulate(together).bytes == 210
    a, b = together.makes[1] + together.makes[3]
    assert simulate(dataclasses.replace(together, over_constants={a: -1, b: -1})).bytes == 210
    # Constants of the same size and another type are two kernels.
    assert simulate(dataclasses.replace(together, over_constants={a: -1, b: -2})).bytes == 110


def test_a_constant_is_in_nobodys_way() -> None:
    steps = [
        (BufferUse.FREE, [], ["c"]),
        fused("c", "spread"),
        fused("spread x", "f"),
        whole("f", "r"),
    ]
    assert simulate(line(steps, {"spread": 1000}, given="x", returned="r")).bytes == 10


def test_dead_work_is_not_done() -> None:
    steps = [whole("x", "a"), whole("a", "unread"), whole("x", "r")]
    assert simulate(line(steps, {"a": 100, "unread": 100}, given="x", returned="r")).bytes == 0


@pytest.mark.parametrize(("reader_of_x", "expected"), [("early", 10), ("late", 110)])
def test_a_carry_is_counted_where_the_old_one_is_read_after_the_new_is_made(
    reader_of_x: str, expected: int
) -> None:
    steps = [
        whole("x", "a"),
        whole("a", "new"),
        whole("new x" if reader_of_x == "late" else "new", "r"),
    ]
    sizes = {"new": 100, "x": 100}
    found = simulate(line(steps, sizes, given="x", returned="new r", into=[("new", "x")]))
    assert found.bytes == expected


def test_values_stand_where_a_result_will_stand() -> None:
    steps = [whole("x", "a"), whole("a", "b"), whole("b", "small"), whole("small", "r")]
    sizes = {"a": 90, "b": 80, "small": 10, "r": 100}
    peak = simulate(line(steps, sizes, given="x", returned="r"))
    # The largest, a, is in r's memory. There b cannot be as well, nor what r is made of.
    assert (peak.bytes, peak.alive) == (90, ((2, 80), (3, 10)))


# Orders.

TWO_BRANCHES = line(
    [
        whole("x", "wide"),
        whole("x", "other"),
        whole("wide", "thin"),
        whole("other", "slim"),
        whole("thin slim", "r"),
    ],
    {"wide": 100, "other": 100, "thin": 20, "slim": 20, "r": 16},
    given="x",
    returned="r",
)


def test_both_orders_finish_one_branch_before_the_next() -> None:
    kernels = Kernels(TWO_BRANCHES)
    assert peak_in_order(kernels, [0, 1, 2, 3, 4]).bytes == 220
    for order in (greedy_order(kernels), depth_first_order(kernels)):
        assert peak_in_order(kernels, order).bytes == 140
    assert simulate(TWO_BRANCHES).bytes == 140


def test_beside_exchanges_what_waits_for_nothing_runs_late() -> None:
    steps = [whole("x", "a"), whole("a", "da"), whole("a", "b"), whole("b", "db"), whole("b", "c")]
    alone = line(steps, {"a": 100, "b": 100}, given="x", returned="c da db")
    kernels = Kernels(alone)
    assert latency_hiding_order(kernels, [0, 1, 2, 3, 4]) == [0, 2, 1, 3, 4]
    # The last of a chain is ready a moment after what reads it: `da` takes that moment.
    assert latency_hiding_order(kernels, [0, 2, 4, 3, 1]) == [0, 2, 4, 3, 1]


def in_gaps(
    steps: Sequence[Step],
    exchanged: dict[int, int],
    *,
    given: str = "x",
    returned: str = "r",
    sizes: dict[str, int] | None = None,
    long: int | None = None,
    gathers_given: bool = False,
) -> list[str]:
    """What kernels make, as they are ordered beside exchanges: by position, the group of each.

    Values are of 10 MB, so that no kernel takes less than the latency between two, or of other
    ``sizes``; the group ``long`` takes twice the time of others. With ``gathers_given`` the first
    operation reads a gathered argument.
    """
    usual = dict.fromkeys(itertools.chain(*(makes for _, _, makes in steps)), 10**7)
    trace = line(steps, usual | (sizes or {}), given=given, returned=returned)
    trace.timings = {
        trace.makes[position][0]: Timing(0, 5 * 10**7 * (1 + (group == long)), group)
        for position, group in exchanged.items()
    }
    if gathers_given:
        gather = Exchange("all-gather", ("a",), 8, 8, 10**7, 1, "2500000xf32", "", "")
        trace.exchanges = {trace.makes[0][0]: (Exchanging(0, gather, trace.reads[0][0]),)}
    kernels = Kernels(trace)
    order = latency_hiding_order(kernels, list(range(len(kernels.positions))))
    return [steps[kernels.positions[number]][2][0] for number in order]


def test_an_exchange_is_filled_with_what_waits_for_nothing() -> None:
    steps = [whole("x", "a"), whole("a", "da"), whole("a", "b"), whole("b", "c"), whole("c", "r")]
    assert in_gaps(steps, {}, returned="r da") == ["a", "da", "b", "c", "r"]
    assert in_gaps(steps, {2: 0}, returned="r da") == ["a", "b", "da", "c", "r"]


def test_what_is_exchanged_at_once_is_made_before_any_of_it_is_read() -> None:
    steps = [whole("x", "e"), whole("x", "q"), whole("q", "c1")]
    steps += [whole(f"c{number}", f"c{number + 1}") for number in range(1, 6)]
    steps += [whole("e", "p"), whole("c6 p", "r")]
    last = len(steps) - 2
    apart = in_gaps(steps, {0: 0, 1: 1, last: 2})
    assert apart.index("c1") < apart.index("p")
    together = in_gaps(steps, {0: 0, 1: 1, last: 1})
    assert together.index("p") < together.index("c1")


def test_what_waits_for_what_is_exchanged_with_it_is_exchanged_apart() -> None:
    steps = [whole("x", "p"), whole("p", "rp"), whole("rp", "q"), whole("q", "rq")]
    assert in_gaps(steps, {0: 0, 2: 0}, returned="rq") == ["p", "rp", "q", "rq"]


def test_what_waits_for_a_gathered_argument_is_sent_no_earlier_than_it_has_to_be() -> None:
    others = [f"p{number}" for number in range(6)]
    steps = [whole("x", "a"), *(whole("a", other) for other in others)]
    steps += [whole("a", "b"), whole("b", "r")]
    sent, returned = {len(steps) - 2: 0}, " ".join(["r", *others])
    assert in_gaps(steps, sent, returned=returned) == ["a", "b", *others, "r"]
    later = in_gaps(steps, sent, returned=returned, gathers_given=True)
    assert later == ["a", *others[:3], "b", *others[3:], "r"]


@pytest.mark.parametrize(("long", "order"), [(0, "f e r"), (1, "e f r")])
def test_of_exchanges_that_could_end_the_longest_ends_first(long: int, order: str) -> None:
    steps = [whole("x", "e"), whole("x", "f"), whole("e f", "r")]
    assert in_gaps(steps, {0: 0, 1: 1}, long=long) == order.split()


@pytest.mark.parametrize(
    ("act_bytes", "reads", "order"),
    [
        (10**7, "a", "a g act da c w r"),
        (9 * 10**6, "a", "a g da c act w r"),  # of fewer bytes it is no pair
        (10**7, "a da", "a g da c act w r"),  # nor what waits for the other
    ],
)
def test_elementwise_work_on_the_same_value_is_placed_together(
    act_bytes: int, reads: str, order: str
) -> None:
    """What a weight's gradient reads is made beside the gradient that it is read with."""
    steps = [whole("x", "a"), whole("x", "g"), elementwise("a g", "da"), elementwise(reads, "act")]
    steps += [whole("act", "w"), whole("da", "c"), whole("c", "r")]
    found = in_gaps(steps, {5: 0}, returned="r w", sizes={"act": act_bytes})
    assert found == order.split()


def test_a_loss_is_summed_before_its_gradient_is_written_over_what_it_is_summed_of() -> None:
    steps = [whole("x", "logits"), elementwise("logits", "d"), whole("d", "r")]
    steps.insert(2, reduction("logits", "loss"))
    assert in_gaps(steps, {}, returned="r loss") == ["logits", "d", "loss", "r"]
    steps = [steps[0], steps[2], steps[1], steps[3]]  # it comes first in the text
    assert in_gaps(steps, {1: 0}, returned="r loss") == ["logits", "loss", "d", "r"]


def test_a_block_with_exchanges_runs_in_that_order() -> None:
    steps = [whole("x", "a"), whole("a", "b"), whole("a b", "da"), whole("b", "c")]
    steps += [whole("c", "d"), whole("c d", "dc"), whole("d", "r")]
    alone = line(steps, {"a": 100, "c": 100}, given="x", returned="r da dc")
    overlapped = dataclasses.replace(alone, is_overlapped=True)
    assert simulate(alone).bytes == 110
    assert simulate(overlapped).bytes == 210
    assert buffer_timeline(overlapped).peak_bytes == 210


SIZES = st.one_of(st.integers(1, 1000), st.sampled_from([500, 10**6]))
"""Some alike, so that one may be written over another, or made together with it."""


@st.composite
def lines(draw: st.DrawFn) -> OpTrace:
    """Random lines of all kinds of work, each operation with one result."""
    count = draw(st.integers(1, 14))
    given_count = draw(st.integers(1, 3))
    drawn = OpTrace(
        sizes=[draw(st.integers(1, 1000)) for _ in range(given_count)],
        inputs=frozenset(range(given_count)),
        writes_over=draw(st.booleans()),
    )
    for position in range(count):
        work = draw(st.sampled_from([w for w in BufferUse if w is not BufferUse.SHIFT]))
        there = given_count + position
        most = {BufferUse.FREE: 0, BufferUse.VIEW: 1, BufferUse.ALIAS: 1}.get(work, 3)
        reads = draw(
            st.lists(st.integers(0, there - 1), min_size=min(1, most), max_size=most, unique=True)
        )
        drawn.uses.append(work)
        drawn.reads.append(reads)
        drawn.makes.append([there])
        same = work in (BufferUse.VIEW, BufferUse.ALIAS, BufferUse.IN_PLACE)
        drawn.sizes.append(drawn.sizes[reads[0]] if same else draw(SIZES))
        drawn.inner.append(draw(st.sampled_from([0, 0, 0, 500])))
    made = range(given_count, len(drawn.sizes))
    timing = st.builds(Timing, SIZES, st.sampled_from([0, 10**7]), st.integers(0, 2))
    drawn.timings = draw(st.dictionaries(st.sampled_from(made), timing, max_size=6))
    returned = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return dataclasses.replace(drawn, returned=frozenset(returned))


@given(lines())
def test_orders_are_of_all_kernels_after_their_operands(drawn: OpTrace) -> None:
    kernels = Kernels(drawn)
    orders = [greedy_order(kernels), depth_first_order(kernels)]
    for order in (*orders, *(latency_hiding_order(kernels, order) for order in orders)):
        assert sorted(order) == list(range(len(kernels.positions)))
        place = {number: time for time, number in enumerate(order)}
        for number, operands in enumerate(kernels.operands):
            assert all(place[operand] < place[number] for operand in operands)


@given(lines(), st.randoms(use_true_random=False))
def test_the_numbers_of_values_do_not_matter(drawn: OpTrace, random: Any) -> None:
    new = list(range(len(drawn.sizes)))
    random.shuffle(new)
    sizes = [0] * len(new)
    for old, number in enumerate(new):
        sizes[number] = drawn.sizes[old]
    renumbered = OpTrace(
        uses=drawn.uses,
        reads=[[new[value] for value in reads] for reads in drawn.reads],
        makes=[[new[value] for value in makes] for makes in drawn.makes],
        sizes=sizes,
        inner=drawn.inner,
        inputs=frozenset(new[value] for value in drawn.inputs),
        returned=frozenset(new[value] for value in drawn.returned),
        writes_over=drawn.writes_over,
    )
    one, other = simulate(drawn), simulate(renumbered)
    assert (one.bytes, one.position) == (other.bytes, other.position)
    assert {(new[value], size) for value, size in one.alive} == set(other.alive)


@given(lines())
def test_a_peak_is_what_is_alive_then(drawn: OpTrace) -> None:
    peak = simulate(drawn)
    assert peak.bytes == peak.inner_bytes + sum(size for _, size in peak.alive)
    kernels = Kernels(drawn)
    own_order = peak_in_order(kernels, list(range(len(kernels.positions))))
    assert own_order.bytes >= max((drawn.inner[p] for p in kernels.positions), default=0)


@given(lines(), st.integers(1, 1000))
def test_a_value_more_to_keep_never_needs_less(drawn: OpTrace, size: int) -> None:
    """In one order: another value may make XLA choose a better one."""
    value = len(drawn.sizes)
    last = len(drawn.sizes) + 1
    kept = OpTrace(
        uses=[BufferUse.WHOLE, *drawn.uses, BufferUse.WHOLE],
        reads=[[0], *drawn.reads, [value]],
        makes=[[value], *drawn.makes, [last]],
        sizes=[*drawn.sizes, size, 1],
        inner=[0, *drawn.inner, 0],
        inputs=drawn.inputs,
        returned=drawn.returned | {last},
        writes_over=drawn.writes_over,
    )

    def own_peak(line: OpTrace) -> int:
        kernels = Kernels(line)
        return peak_in_order(kernels, list(range(len(kernels.positions)))).bytes

    # An output of one byte more hosts nothing but that byte; what is kept has no place elsewhere.
    assert own_peak(kept) >= own_peak(drawn)

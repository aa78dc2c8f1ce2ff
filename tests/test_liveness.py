"""The liveness model: lines counted by hand, its invariants, and lines read off the IR."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from benchmarks.h100 import MEBI_BYTES, measure, placement
from benchmarks.subjects import SUBJECTS
from hloom import jax_private
from hloom.passes.analysis import walk
from hloom.passes.analysis.graph import BlockGraph
from hloom.passes.analysis.kernels import Kernels
from hloom.passes.analysis.layouts import transposing_bytes
from hloom.passes.analysis.line import Line, Work
from hloom.passes.analysis.liveness import inner_bytes, line_of, predict
from hloom.passes.analysis.order import depth_first_order, greedy_order
from hloom.passes.analysis.shards import Shards
from hloom.passes.analysis.simulation import peak_in_order, simulate
from hloom.passes.base import Target
from hloom.passes.clone import clone_module
from hloom.passes.pipeline import Pipeline
from hloom.passes.spec import parse_spec

Step = tuple[Work, list[str], list[str]]


def line(
    steps: Sequence[Step],
    sizes: dict[str, int],
    *,
    given: str = "",
    returned: str = "",
    into: Sequence[tuple[str, str]] = (),
    inner: Sequence[int] = (),
) -> Line:
    """A line whose values are named; those without a size have 10 bytes.

    But ``r``, which tests return, has 1: a larger one would have room for other values.
    """
    names = list(dict.fromkeys([*given.split(), *itertools.chain(*(s[2] for s in steps))]))
    number = {name: place for place, name in enumerate(names)}
    return Line(
        work=[work for work, _, _ in steps],
        reads=[[number[name] for name in reads] for _, reads, _ in steps],
        makes=[[number[name] for name in makes] for _, _, makes in steps],
        sizes=[sizes.get(name, 1 if name == "r" else 10) for name in names],
        inner=list(inner) or [0] * len(steps),
        given=frozenset(number[name] for name in given.split()),
        returned=frozenset(number[name] for name in returned.split()),
        into=tuple((number[value], number[target]) for value, target in into),
    )


def whole(reads: str, makes: str) -> Step:
    return Work.WHOLE, reads.split(), makes.split()


def fused(reads: str, makes: str) -> Step:
    return Work.FUSED, reads.split(), makes.split()


def reduction(reads: str, makes: str) -> Step:
    return Work.REDUCTION, reads.split(), makes.split()


# Lines counted by hand.


def test_nothing_needs_nothing() -> None:
    assert simulate(Line()).bytes == 0


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


def test_heavy_work_is_done_once_for_several_readers() -> None:
    def peak(work: Work) -> int:
        steps = [
            whole("x", "a"),
            (work, ["a"], ["t"]),
            reduction("t", "m"),
            whole("x m", "b"),
            reduction("t b", "r"),
        ]
        return simulate(line(steps, {"a": 40, "t": 100}, given="x", returned="r")).bytes

    assert peak(Work.FUSED) == 40 + 10 + 10
    assert peak(Work.HEAVY) == 40 + 100


@pytest.mark.parametrize(("also_reads_maximum", "expected"), [(False, 150), (True, 70)])
def test_a_shift_is_kept_where_its_maximum_is_for_it_alone(
    also_reads_maximum: bool, expected: int
) -> None:
    steps = [
        whole("x", "a"),
        reduction("a", "m"),
        fused("m", "spread"),
        (Work.SHIFT, ["a", "spread"], ["s"]),
        reduction("s", "n"),
        whole("n m" if also_reads_maximum else "n", "b"),
        reduction("s b", "r"),
    ]
    found = simulate(line(steps, {"a": 40, "s": 100, "spread": 100}, given="x", returned="r"))
    assert found.bytes == expected


def test_a_barrier_keeps_the_memory_and_holds_the_value() -> None:
    barrier = (Work.ALIAS, ["a", "g"], ["a2", "g2"])
    steps = [whole("x", "a"), whole("x", "g"), barrier, whole("a2", "b"), whole("b g2", "r")]
    assert simulate(line(steps, {"a": 100, "a2": 100}, given="x", returned="r")).bytes == 120


def test_a_view_is_its_operand() -> None:
    steps = [whole("x", "a"), (Work.VIEW, ["a"], ["v"]), whole("v", "b"), whole("v b", "r")]
    assert simulate(line(steps, {"a": 100, "v": 100}, given="x", returned="r")).bytes == 110


def test_an_update_in_place_takes_its_operands_memory() -> None:
    steps = [whole("x", "a"), (Work.IN_PLACE, ["a", "x"], ["u"]), whole("u", "r")]
    assert simulate(line(steps, {"a": 100, "u": 100}, given="x", returned="r")).bytes == 100


def test_an_update_of_what_is_read_later_is_a_copy() -> None:
    steps = [whole("x", "a"), (Work.IN_PLACE, ["a", "x"], ["u"]), whole("u a", "r")]
    assert simulate(line(steps, {"a": 100, "u": 100}, given="x", returned="r")).bytes == 200


@pytest.mark.parametrize(("into", "expected"), [([], 100), ([("s", "x")], 0)])
def test_an_argument_is_updated_in_place_where_it_was_given_away(
    into: list[tuple[str, str]], expected: int
) -> None:
    update = (Work.IN_PLACE, ["x", "y"], ["u"])
    steps = [update, whole("u", "r"), (Work.IN_PLACE, ["u", "r"], ["s"])]
    sizes = dict.fromkeys("xus", 100)
    found = simulate(line(steps, sizes, given="x y", returned="r s", into=into))
    # Without, the copy of x is in memory of the caller's for s.
    assert found.bytes == 0
    steps[2] = fused("u", "s")
    found = simulate(line(steps, sizes | {"s": 1}, given="x y", returned="r s", into=into))
    assert found.bytes == expected


def test_constants_that_are_written_over_are_made_together() -> None:
    steps = [
        (Work.FREE, [], ["zero"]),
        (Work.IN_PLACE, ["zero", "x"], ["a"]),
        whole("a", "m"),
        (Work.IN_PLACE, ["zero", "m"], ["b"]),
        whole("b", "r"),
    ]
    sizes = dict.fromkeys(("zero", "a", "b"), 100)
    assert simulate(line(steps, sizes, given="x", returned="r")).bytes == 210


def test_a_constant_is_in_nobodys_way() -> None:
    steps = [(Work.FREE, [], ["c"]), fused("c", "spread"), fused("spread x", "f"), whole("f", "r")]
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


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """Random lines of all kinds of work, each operation with one result."""
    count = draw(st.integers(1, 14))
    given_count = draw(st.integers(1, 3))
    drawn = Line(
        sizes=[draw(st.integers(1, 1000)) for _ in range(given_count)],
        given=frozenset(range(given_count)),
    )
    for position in range(count):
        work = draw(st.sampled_from([w for w in Work if w is not Work.SHIFT]))
        there = given_count + position
        most = {Work.FREE: 0, Work.VIEW: 1, Work.ALIAS: 1}.get(work, 3)
        reads = draw(
            st.lists(st.integers(0, there - 1), min_size=min(1, most), max_size=most, unique=True)
        )
        drawn.work.append(work)
        drawn.reads.append(reads)
        drawn.makes.append([there])
        same = work in (Work.VIEW, Work.ALIAS, Work.IN_PLACE)
        drawn.sizes.append(drawn.sizes[reads[0]] if same else draw(st.integers(1, 1000)))
        drawn.inner.append(draw(st.sampled_from([0, 0, 0, 500])))
    made = range(given_count, len(drawn.sizes))
    returned = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return dataclasses.replace(drawn, returned=frozenset(returned))


@given(lines())
def test_orders_are_of_all_kernels_after_their_operands(drawn: Line) -> None:
    kernels = Kernels(drawn)
    for order in (greedy_order(kernels), depth_first_order(kernels)):
        assert sorted(order) == list(range(len(kernels.positions)))
        place = {number: time for time, number in enumerate(order)}
        for number, operands in enumerate(kernels.operands):
            assert all(place[operand] < place[number] for operand in operands)


@given(lines(), st.randoms(use_true_random=False))
def test_the_numbers_of_values_do_not_matter(drawn: Line, random: Any) -> None:
    new = list(range(len(drawn.sizes)))
    random.shuffle(new)
    sizes = [0] * len(new)
    for old, number in enumerate(new):
        sizes[number] = drawn.sizes[old]
    renumbered = Line(
        work=drawn.work,
        reads=[[new[value] for value in reads] for reads in drawn.reads],
        makes=[[new[value] for value in makes] for makes in drawn.makes],
        sizes=sizes,
        inner=drawn.inner,
        given=frozenset(new[value] for value in drawn.given),
        returned=frozenset(new[value] for value in drawn.returned),
    )
    one, other = simulate(drawn), simulate(renumbered)
    assert (one.bytes, one.position) == (other.bytes, other.position)
    assert {(new[value], size) for value, size in one.alive} == set(other.alive)


@given(lines())
def test_a_peak_is_what_is_alive_then(drawn: Line) -> None:
    peak = simulate(drawn)
    assert peak.bytes == peak.inner_bytes + sum(size for _, size in peak.alive)
    kernels = Kernels(drawn)
    own_order = peak_in_order(kernels, list(range(len(kernels.positions))))
    assert own_order.bytes >= max((drawn.inner[p] for p in kernels.positions), default=0)


@given(lines(), st.integers(1, 1000))
def test_a_value_more_to_keep_never_needs_less(drawn: Line, size: int) -> None:
    """In one order: another value may make XLA choose a better one."""
    value = len(drawn.sizes)
    last = len(drawn.sizes) + 1
    kept = Line(
        work=[Work.WHOLE, *drawn.work, Work.WHOLE],
        reads=[[0], *drawn.reads, [value]],
        makes=[[value], *drawn.makes, [last]],
        sizes=[*drawn.sizes, size, 1],
        inner=[0, *drawn.inner, 0],
        given=drawn.given,
        returned=drawn.returned | {last},
    )

    def own_peak(line: Line) -> int:
        kernels = Kernels(line)
        return peak_in_order(kernels, list(range(len(kernels.positions)))).bytes

    # An output of one byte more hosts nothing but that byte; what is kept has no place elsewhere.
    assert own_peak(kept) >= own_peak(drawn)


# Lines of programs.


def prepared(lowered: Any) -> ir.Module:
    """The module as `remat` gets it, in a clone."""
    module = clone_module(lowered.compiler_ir())
    passes = parse_spec("inline,cse,free-constants", source="test")
    Pipeline(passes).run(module, target=Target("cuda", "cuda"))
    return module


def function(lowered: Any) -> Line:
    module = prepared(lowered)  # a block does not keep its module alive
    return line_of(BlockGraph.of(main_block(module)))


def main_block(module: ir.Module) -> ir.Block:
    return walk.functions(module)["main"].regions[0].blocks[0]


@pytest.fixture
def parse() -> Iterator[Callable[[str], ir.Module]]:
    with jax_private.make_context(), ir.Location.unknown():
        yield lambda text: ir.Module.parse(text)


def square(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, size), "float32")


def test_a_prediction_of_a_whole_module() -> None:
    lowered = jax.jit(lambda x: (jnp.tanh(x @ x) @ x, x.sum())).lower(square(256))
    found = predict(prepared(lowered))
    size = 4 * 256 * 256
    assert (found.argument_bytes, found.alias_bytes) == (size, 0)
    assert found.output_bytes == size + 4 + 2 * 8  # two results come with a table of pointers
    # The product stands where the result will be, its tanh in memory of its own.
    assert found.temp_bytes == size
    assert found.step_bytes == found.argument_bytes + found.output_bytes + found.temp_bytes


def test_a_donated_argument_shares_its_memory() -> None:
    step = jax.jit(lambda x, g: (x - g, (x * g).sum()), donate_argnums=0)
    found = predict(prepared(step.lower(square(256), square(256))))
    assert found.alias_bytes == 4 * 256 * 256
    assert found.step_bytes < 3 * 4 * 256 * 256


def test_a_scan_writes_its_stack_in_place() -> None:
    def stacked(x: jax.Array) -> jax.Array:
        _, ys = jax.lax.scan(lambda c, _: (c @ c, c), x, length=8)
        return (ys**2).sum()

    lowered = jax.jit(stacked).lower(square(128))
    one = 4 * 128 * 128
    found = predict(prepared(lowered))
    # The stack and the carry, which is copied from the argument; in the body the new carry.
    assert 9 * one <= found.temp_bytes <= 10 * one + 1024


def test_branches_need_what_the_larger_one_needs(parse: Callable[[str], ir.Module]) -> None:
    module = parse(
        """
        func.func @main(%p: tensor<i32>, %x: tensor<64x64xf32>) -> tensor<64x64xf32> {
          %r = "stablehlo.case"(%p) ({
            stablehlo.return %x : tensor<64x64xf32>
          }, {
            %a = stablehlo.dot %x, %x : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
            %b = stablehlo.dot %a, %x : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
            %c = stablehlo.dot %a, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
            %d = stablehlo.dot %c, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
            stablehlo.return %d : tensor<64x64xf32>
          }) : (tensor<i32>) -> tensor<64x64xf32>
          return %r : tensor<64x64xf32>
        }"""
    )
    (case,) = [op for op in walk.operations(module.operation) if op.name == "stablehlo.case"]
    # a, b and c, of which one stands where the branch's result will.
    assert inner_bytes(case) == 2 * 4 * 64 * 64
    assert inner_bytes(next(iter(walk.operations(case)))) == 0


def test_heavy_work_is_kept_as_it_is_converted(parse: Callable[[str], ir.Module]) -> None:
    module = parse(
        """
        func.func @main(%x: tensor<64xf32>) -> tensor<64xbf16> {
          %t = stablehlo.tanh %x : tensor<64xf32>
          %n = stablehlo.convert %t : (tensor<64xf32>) -> tensor<64xbf16>
          return %n : tensor<64xbf16>
        }"""
    )
    assert line_of(BlockGraph.of(main_block(module))).work == [Work.FUSED, Work.HEAVY]


def test_a_softmaxs_shift_is_found() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(x)[:, 0].mean()

    work = function(jax.jit(jax.value_and_grad(loss)).lower(square(64))).work
    assert work.count(Work.SHIFT) == 1
    assert Work.SHIFT not in function(jax.jit(lambda x: x - x.max()).lower(square(64))).work


@pytest.mark.parametrize("transposed", [False, True])
def test_a_stack_that_is_read_in_another_order_is_copied(transposed: bool) -> None:
    """The product is stacked as it comes, or transposed, and meets another one as it comes."""

    def loss(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            made = carry @ carry
            made = made.T if transposed else made
            return jnp.sin(made) @ carry, None

        return jax.lax.scan(body, x, length=8)[0].sum()

    module = prepared(jax.jit(jax.grad(loss)).lower(square(128)))
    loops = [op for op in walk.operations(module.operation) if op.name == "stablehlo.while"]
    copied = [transposing_bytes(loop) for loop in loops]
    assert copied == [0, pytest.approx(8 * 4 * 128 * 128 * transposed, abs=64)]


# Shards.

SHARDED = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(
    %x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
    %w: tensor<32x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}
) -> tensor<f32> {
  %h = stablehlo.dot %x, %w : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<64x128xf32>, tensor<f32>) -> tensor<f32>
  return %s : tensor<f32>
}"""


def test_sizes_are_of_one_device(parse: Callable[[str], ir.Module]) -> None:
    module = parse(SHARDED)
    text = str(module)
    shards = Shards.of(module)
    assert str(module) == text
    graph = BlockGraph.of(main_block(module), shards)
    assert graph.sizes[:3] == [4 * 64 * 32 // 4, 4 * 32 * 128 // 2, 4 * 64 * 128 // 8]
    assert predict(module).temp_bytes == 4 * 64 * 128 // 8


def test_one_device_has_all(parse: Callable[[str], ir.Module]) -> None:
    module = parse(SHARDED.replace('"data"=4, "model"=2', '"data"=1, "model"=1'))
    assert Shards.of(module).trivial
    assert predict(module).temp_bytes == 4 * 64 * 128


def test_uneven_shards_are_as_long_as_the_longest(parse: Callable[[str], ir.Module]) -> None:
    module = parse(SHARDED.replace("128", "5"))
    graph = BlockGraph.of(main_block(module), Shards.of(module))
    # Shardy does not split an argument unevenly.
    assert graph.sizes[1:3] == [4 * 32 * 5, 4 * 16 * 3]


def test_a_sharding_constraint_splits_its_result(parse: Callable[[str], ir.Module]) -> None:
    constrained = SHARDED.replace(
        "%s = stablehlo.reduce(%h", "%s = stablehlo.reduce(%split"
    ).replace(
        "%zero =",
        """%split = sdy.sharding_constraint %h <@mesh, [{"data", "model"}, {}]> : tensor<64x128xf32>
        %zero =""",
    )
    module = parse(constrained)
    graph = BlockGraph.of(main_block(module), Shards.of(module))
    assert graph.sizes[3] == 4 * 64 * 128 // 8


def test_shapes_in_a_manual_computation_are_local_already(
    parse: Callable[[str], ir.Module],
) -> None:
    module = parse(
        """
        sdy.mesh @mesh = <["data"=4, "model"=2]>
        func.func @main(
            %x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
        ) -> tensor<64x32xf32> {
          %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"data"}, {}]>]
              out_shardings=[<@mesh, [{"data"}, {}]>] manual_axes={"data"}
              (%local: tensor<16x32xf32>) {
            %y = stablehlo.add %local, %local : tensor<16x32xf32>
            sdy.return %y : tensor<16x32xf32>
          } : (tensor<64x32xf32>) -> tensor<64x32xf32>
          return %r : tensor<64x32xf32>
        }"""
    )
    shards = Shards.of(module)
    (manual,) = [
        op for op in walk.operations(module.operation) if op.name == "sdy.manual_computation"
    ]
    (inner, *_) = list(walk.operations(manual))
    local = 4 * 16 * 32
    assert shards.bytes_of(manual.results[0]) == local
    assert shards.bytes_of(manual.regions[0].blocks[0].arguments[0]) == local
    assert shards.bytes_of(inner.results[0]) == local


def test_shares_go_over_to_clones_and_to_what_is_put_in(
    parse: Callable[[str], ir.Module],
) -> None:
    module = parse(SHARDED)
    clone = clone_module(module)
    shards = Shards.of(module).on(module, clone)
    ops = [view.operation for view in main_block(clone).operations]
    product = ops[0]
    assert shards.bytes_of(product.results[0]) == 4 * 64 * 128 // 8
    copy = product.clone(ir.InsertionPoint(ops[1])).operation
    assert shards.bytes_of(copy.results[0]) == 4 * 64 * 128  # made of smaller things: not known
    with ir.InsertionPoint(ops[1]):
        doubled = stablehlo.AddOp(product.results[0], product.results[0])
    assert shards.bytes_of(doubled.result) == 4 * 64 * 128 // 8


# Beside XLA.


@pytest.mark.h100
@pytest.mark.parametrize("name", ["gpt_unrolled", "gpt_scanned", "mixture_of_experts"])
@pytest.mark.parametrize("policy", [None, "nothing_saveable"])
def test_predictions_are_near_xlas_figures(name: str, policy: str | None) -> None:
    lowered = SUBJECTS[name].lower(policy, placement())
    real = measure(lowered, "off").temp_bytes
    assert predict(prepared(lowered)).temp_bytes == pytest.approx(real, rel=0.1)
    assert real > 200 * MEBI_BYTES

"""Exchanges before XLA has seen a program: what XLA's partitioner then makes of it.

What XLA gathers to give it another sharding, and the stops that end it, beside what XLA does.

A missing sharding constraint is found by trying it; nothing is advised where none helps.

What a sharded program's lines send, and what lies whole on each device.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of, shaped
from support.devices.mlps import lowered

from benchmarks.common.collectives import collectives, sent_bytes_by_kind
from hloom.passes.analysis.shardings.exchanges import Exchange, PlacedExchange, exchanges_of
from hloom.passes.analysis.shardings.fallbacks import Axes, gathered_dimensions
from hloom.passes.analysis.shardings.missing import missing_constraints
from hloom.passes.analysis.shardings.overview import Overview
from hloom.passes.analysis.shardings.stops import stop_between
from hloom.passes.framework.tables import Described
from hloom.passes.framework.target import Speed
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.shardings import MeshAxis

F32 = 4


def found(function: Any, *arguments: jax.ShapeDtypeStruct) -> tuple[PlacedExchange, ...]:
    return exchanges_of(jax.jit(function).lower(*arguments).compiler_ir())


def counted(exchanges: Iterable[PlacedExchange]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for each in exchanges:
        counts[each.exchange.kind] += each.exchange.runs
    return dict(sorted(counts.items()))


def test_a_product_over_a_split_axis_is_summed() -> None:
    mesh = mesh_of(AxisType.Auto, a=2, b=4)
    x, w = shaped(mesh, (None, "b"), 8, 64), shaped(mesh, ("b", None), 64, 16)
    [each] = found(lambda x, w: jnp.tanh(x @ w), x, w)
    exchange = each.exchange
    assert (exchange.kind, exchange.axes) == ("all-reduce", ("b",))
    assert (exchange.devices, exchange.span, exchange.runs) == (4, 4, 1)
    assert exchange.result_bytes == 8 * 16 * F32
    assert exchange.sent_bytes == 2 * 3 * 8 * 16 * F32 // 4
    assert "test_exchanges.py:" in exchange.line
    assert [op.name for op in each.readers] == ["stablehlo.tanh"]
    assert each.operand.owner.name == "stablehlo.dot_general"


def test_a_weight_is_gathered_once_for_all_its_readers() -> None:
    mesh = mesh_of(AxisType.Auto, a=4, b=2)
    x, w = shaped(mesh, ("a", None), 512, 64), shaped(mesh, ("a", None), 64, 64)
    [each] = found(lambda x, w: (x @ w, jnp.tanh(x) @ w), x, w)
    exchange = each.exchange
    assert (exchange.kind, exchange.axes) == ("all-gather", ("a",))
    assert exchange.devices == 4
    assert exchange.span == 8  # its members are two apart
    assert exchange.result_bytes == 64 * 64 * F32
    assert exchange.sent_bytes == 64 * 64 * F32 * 3 // 4
    assert exchange.operation == "dot_general"
    assert len(each.readers) == 2


@each_kind_of_axes
def test_what_a_loop_exchanges_counts_as_often_as_it_runs(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=8)
    x, ws = shaped(mesh, ("a", None), 8, 64), shaped(mesh, (None, "a", None), 5, 64, 64)

    def layer(x: Any, w: Any) -> Any:
        whole = NamedSharding(mesh, PartitionSpec())
        move = jax.lax.with_sharding_constraint if axes is AxisType.Auto else jax.reshard
        return jnp.tanh(x @ move(w, whole)), None

    exchanges = found(lambda x, ws: jax.lax.scan(layer, x, ws)[0], x, ws)
    assert counted(exchanges) == {"all-gather": 5}
    assert exchanges[0].exchange.result_bytes == 64 * 64 * F32


def test_what_a_manual_computation_exchanges_is_the_program_s_own() -> None:
    mesh = mesh_of(AxisType.Auto, a=2, b=4)
    x = shaped(mesh, ("a", "b"), 8, 64)
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "b"),
        mesh=mesh,
        in_specs=PartitionSpec("a", "b"),
        out_specs=PartitionSpec("a", None),
    )
    [each] = found(summed, x)
    exchange = each.exchange
    assert (exchange.kind, exchange.operation) == ("all-reduce", "all_reduce")
    assert (exchange.devices, exchange.span) == (4, 4)
    assert exchange.result_bytes == 4 * 16 * F32


def test_a_function_that_is_called_twice_exchanges_twice() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)

    @jax.jit
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    x, w = shaped(mesh, (None, "a"), 64, 64), shaped(mesh, ("a", None), 64, 64)
    assert counted(found(lambda x, w: layer(x, w) + layer(x + 1, w), x, w)) == {"all-reduce": 2}


def test_terms_are_added_before_they_are_summed_over_devices() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x, w = shaped(mesh, (None, "a"), 64, 128), shaped(mesh, ("a", None), 128, 32)
    assert counted(found(lambda x, w: jnp.tanh(x @ w + (x * x) @ w + (x + 1) @ w), x, w)) == {
        "all-reduce": 1
    }
    # A sum that something else reads as well is made by itself.
    both = found(lambda x, w: ((one := x @ w) + (x * x) @ w, jnp.tanh(one)), x, w)
    assert counted(both) == {"all-reduce": 2}


def test_an_axis_that_splits_the_sum_splits_the_result_afterwards() -> None:
    """Moving the operands would send less; XLA does not."""
    mesh = mesh_of(AxisType.Auto, a=4)
    x, w = shaped(mesh, (None, "a"), 64, 32), shaped(mesh, ("a", None), 32, 128)
    rows = NamedSharding(mesh, PartitionSpec("a", None))
    lowered = jax.jit(lambda x, w: x @ w, out_shardings=rows).lower(x, w)
    [each] = exchanges_of(lowered.compiler_ir())
    assert (each.exchange.kind, each.exchange.result_bytes) == (
        "reduce-scatter",
        64 * 128 * F32 // 4,
    )
    text = lowered.compile(compiler_options={"hloom": "off"}).as_text()
    summed = sent_bytes_by_kind(text)  # XLA:CPU slices the sum
    assert summed == {"all-reduce": 2 * each.exchange.sent_bytes}


def test_what_meets_an_operand_that_is_split_as_the_result_is_gathered() -> None:
    mesh = mesh_of(AxisType.Auto, a=4)
    x, y = shaped(mesh, ("a", None), 64, 512), shaped(mesh, (None, "a"), 64, 32)
    columns = NamedSharding(mesh, PartitionSpec(None, "a"))
    lowered = jax.jit(lambda x, y: x.T @ y, out_shardings=columns).lower(x, y)
    [each] = exchanges_of(lowered.compiler_ir())
    assert (each.exchange.kind, each.exchange.result_bytes) == ("all-gather", 64 * 512 * F32)
    text = lowered.compile(compiler_options={"hloom": "off"}).as_text()
    assert sent_bytes_by_kind(text) == {"all-gather": each.exchange.sent_bytes}


@pytest.mark.once
def test_what_a_loop_carries_unchanged_stays_where_it_was_made() -> None:
    """A use in the loop, which propagation may come to first, does not move the whole stack."""
    mesh = mesh_of(AxisType.Auto, a=4)
    ws, x = shaped(mesh, (None, "a", None), 4, 64, 32), shaped(mesh, ("a", None), 32, 64)
    rows = NamedSharding(mesh, PartitionSpec(None, "a", None))

    def loss(ws: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return x + jax.nn.silu(x) @ w @ w.T, None

        return (jax.lax.scan(layer, x, ws)[0] ** 2).sum()

    lowered = jax.jit(jax.grad(loss), out_shardings=rows).lower(ws, x)
    moved = [each.exchange for each in exchanges_of(lowered.compiler_ir())]
    assert "while" not in [exchange.operation for exchange in moved]
    text = lowered.compile(compiler_options={"hloom": "off"}).as_text()
    gathered = sum(each.sent_bytes for each in moved if each.kind == "all-gather")
    assert sent_bytes_by_kind(text)["all-gather"] == gathered


def test_a_reshape_that_no_split_axis_survives_is_done_on_the_whole() -> None:
    mesh = mesh_of(AxisType.Auto, a=4)
    x, w = shaped(mesh, (None, None), 16, 64), shaped(mesh, (None, "a"), 64, 96)
    heads = NamedSharding(mesh, PartitionSpec(None, None, "a", None))

    def split(x: Any, w: Any) -> Any:
        return jax.lax.with_sharding_constraint((x @ w).reshape(16, 3, 8, 4), heads)

    lowered = jax.jit(split).lower(x, w)
    [each] = exchanges_of(lowered.compiler_ir())
    assert (each.exchange.kind, each.exchange.operation) == ("all-gather", "reshape")
    assert each.exchange.result_bytes == 16 * 96 * F32
    text = lowered.compile(compiler_options={"hloom": "off"}).as_text()
    assert sent_bytes_by_kind(text) == {"all-gather": each.exchange.sent_bytes}


def test_one_device_exchanges_nothing() -> None:
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    assert not found(lambda x: x @ x, x)
    mesh = mesh_of(AxisType.Auto, a=1)
    assert not found(lambda x: x @ x, shaped(mesh, ("a", None), 8, 8))


def test_clones_are_partitioned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x = shaped(mesh, (None, "a"), 64, 64)
    module = jax.jit(lambda x: x @ x.T).lower(x).compiler_ir()
    once = exchanges_of(module)
    monkeypatch.setattr("hloom.passes.analysis.shardings.exchanges._partitioned", None)
    again = exchanges_of(clone_module(module))
    assert [each.exchange for each in again] == [each.exchange for each in once]


PARAMETERS = {"fsdp": ("a", "b"), "tensor": (None, "b"), "both": ("a", "b")}
SIZES = {"fsdp": (8, 1), "tensor": (1, 8), "both": (4, 2)}


@pytest.mark.parametrize("name", SIZES)
def test_a_step_exchanges_as_many_bytes_as_xla_makes_it(name: str) -> None:
    mesh = mesh_of(AxisType.Auto, **dict(zip("ab", SIZES[name], strict=True)))
    rows, columns = PARAMETERS[name]
    x = shaped(mesh, ("a", None), 512, 64)
    up, down = shaped(mesh, (rows, columns), 64, 128), shaped(mesh, (columns, rows), 128, 64)
    stream = NamedSharding(mesh, PartitionSpec("a", None))

    def loss(up: Any, down: Any, x: Any) -> Any:
        for _ in range(3):
            x = jax.lax.with_sharding_constraint(jnp.tanh(x @ up) @ down, stream)
        return jnp.sum(x * x)

    lowered = jax.jit(jax.value_and_grad(loss)).lower(up, down, x)
    exchanges = [each.exchange for each in exchanges_of(lowered.compiler_ir())]
    text = lowered.compile(compiler_options={"hloom": "off"}).as_text()
    got = collectives(text)
    assert got.inside == 0
    # XLA:CPU sums what Shardy scatters the sum of, and combines sums: results, not operations.
    predicted = sum(
        each.result_bytes * (each.devices if each.kind == "reduce-scatter" else 1)
        for each in exchanges
    )
    assert predicted == pytest.approx(got.outside_bytes, rel=0.05)


def test_seconds_are_those_of_the_links_that_a_group_needs() -> None:
    exchange = Exchange("all-gather", ("a",), 8, 8, 8000, 2, "2000xf32", "", "")
    speed = Speed(link_bytes_per_s=1e9, link_devices=8, network_bytes_per_s=1e8, kernel_s=1e-6)
    assert exchange.seconds(speed) == pytest.approx(2e-6 + 14000 / 1e9)
    far = Exchange("all-gather", ("a",), 8, 16, 8000, 2, "2000xf32", "", "")
    assert far.seconds(speed) == pytest.approx(2e-6 + 14000 / 1e8)
    assert far.seconds(Speed()) is None
    slow = dataclasses.replace(speed, collective_s=5e-6)
    assert exchange.seconds(slow) == pytest.approx(10e-6 + 14000 / 1e9)


SHAPE = (16, 16, 16)

WARNED = re.compile(r"Involuntary full rematerialization.*?(?:xs\[|/x)(\d+)")
"""XLA's warning of an argument of a program, or of what is made of it."""


def axes_of(sizes: dict[str, int]) -> list[Axes]:
    """All ways to split three dimensions along some axes of a mesh."""
    found: dict[Axes, None] = {}
    for order in itertools.permutations(sizes):
        for places in itertools.product(range(len(SHAPE) + 1), repeat=len(sizes)):
            pairs = list(zip(order, places, strict=True))
            found[
                tuple(
                    tuple(MeshAxis(name, "", sizes[name]) for name, place in pairs if place == n)
                    for n in range(len(SHAPE))
                )
            ] = None
    return list(found)


def lies(mesh: Mesh, axes: Axes) -> NamedSharding:
    names = (tuple(axis.name for axis in each) or None for each in axes)
    return NamedSharding(mesh, PartitionSpec(*names))


def moved(mesh: Mesh, ways: Sequence[Sequence[Axes]]) -> Any:
    """A program that gives each argument one sharding after the other."""

    def step(xs: list[jax.Array]) -> list[jax.Array]:
        made = []
        for number, (x, way) in enumerate(zip(xs, ways, strict=True)):
            with jax.named_scope(f"x{number}"):
                y = x + 1
                for axes in way[1:]:
                    y = jax.lax.with_sharding_constraint(y, lies(mesh, axes))
                made.append(y)
        return made

    xs = [jax.ShapeDtypeStruct(SHAPE, "float32", sharding=lies(mesh, way[0])) for way in ways]
    made = [lies(mesh, way[-1]) for way in ways]
    return jax.jit(step, out_shardings=made).lower(xs)


def compiled(lowered: Any) -> dict[str, int]:
    """By kind, what XLA's program sends."""
    return sent_bytes_by_kind(lowered.compile(compiler_options={"hloom": "off"}).as_text())


@pytest.mark.parametrize(
    "sizes", [{"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}], ids=["4x2", "2x2x2"]
)
def test_it_is_foreseen_as_xla_does_it(
    sizes: dict[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = [pair for pair in itertools.permutations(axes_of(sizes), 2) if pair[0] != pair[1]]
    pairs = random.Random(len(sizes)).sample(pairs, 30)
    mesh = mesh_of(AxisType.Auto, **sizes)
    capfd.readouterr()
    compiled(moved(mesh, pairs))
    warned = {int(number) for number in WARNED.findall(capfd.readouterr().err)}
    gathered = {n for n, pair in enumerate(pairs) if gathered_dimensions(SHAPE, *pair, sizes)}
    assert gathered == warned
    assert len(gathered) > 3

    # With a stop XLA has a way for each of them, and sends less.
    before = [pairs[number] for number in sorted(gathered)]
    after = []
    for source, target in before:
        stop = stop_between(SHAPE, source, target, sizes)
        assert stop is not None
        after.append((source, stop, target))
    first, second = moved(mesh, before), moved(mesh, after)
    sent = compiled(first)
    capfd.readouterr()
    mended = compiled(second)
    assert not WARNED.findall(capfd.readouterr().err)
    assert sum(mended.values()) < 0.6 * sum(sent.values())
    # Shardy may split what is made of an argument along the axes of both, which sends less.
    foreseen = sum(each.exchange.sent_bytes for each in exchanges_of(first.compiler_ir()))
    assert 0.7 * sent["all-gather"] <= foreseen <= 1.7 * sent["all-gather"]


AXES = {"x": 4, "y": 2}
X, Y = (MeshAxis(name, "", size) for name, size in AXES.items())


def test_the_reported_pair() -> None:
    source, target = ((Y,), (), (X,)), ((), (X, Y), ())
    assert gathered_dimensions((8, 8, 8), source, target, AXES) == {0, 2}
    assert stop_between((8, 8, 8), source, target, AXES) == ((Y,), (X,), ())
    # What it stays split along is not gathered.
    assert gathered_dimensions((8, 8, 8), ((Y,), (), (X,)), ((Y,), (X,), ()), AXES) == frozenset()


def test_what_is_not_known_is_not_named() -> None:
    half = MeshAxis("x", '"x":(1)2', 2)
    assert not gathered_dimensions((8, 8, 8), ((Y,), (), (half,)), ((), (half, Y), ()), AXES)
    assert not gathered_dimensions((8, 6, 8), ((Y,), (), (X,)), ((), (X, Y), ()), AXES)


@each_kind_of_axes
@pytest.mark.parametrize("way", ["made", "argument"])
def test_the_stop_is_named_and_ends_it(way: str, axes: AxisType) -> None:
    mesh = mesh_of(axes, **AXES)
    wide = NamedSharding(mesh, PartitionSpec("y", None, "x"))
    tall = NamedSharding(mesh, PartitionSpec(None, ("x", "y"), None))
    move = jax.lax.with_sharding_constraint if axes is AxisType.Auto else jax.reshard

    def lowered(*stops: NamedSharding) -> Any:
        def step(a: jax.Array, c: jax.Array) -> jax.Array:
            d = a * 2 if way == "made" else a
            for stop in stops:
                d = move(d, stop)
            return move(d, tall) + c

        arrays = (jax.ShapeDtypeStruct((16, 16, 16), "float32", sharding=s) for s in (wide, tall))
        return jax.jit(step, out_shardings=tall).lower(*arrays)

    plain = lowered()
    [found] = missing_constraints(plain.compiler_ir())
    assert found.code == "x = jax.lax.with_sharding_constraint(x, P('y', 'x'))"
    assert "test_exchanges.py:" in found.value.source.line
    stopped = lowered(NamedSharding(mesh, PartitionSpec(*found.spec)))
    assert missing_constraints(stopped.compiler_ir()) == ()
    sent, mended = (sum(compiled(each).values()) for each in (plain, stopped))
    assert sent - mended == found.saved_bytes == 46 * 16**3 * 4 // 64


def sent_bytes(module: Any) -> int:
    return sum(each.exchange.sent_bytes for each in exchanges_of(module))


def test_the_constraint_that_ends_the_sums_of_activations_is_found() -> None:
    module = lowered(constrained=False).compiler_ir()
    before = str(module)
    [found] = missing_constraints(module)
    assert str(module) == before
    assert found.value.operation == "stablehlo.gather"
    assert "mlps.py:" in found.value.source.line
    assert found.code == "x = jax.lax.with_sharding_constraint(x, P('data'))"
    # What JAX constrains of the gradients as well, the trial does not.
    mended = lowered(constrained=True).compiler_ir()
    saved = sent_bytes(module) - sent_bytes(mended)
    assert found.saved_bytes == pytest.approx(saved, rel=0.1)
    assert found.sentence.splitlines()[0].startswith("10.")


def test_a_program_that_has_its_constraints_needs_no_more() -> None:
    assert missing_constraints(lowered(constrained=True).compiler_ir()) == ()


@each_kind_of_axes
def test_replicas_of_work_are_no_remedy(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=8)
    x, w = shaped(mesh, (None, "a"), 512, 512), shaped(mesh, ("a",), 512, 512)

    def summed(x: jax.Array, w: jax.Array) -> jax.Array:
        whole = NamedSharding(mesh, PartitionSpec())
        explicit = axes is AxisType.Explicit
        made = jnp.dot(x, w, out_sharding=whole) if explicit else x @ w
        return jnp.tanh(made)

    module = jax.jit(summed).lower(x, w).compiler_ir()
    assert sent_bytes(module)
    # The sum may be scattered. Explicit axes have it whole, as the program says.
    scattered = [] if axes is AxisType.Explicit else [("a",)]
    assert [each.spec for each in missing_constraints(module)] == scattered


def summed(mesh: Mesh) -> Any:
    """A sum over devices in a manual computation."""
    spec = PartitionSpec("a")
    product = lambda x: jax.lax.psum(x * x, "a")  # noqa: E731
    return jax.shard_map(product, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())


def test_what_a_manual_computation_sends_is_its_own() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    x = shaped(mesh, ("a",), 512, 512)
    module = jax.jit(summed(mesh)).lower(x).compiler_ir()
    assert sent_bytes(module)
    assert missing_constraints(module) == ()


def test_one_device_lacks_nothing() -> None:
    module = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compiler_ir()
    assert missing_constraints(clone_module(module)) == ()


FAST = Speed(link_bytes_per_s=1e9, kernel_s=0.0)
MIB = 2**20


def overview(function: Any, *arguments: jax.ShapeDtypeStruct, least_bytes: int = 1) -> Overview:
    module = jax.jit(function).lower(*arguments).compiler_ir()
    return Overview.of(module, FAST, least_bytes=least_bytes)


@each_kind_of_axes
def test_a_line_with_what_it_sends(axes: AxisType) -> None:
    mesh = mesh_of(axes, a=8)

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        whole = NamedSharding(mesh, PartitionSpec())
        explicit = axes is AxisType.Explicit
        return jnp.tanh(jnp.dot(x, w, out_sharding=whole) if explicit else x @ w)

    found = overview(product, shaped(mesh, (None, "a"), 512, 64), shaped(mesh, ("a",), 64, 512))
    [line] = found.lines
    assert "test_exchanges.py:" in line.line
    assert line.sent_bytes == found.sent_bytes == 2 * 7 * MIB // 8
    assert found.sent_by_kind() == {"all-reduce": found.sent_bytes}
    assert found.seconds == pytest.approx(found.sent_bytes / 1e9)
    assert found.summary.startswith("sends 1.75 MiB a step, 100 % of it at test_exchanges.py:")
    assert not found.is_small
    # Of the result, whatever it is called, every device has all.
    assert {each.type for each in found.whole} == {"tensor<512x512xf32>"}


def test_what_a_manual_computation_sends_and_has() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    found = overview(summed(mesh), shaped(mesh, ("a",), 512, 512))
    assert found.sent_by_kind() == {"all-reduce": 2 * 7 * MIB // 8 // 8}
    # Inside, a value has its size on a device.
    assert [each.type for each in found.whole] == ["tensor<64x512xf32>"]
    assert found.whole_arguments_bytes == 0


def test_kinds_of_a_line_stand_under_it() -> None:
    module = lowered(constrained=False).compiler_ir()
    found = Overview.of(module, FAST, least_bytes=2**19)
    sent = found.tables()[0]
    assert sent.depths == (0, 1, 1) * (len(sent.rows) // 3)
    groups = [row for row, depth in zip(sent.rows, sent.depths, strict=True) if not depth]
    assert [row[-1] for row in groups] == ["2 kinds"] * len(groups)
    assert sent.more == len(found.lines) - len(groups)
    totals = [row[1] for row in groups]
    assert totals == sorted(totals, reverse=True)
    assert sum(totals) <= found.sent_bytes


def test_an_argument_that_no_axis_splits_is_named() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    found = overview(
        lambda x, table: x + table.sum(0),
        shaped(mesh, ("a",), 512, 512),
        shaped(mesh, (), 512, 512),
    )
    assert found.whole[0] == Described("table", found.whole[0].source, "tensor<512x512xf32>", MIB)
    assert found.whole_arguments_bytes == MIB
    assert found.summary == "sends 0 B a step; 1.00 MiB of arguments lie whole on every device"


def test_little_is_not_listed() -> None:
    mesh = mesh_of(AxisType.Auto, a=8)
    arguments = shaped(mesh, (None, "a"), 8, 64), shaped(mesh, ("a",), 64, 8)
    found = overview(lambda x, w: jnp.tanh(x @ w), *arguments, least_bytes=MIB)
    assert found.sent_bytes
    assert found.is_small
    assert found.tables() == ()


def test_one_device_sends_nothing_and_is_told_nothing_of() -> None:
    found = overview(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "float32"))
    assert (found.lines, found.whole, found.is_small) == ((), (), True)

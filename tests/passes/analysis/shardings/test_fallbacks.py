"""What XLA gathers to give it another sharding, and the stops that end it, beside what XLA does."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

import jax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of

from hloom.passes.analysis.shardings.exchanges import exchanges_of
from hloom.passes.analysis.shardings.fallbacks import Axes, gathered_dimensions, stop_between
from hloom.passes.analysis.shardings.missing import missing_constraints
from hloom.passes.ir.shardings import MeshAxis
from hloom.xla.collectives import sent_bytes_by_kind

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


SIZES = {"x": 4, "y": 2}
X, Y = (MeshAxis(name, "", size) for name, size in SIZES.items())


def test_the_reported_pair() -> None:
    source, target = ((Y,), (), (X,)), ((), (X, Y), ())
    assert gathered_dimensions((8, 8, 8), source, target, SIZES) == {0, 2}
    assert stop_between((8, 8, 8), source, target, SIZES) == ((Y,), (X,), ())
    # What it stays split along is not gathered.
    assert gathered_dimensions((8, 8, 8), ((Y,), (), (X,)), ((Y,), (X,), ()), SIZES) == frozenset()


def test_what_is_not_known_is_not_named() -> None:
    half = MeshAxis("x", '"x":(1)2', 2)
    assert not gathered_dimensions((8, 8, 8), ((Y,), (), (half,)), ((), (half, Y), ()), SIZES)
    assert not gathered_dimensions((8, 6, 8), ((Y,), (), (X,)), ((), (X, Y), ()), SIZES)


@each_kind_of_axes
@pytest.mark.parametrize("way", ["made", "argument"])
def test_the_stop_is_named_and_ends_it(way: str, axes: AxisType) -> None:
    mesh = mesh_of(axes, **SIZES)
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
    assert "test_fallbacks.py:" in found.value.source.line
    stopped = lowered(NamedSharding(mesh, PartitionSpec(*found.spec)))
    assert missing_constraints(stopped.compiler_ir()) == ()
    sent, mended = (sum(compiled(each).values()) for each in (plain, stopped))
    assert sent - mended == found.saved_bytes == 46 * 16**3 * 4 // 64

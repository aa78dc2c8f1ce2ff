"""All dimensions of a program in one pass.

Programs for several devices: shardings, code on single devices, and their exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.mlir import ir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.flows.cuts import best_cut
from support.flows.runs import assert_chunks_agree, compiled, flow_of, lowered, results_of

from hloom.passes.analysis.dimension_flow.dimensions import Atoms, Dimension, ProgramDimensions
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.signatures.movement import common_factors
from hloom.passes.analysis.signatures.rules import SignatureBuilder
from hloom.passes.analysis.signatures.signature import AxisLayout


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def found_in(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Program, tuple[Dimension, ...]]:
    """With the program, without which no value of it lives."""
    program = Program.of(lowered(function, *arguments))
    return program, ProgramDimensions(program).found()


def places_of(dimension: Dimension) -> list[str]:
    """Where it is, as "argument: layout"."""
    return [f"{ir.BlockArgument(seed.value).arg_number}: {seed.layout}" for seed in dimension.seeds]


def test_axes_that_meet_are_one_dimension() -> None:
    def program(x: Any, y: Any, w: Any) -> Any:
        return jnp.tanh(x @ w) + y

    _program, dimensions = found_in(program, zeros(4, 3), zeros(4, 5), zeros(3, 5))
    found = {tuple(places_of(each)): each for each in dimensions}
    assert list(found) == [
        ("0: axis 0", "1: axis 0"),
        ("0: axis 1", "2: axis 0"),
        ("1: axis 1", "2: axis 1"),
    ]
    assert {each.share for each in found.values()} == {1.0}


def test_a_reshape_divides_a_dimension() -> None:
    """Heads are in the columns of the weights, the parts of microbatches in the rows of x."""

    def program(x: Any, w: Any) -> Any:
        heads = (x @ w).reshape(2, 4, 3, 2)
        return jnp.einsum("kbhd,kbhe->khde", heads, heads)

    _program, dimensions = found_in(program, zeros(8, 5), zeros(5, 6))
    found = [places_of(each) for each in dimensions]
    assert sorted(found) == [
        ["0: axis 0 as [1, 2, 4]"],
        ["0: axis 0 as [2, 4, 1]"],
        ["0: axis 1", "1: axis 0"],
        ["1: axis 1 as [1, 3, 2]"],
        ["1: axis 1 as [3, 2, 1]"],
    ]


def through_a_loop(x: Any, w: Any) -> Any:
    return lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, w)[0]


def through_branches(x: Any, w: Any) -> Any:
    return lax.cond(w.sum() > 0, lambda: x @ w[0], lambda: x)


def through_checkpoints(x: Any, w: Any) -> Any:
    return jax.checkpoint(lambda x: jnp.tanh(x @ w[0]))(x)


@pytest.mark.parametrize("program", [through_a_loop, through_branches, through_checkpoints])
def test_dimensions_go_through_code(program: Callable[..., Any]) -> None:
    """The weights' rows and columns are one dimension where the result is like x."""

    def residual(x: Any, w: Any) -> Any:
        return x + program(x, w)

    _program, dimensions = found_in(residual, zeros(4, 3), zeros(2, 3, 3))
    found = [places_of(each) for each in dimensions]
    assert ["0: axis 0"] in found
    assert ["0: axis 1", "1: axis 1", "1: axis 2"] in found


def test_work_in_a_loop_counts_as_often_as_it_runs() -> None:
    def program(x: Any, w: Any, v: Any) -> Any:
        return lax.scan(lambda y, w: (y @ w, None), x, w)[0], v @ v

    _program, found = found_in(program, zeros(4, 4), zeros(7, 4, 4), zeros(5, 5))
    loop, once = 7 * 2 * 4**3, 2 * 5**3
    shares = {each.size: each.share for each in found}
    assert shares[4] == pytest.approx(loop / (loop + once))
    assert shares[5] == pytest.approx(once / (loop + once))


def test_atoms_are_divided_once() -> None:
    atoms = Atoms()
    rows, batch, length, other = (atoms.atom(size) for size in (12, 4, 3, 12))
    atoms.match([rows], [batch, length])
    atoms.unite(rows, other)
    assert [atoms.sizes[leaf] for leaf in atoms.leaves(other)] == [4, 3]
    assert list(atoms.leaves(other)) == list(atoms.leaves(rows))
    halves = [atoms.atom(2), atoms.atom(6)]
    atoms.match([other], halves)
    assert [atoms.sizes[leaf] for leaf in atoms.leaves(rows)] == [2, 2, 3]
    assert [atoms.sizes[leaf] for leaf in atoms.leaves(halves[1])] == [2, 3]


def test_atoms_that_share_no_factor_stay_apart() -> None:
    atoms = Atoms()
    left, right = [atoms.atom(4), atoms.atom(3)], [atoms.atom(3), atoms.atom(4)]
    atoms.match(left, right)
    assert len({atoms.root(atom) for atom in left + right}) == 4


sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_factors_of_a_reshape_multiply_to_both_shapes(data: st.DataObject) -> None:
    before = data.draw(sizes)
    prime = [factor for size in before for factor in {4: [2, 2], 6: [2, 3]}.get(size, [size])]
    order = data.draw(st.permutations(prime))
    after, at = [], 0
    while at < len(order):
        count = data.draw(st.integers(1, len(order) - at))
        after.append(math.prod(order[at : at + count]))
        at += count
    build = SignatureBuilder()
    read, made = common_factors(build, before, after)
    for shape, axes in ((before, read), (after, made)):
        assert [math.prod(build.sizes[factor] for factor in axis) for axis in axes] == shape
    assert all(size > 1 for size in build.sizes)
    left, right = ([factor for axis in axes for factor in axis] for axes in (read, made))
    assert [one for one in left if one in right] == [one for one in right if one in left]


DEVICES, ROWS, WIDTH = 2, 8, 4

X = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) / 9
W = np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH) / 7 - 1

ON_EACH = AxisLayout(0, DEVICES, ROWS // DEVICES, 1)
"""The rows, cut on each device alike."""


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:DEVICES]), ("d",))


def sharded(mesh: Mesh, body: Callable[..., Any], out_specs: Any) -> ir.Module:
    """A program that runs the body on each device, on its rows of both arguments."""
    in_specs = (P("d"), P("d"))
    function = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    places = [NamedSharding(mesh, spec) for spec in in_specs]
    arguments = [
        jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)
        for value, place in zip((X, W), places, strict=True)
    ]
    module = lowered(function, *arguments)
    assert "sdy.manual_computation" in str(module)
    return module


def step(x: Any, w: Any) -> Any:
    w = lax.all_gather(w, "d", axis=0, tiled=True)
    y = jnp.tanh(x @ w)
    gradient = lax.psum_scatter(x.T @ y, "d", scatter_dimension=0, tiled=True)
    return y, lax.psum(y.sum(0), "d"), gradient, lax.pmax(y.max(0), "d")


def exchanges(x: Any, w: Any) -> Any:
    turned = lax.ppermute(jnp.sin(x), "d", [(0, 1), (1, 0)])
    split = lax.all_to_all(jnp.cos(x), "d", split_axis=1, concat_axis=1, tiled=True)
    joined = lax.all_to_all(jnp.cos(x), "d", split_axis=1, concat_axis=0, tiled=True)
    return turned, split, lax.all_gather(x[:, 0], "d"), joined


ROWS_SPLIT = "split along axis 0 as [2, 4, 1] in phase 1"
SUM = "partial sum in phase 1"


def test_a_step_on_each_device_runs_in_one_loop(mesh: Mesh) -> None:
    module = sharded(mesh, step, (P("d"), P(), P("d"), P()))
    flow = flow_of(module, (0, ON_EACH))
    assert results_of(flow) == [ROWS_SPLIT, SUM, SUM, "partial maximum in phase 1"]
    assert len(flow.phases) == 1
    assert flow.sharded == 1
    assert_chunks_agree(module, flow, (X, W), evaluate=compiled)


def test_exchanges_move_chunks(mesh: Mesh) -> None:
    module = sharded(mesh, exchanges, (P("d"),) * 4)
    flow = flow_of(module, (0, ON_EACH))
    assert results_of(flow)[:2] == [ROWS_SPLIT] * 2
    assert results_of(flow)[2:] == [
        "split along axis 1 in phase 1",
        "split along axis 0 as [4, 4, 1] in phase 1",
    ]
    assert_chunks_agree(module, flow, (X, W), evaluate=compiled)


def test_rows_that_are_gathered_stay_split(mesh: Mesh) -> None:
    """Each device has the rows of all, in the order of devices."""

    def gathered(x: Any, w: Any) -> Any:
        rows = lax.all_gather(x @ lax.all_gather(w, "d", tiled=True), "d", tiled=True)
        return lax.psum_scatter(jnp.tanh(rows), "d", tiled=True)

    module = sharded(mesh, gathered, P("d"))
    flow = flow_of(module, (0, ON_EACH))
    assert results_of(flow) == [ROWS_SPLIT]
    assert_chunks_agree(module, flow, (X, W), evaluate=compiled)


def test_a_dimension_across_devices_is_not_cut_by_hand(mesh: Mesh) -> None:
    module = sharded(mesh, step, (P("d"), P(), P("d"), P()))
    flow = flow_of(module, (0, 0))
    assert results_of(flow) == ["invariant"] * 4
    assert flow.sharded == DEVICES


def test_a_sharded_batch_is_cut_on_each_device(mesh: Mesh) -> None:
    def loss(w: Any, x: Any) -> Any:
        hidden = lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P("d")))
        return (jnp.tanh(hidden @ w) ** 2).mean()

    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    arguments = (
        jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=whole),
        jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=rows),
    )
    module = lowered(jax.value_and_grad(loss), *arguments)
    dimension, flow = best_cut(module)
    assert (dimension.size, dimension.devices) == (ROWS, DEVICES)
    assert [seed.layout for seed in flow.seeds] == [ON_EACH]
    assert flow.sharded == 1
    assert len(flow.phases) == 1
    assert flow_of(module, (1, 0)).sharded == DEVICES
    assert_chunks_agree(module, flow, (W, X), evaluate=compiled)

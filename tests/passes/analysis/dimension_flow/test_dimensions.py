"""All dimensions of a program in one pass."""

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
from support.flows.runs import lowered

from hloom.passes.analysis.dimension_flow.dimensions import Atoms, Dimension, ProgramDimensions
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.signatures.movement import common_factors
from hloom.passes.analysis.signatures.rules import SignatureBuilder


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

    _program, dimensions = found_in(program, *map(zeros_of, ("bi", "bo", "io")))
    found = {tuple(places_of(each)): each for each in dimensions}
    assert list(found) == [
        ("0: axis 0", "1: axis 0"),
        ("0: axis 1", "2: axis 0"),
        ("1: axis 1", "2: axis 1"),
    ]
    assert {each.share for each in found.values()} == {1.0}


def zeros_of(labels: str) -> Any:
    return zeros(*({"b": 4, "i": 3, "o": 5}[label] for label in labels))


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

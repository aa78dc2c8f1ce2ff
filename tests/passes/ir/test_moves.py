"""Nothing is moved past what it reads, or what reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, block_of, context

from hloom.passes.ir import walk
from hloom.passes.ir.moves import MisplacedError, move_before, move_behind, reorder

__all__ = ["block_of", "context"]

BODY = """
  %sine = stablehlo.sine %a : tensor<f32>
  %cosine = stablehlo.cosine %sine : tensor<f32>
  %while:2 = stablehlo.while(%i = %n, %v = %a) : tensor<i32>, tensor<f32>
    cond {
      %compare = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %compare : tensor<i1>
    } do {
      %add = stablehlo.add %v, %cosine : tensor<f32>
      stablehlo.return %i, %add : tensor<i32>, tensor<f32>
    }
  %tanh = stablehlo.tanh %a : tensor<f32>
  %exponential = stablehlo.exponential %tanh : tensor<f32>
"""
ORDER = ["sine", "cosine", "while", "tanh", "exponential"]

Named = Callable[[str], ir.Operation]


@pytest.fixture
def named(block_of: BlockOf) -> Named:
    block = block_of(BODY, "%a: tensor<f32>, %n: tensor<i32>")
    ops = {view.operation.name: view.operation for view in block.operations}
    return lambda name: ops[f"stablehlo.{name}"]


def names(op: ir.Operation) -> list[str]:
    *ops, _ = (view.operation.name.partition(".")[2] for view in op.block.operations)
    return ops


@pytest.mark.parametrize(
    ("moved", "before", "order"),
    [
        (["tanh", "exponential"], "while", ["sine", "cosine", "tanh", "exponential", "while"]),
        (["tanh"], "sine", ["tanh", "sine", "cosine", "while", "exponential"]),
        # What stands before it stays, as where another rewrite has moved it already.
        (["sine", "tanh"], "while", ["sine", "cosine", "tanh", "while", "exponential"]),
        (["sine"], "exponential", ORDER),
    ],
)
def test_operations_are_moved_before_another(
    named: Named, moved: Sequence[str], before: str, order: Sequence[str]
) -> None:
    move_before(named(before), [named(each) for each in moved])
    assert names(named(before)) == order
    assert named(before).parent.verify()


@pytest.mark.parametrize(
    ("moved", "behind", "order"),
    [
        (["sine", "cosine", "while"], "tanh", ["tanh", "sine", "cosine", "while", "exponential"]),
        (["tanh"], "cosine", ORDER),
    ],
)
def test_operations_are_moved_behind_another(
    named: Named, moved: Sequence[str], behind: str, order: Sequence[str]
) -> None:
    move_behind(named(behind), [named(each) for each in moved])
    assert names(named(behind)) == order
    assert named(behind).parent.verify()


@pytest.mark.parametrize(
    ("move", "moved", "place", "error"),
    [
        (move_before, ["exponential"], "while", "exponential .* before tanh .*, whose result it"),
        # What it reads is read by code in it.
        (move_before, ["while"], "sine", "while .* before cosine .*, whose result it reads"),
        (move_behind, ["sine"], "tanh", "sine .* behind cosine .*, which reads it"),
        (move_behind, ["sine", "cosine"], "while", "cosine .* behind while .*, which reads it"),
    ],
)
def test_a_move_past_what_is_read_is_an_error_before_anything_is_moved(
    named: Named,
    move: Callable[[ir.Operation, Sequence[ir.Operation]], None],
    moved: Sequence[str],
    place: str,
    error: str,
) -> None:
    with pytest.raises(MisplacedError, match=error):
        move(named(place), [named(each) for each in moved])
    assert names(named(place)) == ORDER


def test_a_block_is_reordered_where_that_is_an_order(named: Named) -> None:
    block = named("sine").block
    wanted = ["tanh", "sine", "cosine", "exponential", "while"]
    reorder(block, [named(each) for each in wanted])
    assert names(named("sine")) == wanted
    wrong = ["tanh", "cosine", "sine", "exponential", "while"]
    with pytest.raises(MisplacedError, match=r"cosine .* before sine .*, whose result it reads"):
        reorder(block, [named(each) for each in wrong])
    assert names(named("sine")) == wanted
    assert walk.terminator(block).parent.verify()

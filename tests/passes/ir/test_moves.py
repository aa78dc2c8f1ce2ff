"""Nothing is moved past what it reads, or what reads it.

Nothing is erased that something left behind reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf

from hloom.passes.ir import walk
from hloom.passes.ir.erase import StillReadError, erase, erase_argument
from hloom.passes.ir.moves import MisplacedError, move_before, move_behind, reorder

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


ERASED_BODY = """
  %sine = stablehlo.sine %a : tensor<f32>
  %cosine = stablehlo.cosine %sine : tensor<f32>
  %add = stablehlo.add %sine, %cosine : tensor<f32>
  %while:2 = stablehlo.while(%i = %n, %v = %add) : tensor<i32>, tensor<f32>
    cond {
      %compare = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %compare : tensor<i1>
    } do {
      %tanh = stablehlo.tanh %cosine : tensor<f32>
      stablehlo.return %i, %tanh : tensor<i32>, tensor<f32>
    }
  %exponential = stablehlo.exponential %a : tensor<f32>
"""


@pytest.fixture
def erased(block_of: BlockOf) -> Named:
    block = block_of(ERASED_BODY, "%a: tensor<f32>, %n: tensor<i32>")
    ops = {op.name: op for op in walk.operations(block.owner.operation)}
    return lambda name: ops[f"stablehlo.{name}"]


def of_names(error: str) -> str:
    """The pattern of an error, with the operations' dialects and lines."""
    operation = "while|sine|cosine|add|tanh|exponential"
    return re.sub(rf"\b({operation})\b", r"stablehlo.\1 of -:\\d+", error)


def names_left(op: ir.Operation) -> list[str]:
    return [view.operation.name.partition(".")[2] for view in op.block.operations]


@pytest.mark.parametrize(
    ("gone", "error"),
    [
        (["sine"], "sine was to be erased, and (add|cosine) still reads it"),
        (["add"], "add was to be erased, and while still reads it"),
        (["sine", "add", "while"], "sine was to be erased, and cosine still reads it"),
        # What reads it stands in the code of what stays.
        (["cosine", "add"], "(cosine was .* tanh|add was .* while) still reads it"),
    ],
)
def test_what_is_read_stays_and_all_with_it(erased: Named, gone: Sequence[str], error: str) -> None:
    before = names_left(erased("sine"))
    with pytest.raises(StillReadError, match=of_names(error)):
        erase(*map(erased, gone))
    assert names_left(erased("sine")) == before


@pytest.mark.parametrize(
    "gone", [["sine", "cosine", "add", "while"], ["while", "add", "cosine", "sine"], ["while"]]
)
def test_what_reads_one_another_goes_together(erased: Named, gone: Sequence[str]) -> None:
    kept = [name for name in names_left(erased("sine")) if name not in gone]
    stays = erased("exponential")
    erase(*map(erased, gone))
    assert names_left(stays) == kept
    assert walk.module_of(stays).verify()


def test_a_value_of_its_code_that_is_read_outside(erased: Named) -> None:
    """As by a copy of a loop whose body was left empty: nobody but this check would see it."""
    exponential = erased("exponential")
    exponential.operands[0] = erased("tanh").results[0]
    reads = "a value inside of while was to be erased, and exponential still reads it"
    for gone in (["while"], ["while", "exponential"]):
        with pytest.raises(StillReadError, match=of_names(reads)):
            erase(*map(erased, gone))


def test_an_argument_that_is_read(erased: Named) -> None:
    condition, body = (region.blocks[0] for region in erased("while").regions)
    with pytest.raises(StillReadError, match=of_names("argument 0 of while was to be erased")):
        erase_argument(condition, 0)
    erase_argument(body, 1)
    assert len(body.arguments) == 1

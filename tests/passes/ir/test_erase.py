"""Nothing is erased that something left behind reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import BlockOf, block_of, context

from hloom.passes.ir import walk
from hloom.passes.ir.erase import StillReadError, erase, erase_argument

__all__ = ["block_of", "context"]

BODY = """
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

Named = Callable[[str], ir.Operation]


@pytest.fixture
def named(block_of: BlockOf) -> Named:
    block = block_of(BODY, "%a: tensor<f32>, %n: tensor<i32>")
    ops = {op.name: op for op in walk.operations(block.owner.operation)}
    return lambda name: ops[f"stablehlo.{name}"]


def of_names(error: str) -> str:
    """The pattern of an error, with the operations' dialects and lines."""
    operation = "while|sine|cosine|add|tanh|exponential"
    return re.sub(rf"\b({operation})\b", r"stablehlo.\1 of -:\\d+", error)


def names(op: ir.Operation) -> list[str]:
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
def test_what_is_read_stays_and_all_with_it(named: Named, gone: Sequence[str], error: str) -> None:
    before = names(named("sine"))
    with pytest.raises(StillReadError, match=of_names(error)):
        erase(*map(named, gone))
    assert names(named("sine")) == before


@pytest.mark.parametrize(
    "gone", [["sine", "cosine", "add", "while"], ["while", "add", "cosine", "sine"], ["while"]]
)
def test_what_reads_one_another_goes_together(named: Named, gone: Sequence[str]) -> None:
    kept = [name for name in names(named("sine")) if name not in gone]
    stays = named("exponential")
    erase(*map(named, gone))
    assert names(stays) == kept
    assert walk.module_of(stays).verify()


def test_a_value_of_its_code_that_is_read_outside(named: Named) -> None:
    """As by a copy of a loop whose body was left empty: nobody but this check would see it."""
    exponential = named("exponential")
    exponential.operands[0] = named("tanh").results[0]
    reads = "a value inside of while was to be erased, and exponential still reads it"
    for gone in (["while"], ["while", "exponential"]):
        with pytest.raises(StillReadError, match=of_names(reads)):
            erase(*map(named, gone))


def test_an_argument_that_is_read(named: Named) -> None:
    condition, body = (region.blocks[0] for region in named("while").regions)
    with pytest.raises(StillReadError, match=of_names("argument 0 of while was to be erased")):
        erase_argument(condition, 0)
    erase_argument(body, 1)
    assert len(body.arguments) == 1

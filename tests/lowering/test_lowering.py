"""Marks become what they mean; nothing else changes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.lowering.kernel_calls import LoweringError
from hloom.lowering.lower import lower
from hloom.lowering.placement import Placement
from hloom.passes.ir import walk

pytestmark = pytest.mark.usefixtures("context")

ONE_CPU = Placement.of_one_process("cpu", 1)


DOUBLE = """
  func.func private @double(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
"""


def mark(result: str, operand: str, *, name: str = "hloom.double", version: str = "1") -> str:
    return (
        f'{result} = stablehlo.composite "{name}" {operand} '
        f"{{decomposition = @double, version = {version} : i32}} "
        ": (tensor<4xf32>) -> tensor<4xf32>"
    )


def module_of(body: str, *functions: str) -> ir.Module:
    main = f"""
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    {body}
  }}
"""
    module = ir.Module.parse(f"module @m {{ {main} {' '.join(functions)} }}")
    assert module.operation.verify()
    return module


def lines(module: ir.Module) -> list[str]:
    return [line.strip() for line in str(module).splitlines()]


def test_a_mark_becomes_its_decomposition() -> None:
    module = module_of(mark("%0", "%x") + "\nreturn %0 : tensor<4xf32>", DOUBLE)
    assert lower(module, ONE_CPU).marks == 1
    assert module.operation.verify()
    assert lines(module) == [
        "module @m {",
        "func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {",
        "%0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>",
        "return %0 : tensor<4xf32>",
        "}",
        "}",
    ]


def test_two_marks_that_share_a_decomposition() -> None:
    body = [mark("%0", "%x"), mark("%1", "%0"), "return %1 : tensor<4xf32>"]
    module = module_of("\n".join(body), DOUBLE)
    assert lower(module, ONE_CPU).marks == 2
    assert lines(module)[2:5] == [
        "%0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>",
        "%1 = stablehlo.add %0, %0 : tensor<4xf32>",
        "return %1 : tensor<4xf32>",
    ]


TWICE = f"""
  func.func private @twice(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
    {mark("%0", "%a")}
    return %a, %0 : tensor<4xf32>, tensor<4xf32>
  }}
"""


def test_marks_in_decompositions_with_several_results_and_an_argument_as_a_result() -> None:
    twice = (
        '%0:2 = stablehlo.composite "hloom.twice" %x {decomposition = @twice, version = 1 : i32} '
        ": (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)"
    )
    body = f"{twice}\n%1 = stablehlo.multiply %0#0, %0#1 : tensor<4xf32>\nreturn %1 : tensor<4xf32>"
    # The function that is used comes last, so that it is not done when it is met.
    module = module_of(body, TWICE, DOUBLE)
    [before] = stablehlo.eval_module(module, [values()])
    assert lower(module, ONE_CPU).marks == 2
    assert lines(module)[2:5] == [
        "%0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>",
        "%1 = stablehlo.multiply %arg0, %0 : tensor<4xf32>",
        "return %1 : tensor<4xf32>",
    ]
    [after] = stablehlo.eval_module(module, [values()])
    np.testing.assert_array_equal(np.asarray(after), np.asarray(before))


def values() -> ir.DenseElementsAttr:
    return ir.DenseElementsAttr.get(np.array([1, 2, 3, 4], np.float32))


def test_marks_in_regions_and_in_other_functions() -> None:
    body = f"""
    %p = stablehlo.constant dense<true> : tensor<i1>
    %0 = "stablehlo.if"(%p) ({{
      {mark("%2", "%x")}
      stablehlo.return %2 : tensor<4xf32>
    }}, {{
      stablehlo.return %x : tensor<4xf32>
    }}) : (tensor<i1>) -> tensor<4xf32>
    %1 = func.call @other(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
    """
    other = f"""
  func.func private @other(%a: tensor<4xf32>) -> tensor<4xf32> {{
    {mark("%0", "%a")}
    return %0 : tensor<4xf32>
  }}
"""
    module = module_of(body, other, DOUBLE)
    assert lower(module, ONE_CPU).marks == 2
    assert module.operation.verify()
    assert "composite" not in str(module)
    assert "@double" not in str(module)
    assert "@other" in str(module)


def test_composites_of_others_stay() -> None:
    foreign = mark("%0", "%x", name="their.double", version="7")
    module = module_of(foreign + "\nreturn %0 : tensor<4xf32>", DOUBLE)
    before = str(module)
    assert lower(module, ONE_CPU).marks == 0
    assert str(module) == before


def test_a_module_without_marks_keeps_its_unused_functions() -> None:
    module = module_of("return %x : tensor<4xf32>", DOUBLE)
    before = str(module)
    assert lower(module, ONE_CPU).marks == 0
    assert str(module) == before


@pytest.mark.parametrize("version", ["0", "2"])
def test_an_unknown_version_is_an_error(version: str) -> None:
    text = mark("%0", "%x", version=version) + "\nreturn %0 : tensor<4xf32>"
    with pytest.raises(LoweringError) as caught:
        lower(module_of(text, DOUBLE), ONE_CPU)
    assert str(caught.value) == (
        f"mark 'hloom.double' has version {version}, and this hloom knows version 1: "
        "the module was written by another hloom"
    )


def test_a_decomposition_that_contains_itself_is_an_error() -> None:
    functions = f"""
  func.func private @first(%a: tensor<4xf32>) -> tensor<4xf32> {{
    {mark("%0", "%a").replace("@double", "@second")}
    return %0 : tensor<4xf32>
  }}
  func.func private @second(%a: tensor<4xf32>) -> tensor<4xf32> {{
    {mark("%0", "%a").replace("@double", "@first")}
    return %0 : tensor<4xf32>
  }}
"""
    body = mark("%0", "%x").replace("@double", "@first") + "\nreturn %0 : tensor<4xf32>"
    module = module_of(body, functions)
    with pytest.raises(LoweringError) as caught:
        lower(module, ONE_CPU)
    assert str(caught.value) == "decomposition @first contains itself: @first -> @second -> @first"


def test_lowering_is_the_same_every_time() -> None:
    body = [mark("%0", "%x"), mark("%1", "%0"), "return %1 : tensor<4xf32>"]
    texts = set()
    for _ in range(3):
        module = module_of("\n".join(body), DOUBLE)
        lower(module, ONE_CPU)
        texts.add(str(module))
    assert len(texts) == 1


def test_a_program_of_jax_with_a_mark() -> None:
    @jax.jit
    def f(x: jax.Array) -> jax.Array:
        double = jax.lax.composite(lambda y: y + y, name="hloom.double", version=1)
        return double(x)[1:] * 3.0

    x = np.arange(4, dtype=np.float32)
    module = f.lower(x).compiler_ir()
    expected = f(x)
    assert lower(module, ONE_CPU).marks == 1
    assert "composite" not in str(module)
    with module.context:
        [result] = stablehlo.eval_module(module, [ir.DenseElementsAttr.get(x)])
    np.testing.assert_array_equal(np.asarray(result), expected)


def test_functions_are_looked_up_once_for_all_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "\n".join(mark(f"%{n + 1}", f"%{n}" if n else "%x") for n in range(20))
    module = module_of(f"{body}\nreturn %20 : tensor<4xf32>", DOUBLE)
    looked_up = []
    functions = walk.functions

    def counted(module: ir.Module) -> dict[str, ir.Operation]:
        looked_up.append(module)
        return functions(module)

    monkeypatch.setattr(walk, "functions", counted)
    assert lower(module, ONE_CPU).marks == 20
    assert len(looked_up) == 1

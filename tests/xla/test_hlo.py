"""XLA's text of a module: instructions, computations, and how often each runs."""

from __future__ import annotations

import pytest

from hloom.xla.hlo import Array, HloInstruction, HloModule, Runs

pytestmark = pytest.mark.once

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%inner (x: f32[2]) -> f32[2] {
  ROOT %negate.1 = f32[2]{0} negate(%x)
}

%fused (p0: bf16[8,128], p1: s32[]) -> bf16[8,128] {
  %p0 = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %copy.1 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy(bf16[8,128]{1,0:T(8,128)(2,1)} %p0)
}

%body (c: (s32[], f32[2])) -> (s32[], f32[2]) {
  %call.1 = f32[2]{0} call(%c), to_apply=%inner
  %conditional.1 = f32[2]{0} conditional(%p, %c, %c), branch_computations={%inner, %fused}
}

%condition (c: (s32[], f32[2])) -> pred[] {
  %constant.7 = s32[]{:T(128)} constant(3)
  ROOT %compare = pred[] compare(%n, %constant.7), direction=LT
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %fusion = bf16[8,128]{1,0} fusion(%p, %p), calls=%fused, metadata={op_name="jit(\\"f\\")"}
  %while.1 = (s32[], /*index=1*/f32[2]) while(%t), condition=%condition, body=%body
  %while.2 = (s32[], f32[2]) while(%t), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
  %get = f32[2]{0} get-tuple-element((s32[], f32[2]) %while.2), index=1
  %reduce.1 = f32[] reduce(%get, %zero), dimensions={0}, to_apply=%sum
  ROOT %call.2 = f32[2]{0} call(%get), to_apply=%inner
}
"""


def test_instructions() -> None:
    module = HloModule(TEXT)
    assert module.entry == "main"
    assert module.computations[-1] == "main"
    get, copy = module.get("get"), module.get("copy.1")
    assert (get.opcode, get.operands, get.index, get.array) == (
        "get-tuple-element", ("while.2",), 1, Array("f32", (2,)),
    )  # fmt: skip
    assert copy.operands == ("p0",)
    assert (copy.array.bytes, copy.memory_space) == (2048, 1)
    assert module.get("fusion").operation == 'jit("f")'
    assert module.get("while.1").arrays == (Array("s32", ()), Array("f32", (2,)))
    assert module.get("while.1").array == Array("", ())
    assert module.root("fused") == copy
    assert module.caller(copy).name == "fusion"
    assert module.operand(get, 0).name == "while.2"
    assert module.operand(get, 1).opcode == ""
    assert module.get("nothing") == HloInstruction("nothing")


def test_how_often_computations_run() -> None:
    module = HloModule(TEXT)
    assert [module.trips(module.get(f"while.{n}")) for n in (1, 2)] == [3, 5]
    assert module.runs() == {
        "main": Runs(1, 0),
        "body": Runs(0, 8),
        "inner": Runs(1, 16),  # of the call behind the loops, and twice in each iteration
        "fused": Runs(0, 8),
    }
    assert module.runs(in_kernels=True)["fused"] == Runs(1, 8)
    assert list(module.runs())[:2] == ["main", "body"]


@pytest.mark.parametrize(
    ("type_", "size_bytes"),
    [
        ("pred[3]", 3),
        ("s4[4]", 2),
        ("f8e4m3fn[2,2]", 4),
        ("c64[]", 8),
        ("token[]", 0),
        ("f32[0]", 0),
    ],
)
def test_bytes(type_: str, size_bytes: int) -> None:
    one = HloModule(f"ENTRY %main () -> f32[] {{\n  %x = {type_} copy(%y)\n}}\n").get("x")
    assert one.array.bytes == size_bytes


def test_damaged_texts_are_read_as_far_as_they_go() -> None:
    circle = TEXT.replace("to_apply=%inner", "to_apply=%main")
    digits = TEXT.replace("constant(3)", f"constant({'9' * 5000})").replace(
        "f32[2]", f"f32[{'9' * 5000}]"
    )
    signs = TEXT.replace("constant(3)", "constant(-3)")
    for text in ("", "\n", "HloModule", TEXT[: len(TEXT) // 2], circle, digits, signs):
        module = HloModule(text)
        assert all(each.total >= 0 for each in module.runs(in_kernels=True).values())
        for name in module.computations:
            assert module.root(name).computation in (name, "")
            for one in module.of_computation(name):
                assert module.get(one.name, name) is one
                assert module.trips(one) >= 1
                assert all(each.bytes >= 0 for each in one.arrays)
    assert HloModule(signs).trips(HloModule(signs).get("while.1")) == 1


def test_calls_that_double_take_no_time() -> None:
    calls = "".join(
        f"%f{n} (x: f32[]) -> f32[] {{\n  %a{n} = f32[] call(%x), to_apply=%f{n - 1}\n"
        f"  ROOT %b{n} = f32[] call(%x), to_apply=%f{n - 1}\n}}\n"
        for n in range(1, 100)
    )
    text = f"%f0 (x: f32[]) -> f32[] {{\n  ROOT %x = f32[] parameter(0)\n}}\n{calls}"
    assert HloModule(text.replace("%f99 (", "ENTRY %f99 (")).runs()["f0"] == Runs(2**99, 0)

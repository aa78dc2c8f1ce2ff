"""XLA's text of a module: instructions, computations, and how often each runs.

Call stacks of Python in XLA's text. Collectives in XLA's schedule: which kernel, in which memory,
and beside how many products. Readers of what XLA made stand alone: capture, dumps and report share
them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support import ROOT

from hloom.passes.ir.names import SourceLine
from hloom.xla.call_stacks import CallStacks
from hloom.xla.hlo import Array, HloInstruction, HloModule, Runs
from hloom.xla.scheduled import collectives_table, scheduled_collectives

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


LIBRARY = "/venv/lib/python3.12/site-packages/flax/nnx/nn/linear.py"
STACKS_TEXT = f"""HloModule jit_step

FileNames
1 "/home/someone/train.py"
2 "{LIBRARY}"

FunctionNames
1 "<module>"
2 "Block.__call__"
3 "Linear.__call__"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=50 end_line=50 column=3 end_column=3}}
2 {{file_name_id=1 function_name_id=2 line=41 end_line=41 column=13 end_column=13}}
3 {{file_name_id=2 function_name_id=3 line=422 end_line=422 column=13 end_column=13}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=3}}
4 {{file_location_id=3 parent_frame_id=1}}
5 {{file_location_id=9 parent_frame_id=77}}

ENTRY %main {{
"""


@pytest.mark.parametrize(
    ("metadata", "source"),
    [
        (
            "stack_frame_id=3",
            SourceLine("/home/someone/train.py:41", f"{LIBRARY}:422", "Block.__call__"),
        ),
        ("stack_frame_id=2", SourceLine("/home/someone/train.py:41", "", "Block.__call__")),
        ("stack_frame_id=1", SourceLine("/home/someone/train.py:50", "", "<module>")),
        # Nothing but a library's.
        ("stack_frame_id=4", SourceLine(f"{LIBRARY}:422", "", "Linear.__call__")),
        # A damaged table.
        ("stack_frame_id=5", SourceLine()),
        ("stack_frame_id=6", SourceLine()),
        ('source_file="train.py" source_line=7', SourceLine("train.py:7")),
        ('op_name="a"', SourceLine()),
    ],
)
def test_the_users_line_of_a_call_stack(metadata: str, source: SourceLine) -> None:
    assert CallStacks(STACKS_TEXT).source(f"f32[] add(%a), metadata={{{metadata}}}") == source


def test_a_module_without_tables_has_no_lines() -> None:
    assert CallStacks("HloModule a\n").source("stack_frame_id=1") == SourceLine()


SCHEDULED_TEXT = """
HloModule jit_loss, num_partitions=8

%body.1 (carry: (s32[], f32[2])) -> (s32[], f32[2]) {
  %collective-permute-start = (bf16[8,4]{1,0}, bf16[8,4]{1,0}) collective-permute-start(%x.1), \
source_target_pairs={{0,1},{1,0}}, backend_config={"is_sync":false,\
"kernel_strategy":"KERNEL_STRATEGY_DEFAULT"}
  %gemm_fusion_dot.1 = bf16[8,2]{1,0} fusion(%x.1, %w.1), kind=kCustom, calls=%gemm
  %fusion.7 = bf16[8,2]{1,0} fusion(%gemm_fusion_dot.1), kind=kLoop, calls=%loop
  %collective-permute-done = bf16[8,4]{1,0} collective-permute-done(%collective-permute-start)
  %gemm_fusion_dot.2 = bf16[8,2]{1,0} fusion(%x.1, %w.1), kind=kCustom, calls=%gemm
}

%condition.1 (carry: (s32[], f32[2])) -> pred[] {
  %constant.1 = s32[] constant(3)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %while.1 = (s32[], f32[2]) while(%tuple.1), condition=%condition.1, body=%body.1
  %all-reduce-start = f32[4]{0:S(1)} all-reduce-start(%result.1), replica_groups={{0,1,2,3}}, \
to_apply=%add, backend_config={"is_sync":true,"kernel_strategy":"KERNEL_STRATEGY_TRITON_ONE_SHOT"}
  %cublas.1 = (bf16[8,2]{1,0}, s8[16]{0}) custom-call(%x.1), custom_call_target="__cublas$gemm"
  %all-reduce-done = f32[4]{0:S(1)} all-reduce-done(%all-reduce-start)
  %reduce-scatter.1 = f32[2]{0} reduce-scatter(%all-reduce-done), to_apply=%add
}
"""


def test_collectives_in_the_order_of_the_schedule() -> None:
    found = {each.kind: each for each in scheduled_collectives(SCHEDULED_TEXT)}
    assert list(found) == ["all-reduce", "reduce-scatter", "collective-permute"]
    summed, scattered, permuted = found.values()
    assert (permuted.bytes, permuted.runs, permuted.products) == (64, 3, 1)
    assert permuted.is_asynchronous
    assert (permuted.kernel, permuted.memory) == ("NCCL", 0)
    assert (summed.bytes, summed.runs, summed.devices, summed.products) == (16, 1, 4, 1)
    assert not summed.is_asynchronous
    assert (summed.kernel, summed.memory) == ("one-shot", 1)
    assert (scattered.is_asynchronous, scattered.products, scattered.kernel) == (False, 0, "")


def test_the_table_of_a_report() -> None:
    table = collectives_table(SCHEDULED_TEXT)
    assert [row[:5] for row in table.rows] == [
        (64, 3, 3, "NCCL", ""),
        (16, 1, 0, "one-shot", "S(1)"),
        (8, 1, 0, "", ""),
    ]
    assert collectives_table("ENTRY %main (x: f32[2]) -> f32[2] {\n}\n") is None


READERS = sorted((ROOT / "hloom" / "xla").glob("*.py"))
ABOVE = ("hloom.dumps", "hloom.compiling", "hloom_tools")


@pytest.mark.parametrize("file", READERS, ids=lambda file: file.name)
def test_a_reader_imports_nothing_above_it(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    ]
    assert not [name for name in imported if name and name.startswith(ABOVE)]


def test_the_readers_are_found() -> None:
    assert len(READERS) > 4

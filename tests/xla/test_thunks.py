"""What is read of XLA's thunk sequences: recorded ones, of an H100 and jaxlib 0.10.2."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Command

from hloom.xla.coverage import Coverage
from hloom.xla.hlo import HloModule
from hloom.xla.left_out import coverage
from hloom.xla.thunk_dump import read_sequence, thunk_dump
from hloom.xla.thunks import parse_names, parse_sequence, walk

LOOP = """\
000: kCommandBuffer [source       | next=003 (1)] \n\
    001: kCustomKernel [source | sink] loop_broadcast_fusion grid: [1, 1, 1] threads: [1, 1, 1]
    002: kCopy         [source | sink] kCopy
003: kWhile        [prev=000 (1) | next=000 (1)]   \n\
condition:
    004: kCustomKernel [source | sink] loop_compare_fusion grid: [1, 1, 1] threads: [1, 1, 1]
  body:
    005: kAsyncStart    [source       | next=000 (2)] stream=communication_stream[0], async_id=19
        006: kAllGather [source | sink] kAllGather
    000: kCommandBuffer [prev=005 (1) | next=000 (2)] \n\
        007: kCopy [source | sink] kCopy
    008: kAsyncDone     [source       | sink        ] async_id=19
    009: kDynamicSliceFusion [source | sink] params=1, results=1
        010: kCopy [source | sink] kCopy
    011: kCustomKernel [source | sink] loop_add_fusion grid: [1, 1, 1] threads: [1, 1, 1]
012: kCustomCall [prev=003 (1) | next=013 (1)] kCustomCall
013: kCustomCall [prev=012 (1) | sink        ] kCustomCall
014: kCustomCall [prev=013 (1) | sink        ] kCustomCall
"""

SEQUENTIAL = """\
001: kCustomKernel [source       | next=004 (1)] wrapped_transpose grid: [16, 1, 1] threads: [1, 1]
004: kSequential   [prev=001 (1) | next=005 (1)]   002: kCopy         [source | sink] kCopy
  003: kTriangularSolve [prev=002 (1) | sink        ] (no description)
005: kConditional  [prev=001 (1) | sink        ]   \n\
  branch_0:
    006: kCustomKernel [source | sink] loop_add_fusion grid: [128, 1, 1] threads: [128, 1, 1]
  branch_1:
    007: kFft [source | sink] (no description)
"""

NAMES = """\
thunk_metadata {
  thunk_info {
    profile_annotation: "command_buffer_1"
  }
  thunk_kind: "kCommandBuffer"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "callback.1"
    thunk_id: 12
  }
  thunk_kind: "kCustomCall"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "legacy.1"
    thunk_id: 13
  }
  thunk_kind: "kCustomCall"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "typed.1"
    thunk_id: 14
  }
  thunk_kind: "kCustomCall"
}
"""

HLO = """\
HloModule jit_step, is_scheduled=true

FileNames
1 "/home/someone/train.py"
2 "/home/someone/model.py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5 end_line=5 column=3 end_column=3}
2 {file_name_id=2 function_name_id=1 line=36 end_line=36 column=13 end_column=13}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

ENTRY %main {
  %callback.1 = f32[] custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback", \
api_version=API_VERSION_TYPED_FFI, metadata={op_name="jit(step)/io_callback" stack_frame_id=2}
  %legacy.1 = f32[] custom-call(%a), custom_call_target="old", metadata={op_name="jit(step)/old" \
source_file="train.py" source_line=7}
  ROOT %typed.1 = f32[] custom-call(%a), custom_call_target="mine", \
api_version=API_VERSION_TYPED_FFI
}
"""


def covered(sequence: str) -> Coverage:
    return coverage(parse_sequence(sequence), parse_names(NAMES), HloModule(HLO))


def test_thunks_nest_by_indentation() -> None:
    graph, loop, *calls = parse_sequence(LOOP)
    assert [each.number for each in graph.children] == [1, 2]
    assert [(each.kind, each.label) for each in loop.children] == [
        ("kCustomKernel", "condition"),
        ("kAsyncStart", "body"),
        ("kCommandBuffer", "body"),
        ("kAsyncDone", "body"),
        ("kDynamicSliceFusion", "body"),
        ("kCustomKernel", "body"),
    ]
    assert [each.number for each in calls] == [12, 13, 14]


def test_the_first_of_a_sequence_stands_in_its_line() -> None:
    _, sequence, branches = parse_sequence(SEQUENTIAL)
    assert [each.kind for each in sequence.children] == ["kCopy", "kTriangularSolve"]
    assert [each.label for each in branches.children] == ["branch_0", "branch_1"]


def test_coverage_counts_work_and_not_lists() -> None:
    found = covered(LOOP)
    assert (found.captured, found.thunks, found.graphs) == (3, 14, 2)
    assert str(found) == "3 of 14 thunks in 2 graphs"
    assert covered(SEQUENTIAL).thunks == 6


def test_each_thunk_left_out_has_a_reason() -> None:
    reasons = [(each.kind, each.reason) for each in covered(LOOP).left_out]
    assert reasons == [
        ("kWhile", "in it: a collective"),
        ("kCustomKernel", "the condition of a loop that is not captured"),
        ("kAsyncStart", "a collective"),
        ("kAllGather", "a collective"),
        ("kAsyncDone", "a collective"),
        ("kDynamicSliceFusion", "a slice at a loop's counter, copied by the host"),
        ("kCopy", "a slice at a loop's counter, copied by the host"),
        ("kCustomKernel", "too few beside each other for a graph"),
        ("kCustomCall", "a host callback"),
        ("kCustomCall", "a legacy custom call, @old"),
        ("kCustomCall", "a custom call without the command-buffer trait, @mine"),
    ]
    assert [each.reason for each in covered(SEQUENTIAL).left_out] == [
        "too few beside each other for a graph",
        "too few beside each other for a graph",
        "a library call that XLA does not capture",
        "in it: a library call that XLA does not capture",
        "too few beside each other for a graph",
        "a library call that XLA does not capture",
    ]


def test_what_a_graph_holds_keeps_no_loop_out() -> None:
    loop = """\
001: kWhile        [source | sink]
condition:
    002: kCustomKernel [source | sink] loop_compare_fusion
  body:
    000: kCommandBuffer [source | sink]
        014: kCustomCall [source | sink] kCustomCall
    003: kAllReduce [source | sink] kAllReduce
"""
    assert covered(loop).left_out[0].reason == "in it: a collective"


def test_hloom_s_own_kernels_have_the_trait() -> None:
    [left_out] = coverage(
        parse_sequence("014: kCustomCall [source | sink] kCustomCall"),
        {14: "call.1"},
        HloModule('  %call.1 = u32[] custom-call(), custom_call_target="hloom.token.v1"\n'),
    ).left_out
    assert left_out.reason == "too few beside each other for a graph"


def test_the_source_line_is_found() -> None:
    callback, legacy, typed = covered(LOOP).left_out[-3:]
    assert (callback.operation, callback.line) == (
        "jit(step)/io_callback",
        "/home/someone/model.py:36",
    )
    assert (legacy.operation, legacy.line) == ("jit(step)/old", "train.py:7")
    assert (typed.instruction, typed.operation, typed.line) == ("typed.1", "", "")


def test_a_line_that_is_no_thunk_is_told() -> None:
    with pytest.raises(ValueError, match="not a line of a thunk sequence: 'what is this'"):
        parse_sequence("001: kCopy [source | sink] kCopy\nwhat is this\n")


def test_names_are_those_of_thunks_with_a_number() -> None:
    assert parse_names(NAMES) == {12: "callback.1", 13: "legacy.1", 14: "typed.1"}
    assert len(list(walk(parse_sequence(LOOP)))) == 16


def write_dump(folder: Path, *, with_graphs: bool) -> Path:
    stem = "module_0001.jit_step"
    sequence = folder / f"{stem}.thunk_sequence.txt"
    sequence.write_text(SEQUENTIAL)
    (folder / f"{stem}.thunk_metadata.txt").write_text(NAMES)
    (folder / f"{stem}.sm_9.0a_gpu_after_optimizations.txt").write_text(HLO)
    if with_graphs:
        (folder / f"{stem}.thunk_sequence_after_thunk_passes.txt").write_text(LOOP)
    return sequence


def test_the_sequence_with_graphs_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert read_sequence(write_dump(tmp_path, with_graphs=False)).graphs == 0
    assert read_sequence(write_dump(tmp_path, with_graphs=True)).graphs == 2


def test_a_dump_folder_of_the_program_s_own_is_left_alone(tmp_path: Path) -> None:
    write_dump(tmp_path, with_graphs=True)
    with thunk_dump({"xla_dump_to": str(tmp_path)}) as dump:
        assert dump.options == {}
        assert dump.read() is None, "what was there before is not of this compile"
        (tmp_path / "module_0002.jit_step.thunk_sequence.txt").write_text(SEQUENTIAL)
        found = dump.read()
    assert found.thunks == 6
    assert tmp_path.exists()


def test_a_folder_of_hloom_s_own_is_gone_afterwards() -> None:
    with thunk_dump({}) as dump:
        folder = Path(str(dump.options["xla_dump_to"]))
        write_dump(folder, with_graphs=True)
        assert dump.read() is not None
    assert not folder.exists()


def test_the_command_line_shows_a_dump(tmp_path: Path, command: Command) -> None:
    write_dump(tmp_path, with_graphs=True)
    shown = command("capture", tmp_path).shown
    assert "21.4%" in shown
    assert "model.py:36" in shown
    assert "a host callback" in shown


def test_the_command_line_tells_of_mistakes(tmp_path: Path, command: Command) -> None:
    assert "no *.thunk_sequence.txt in it" in command("capture", tmp_path).complaint
    assert "No such file" in command("capture", tmp_path / "nothing.mlir").complaint

"""Call stacks of Python in XLA's text."""

from __future__ import annotations

import pytest

from hloom.passes.ir.names import SourceLine
from hloom.xla.call_stacks import CallStacks

pytestmark = pytest.mark.once

LIBRARY = "/venv/lib/python3.12/site-packages/flax/nnx/nn/linear.py"
TEXT = f"""HloModule jit_step

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
    assert CallStacks(TEXT).source(f"f32[] add(%a), metadata={{{metadata}}}") == source


def test_a_module_without_tables_has_no_lines() -> None:
    assert CallStacks("HloModule a\n").source("stack_frame_id=1") == SourceLine()

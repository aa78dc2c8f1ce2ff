"""What a step fills, from a schedule in XLA's text."""

from __future__ import annotations

from benchmarks.fills.filled import Filled, filled

TEXT = """\
HloModule jit_f, is_scheduled=true

%fused (param_0: f32[]) -> f32[4,8] {
  ROOT %broadcast.9 = f32[4,8]{1,0} broadcast(%param_0), dimensions={}
}

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {
  %arg = (s32[], f32[8]{0}) parameter(0)
  %constant.1 = f32[] constant(0)
  %inner = f32[8]{0} broadcast(%constant.1), dimensions={}
  %read = f32[8]{0} fusion(%arg, %inner), kind=kLoop, calls=%fused
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %constant.2 = s32[] constant(0)
  %scalar = s32[] copy(%constant.2)
  %zeros = f32[4,8]{1,0} fusion(), kind=kLoop, calls=%fused
  %two = (f32[8]{0}, pred[8]{0}) fusion(%constant.2), kind=kLoop, calls=%fused
  %bits = s4[8]{0} iota(), iota_dimension=0
  %any = f32[4,8]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  %sum = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %copy = f32[8]{0} copy(%x)
  ROOT %loop = (s32[], f32[8]{0}) while(%tuple), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_kernels_that_read_no_argument() -> None:
    """In the loop as often as it runs; what is fused, scalars and buffers that nobody fills not."""
    at_entry = 4 * 8 * 4 + (8 * 4 + 8) + 8 // 2
    assert filled(TEXT) == Filled(at_entry_bytes=at_entry, in_loops_bytes=5 * 8 * 4, kernels=3)

# ruff: noqa: E501 (XLA's text has long lines)
"""What the kernels of XLA's scheduled text move and compute."""

from __future__ import annotations

import pytest

from hloom.xla.hlo import HloModule
from hloom.xla.kernels import HloKernel, KernelKind, Loops, kernels_of, loops_of

TEXT = """HloModule jit_step, is_scheduled=true

%sliced (stack: f32[64,1024], at: s32[]) -> f32[1,1024] {
  %stack = f32[64,1024]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,1024]{1,0} dynamic-slice(%stack, %at, %zero), dynamic_slice_sizes={1,1024}
  ROOT %sine = f32[1,1024]{1,0} sine(%row)
}

%updated (stack: f32[64,1024], row: f32[1,1024], at: s32[]) -> f32[64,1024] {
  %stack = f32[64,1024]{1,0} parameter(0)
  %row = f32[1,1024]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %set = f32[64,1024]{1,0} dynamic-update-slice(%stack, %row, %at, %zero)
}

%multiplied (left: bf16[128,256], right: bf16[256,512]) -> bf16[128,512] {
  %left = bf16[128,256]{1,0} parameter(0)
  %right = bf16[256,512]{1,0} parameter(1)
  ROOT %dot = bf16[128,512]{1,0} dot(%left, %right), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (state: (s32[], f32[64,1024])) -> (s32[], f32[64,1024]) {
  %state = (s32[], f32[64,1024]{1,0}) parameter(0)
  %at = s32[] get-tuple-element(%state), index=0
  %stack = f32[64,1024]{1,0} get-tuple-element(%state), index=1
  %read = f32[1,1024]{1,0} fusion(%stack, %at), kind=kLoop, calls=%sliced
  %write = f32[64,1024]{1,0} fusion(%stack, %read, %at), kind=kLoop, calls=%updated
  ROOT %next = (s32[], f32[64,1024]{1,0}) tuple(%at, %write)
}

%condition (state: (s32[], f32[64,1024])) -> pred[] {
  %state = (s32[], f32[64,1024]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (stack: f32[64,1024], left: bf16[128,256], right: bf16[256,512], image: f32[8,32,32,16], filter: f32[3,3,16,64]) -> f32[64,1024] {
  %stack = f32[64,1024]{1,0} parameter(0)
  %left = bf16[128,256]{1,0} parameter(1)
  %right = bf16[256,512]{1,0} parameter(2)
  %image = f32[8,32,32,16]{3,2,1,0} parameter(3)
  %filter = f32[3,3,16,64]{3,2,1,0} parameter(4)
  %product = bf16[128,512]{1,0} fusion(%left, %right), kind=kCustom, calls=%multiplied
  %library = (bf16[128,512]{1,0}, s8[4096]{0}) custom-call(%left, %right), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %convolved = (f32[8,32,32,64]{3,2,1,0}, u8[0]{0}) custom-call(%image, %filter), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$convForward"
  %away = (f32[64,1024]{1,0:S(5)}, f32[64,1024]{1,0}, u32[]) copy-start(%stack)
  %there = f32[64,1024]{1,0:S(5)} copy-done(%away)
  %none = s32[] constant(0)
  %start = (s32[], f32[64,1024]{1,0}) tuple(%none, %stack)
  %loop = (s32[], f32[64,1024]{1,0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"64"}}
  ROOT %end = f32[64,1024]{1,0} get-tuple-element(%loop), index=1
}
"""
ROW, STACK = 4 * 1024, 4 * 64 * 1024
PRODUCT = 2 * (128 * 256 + 256 * 512), 2 * 128 * 512, 2 * 128 * 256 * 512


@pytest.fixture(scope="module")
def kernels() -> dict[str, HloKernel]:
    return {each.one.name: each for each in kernels_of(HloModule(TEXT))}


def test_control_flow_and_views_are_no_kernels(kernels: dict[str, HloKernel]) -> None:
    assert list(kernels) == ["product", "library", "convolved", "away", "read", "write"]


def test_a_slice_of_a_stack_counts_as_the_slice(kernels: dict[str, HloKernel]) -> None:
    read = kernels["read"]
    assert (read.read_bytes, read.written_bytes) == (ROW + 4, ROW)
    assert (read.runs.outside, read.runs.inside) == (0, 64)


def test_an_update_in_place_counts_as_the_update(kernels: dict[str, HloKernel]) -> None:
    write = kernels["write"]
    assert (write.kind, write.read_bytes, write.written_bytes) == (KernelKind.SLICES, ROW + 4, ROW)


@pytest.mark.parametrize("name", ["product", "library"])
def test_a_product_has_work(kernels: dict[str, HloKernel], name: str) -> None:
    product = kernels[name]
    assert (product.kind, product.bits) == (KernelKind.PRODUCT, 16)
    assert (product.read_bytes, product.written_bytes, product.flops) == PRODUCT


def test_a_convolution_has_work(kernels: dict[str, HloKernel]) -> None:
    convolved = kernels["convolved"]
    assert (convolved.kind, convolved.bits) == (KernelKind.CONVOLUTION, 32)
    assert convolved.flops == 2 * (8 * 32 * 32 * 64) * (3 * 3 * 16)
    assert convolved.written_bytes == 4 * 8 * 32 * 32 * 64


def test_a_copy_to_the_host_is_one(kernels: dict[str, HloKernel]) -> None:
    away = kernels["away"]
    assert (away.kind, away.read_bytes, away.written_bytes) == (KernelKind.HOST_COPY, STACK, STACK)


def test_loops_are_counted() -> None:
    assert loops_of(HloModule(TEXT)) == Loops(iterations=64, unknown=0)
    unknown = TEXT.replace('"known_trip_count":{"n":"64"}', "")
    assert loops_of(HloModule(unknown)) == Loops(iterations=1, unknown=1)


@pytest.mark.parametrize(
    ("tile", "kind"),
    [
        ('"1","1","16","1024"', KernelKind.REDUCTION),
        ('"1","2","1024","1024"', KernelKind.REDUCTION),
        ('"2","8","1","1024"', KernelKind.SCATTERED_REDUCTION),
        ('"1","1","16","512"', KernelKind.SCATTERED_REDUCTION),
        ('"8","1024"', KernelKind.REDUCTION),
    ],
)
def test_rows_of_a_block_may_be_apart(tile: str, kind: KernelKind) -> None:
    text = (
        "HloModule softmax, is_scheduled=true\n\n"
        "%sum (x: f32[8,8,1024,1024]) -> f32[8,8,1024,1024] {\n"
        "  %x = f32[8,8,1024,1024]{3,2,1,0} parameter(0)\n"
        "  %zero = f32[] constant(0)\n"
        "  %summed = f32[8,8,1024]{2,1,0} reduce(%x, %zero), dimensions={3}, to_apply=%add\n"
        "  ROOT %out = f32[8,8,1024,1024]{3,2,1,0} broadcast(%summed), dimensions={0,1,2}\n}\n\n"
        "ENTRY %main (x: f32[8,8,1024,1024]) -> f32[8,8,1024,1024] {\n"
        "  %x = f32[8,8,1024,1024]{3,2,1,0} parameter(0)\n"
        "  ROOT %y = f32[8,8,1024,1024]{3,2,1,0} fusion(%x), kind=kCustom, calls=%sum, "
        'backend_config={"fusion_backend_config":{"kind":"__triton","block_level_fusion_config":'
        f'{{"num_warps":"8","output_tiles":[{{"sizes":[{tile}]}}]}}}}}}\n}}\n'
    )
    assert [each.kind for each in kernels_of(HloModule(text))] == [kind]


@pytest.mark.parametrize("end", range(0, len(TEXT), 211))
def test_a_damaged_text_raises_nothing(end: int) -> None:
    for text in (TEXT[:end], TEXT[end:], TEXT[:end] + TEXT[end + 40 :]):
        for each in kernels_of(HloModule(text)):
            assert each.bytes >= 0
            assert each.flops >= 0


def test_a_cycle_of_views_ends() -> None:
    text = TEXT.replace(
        "ROOT %sine = f32[1,1024]{1,0} sine(%row)",
        "%one = f32[64,1024]{1,0} bitcast(%two)\n"
        "  %two = f32[64,1024]{1,0} bitcast(%one)\n"
        "  ROOT %sine = f32[64,1024]{1,0} bitcast(%stack, %two)",
    ).replace(
        "%two = f32[64,1024]{1,0} bitcast(%one)", "%two = f32[64,1024]{1,0} bitcast(%one, %stack)"
    )
    assert len(list(kernels_of(HloModule(text)))) == 6


PARTS = """HloModule parts, is_scheduled=true

%gate (parts: f32[4,64,2048], at: s32[], stack: f32[256,64,512]) -> f32[256,64,512] {
  %stack = f32[256,64,512]{2,1,0} parameter(2)
  %parts = f32[4,64,2048]{2,1,0} parameter(0)
  %zero = f32[] constant(0)
  %summed = f32[64,2048]{1,0} reduce(%parts, %zero), dimensions={0}, to_apply=%add
  %split = f32[64,512]{1,0} slice(%summed), slice={[0:64], [0:512]}
  %gate.1 = f32[64,512]{1,0} multiply(%split, %split)
  %row = f32[1,64,512]{2,1,0} bitcast(%gate.1)
  %at = s32[] parameter(1)
  %first = s32[] constant(0)
  ROOT %set = f32[256,64,512]{2,1,0} dynamic-update-slice(%stack, %row, %at, %first, %first)
}

%sum (parts: f32[4,64,2048]) -> f32[64,2048] {
  %parts = f32[4,64,2048]{2,1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %summed = f32[64,2048]{1,0} reduce(%parts, %zero), dimensions={0}, to_apply=%add
}

ENTRY %main (parts: f32[4,64,2048], at: s32[], stack: f32[256,64,512]) -> f32[64,2048] {
  %parts = f32[4,64,2048]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %stack = f32[256,64,512]{2,1,0} parameter(2)
  %set = f32[256,64,512]{2,1,0} fusion(%parts, %at, %stack), kind=kLoop, calls=%gate
  %columns = f32[64,2048]{1,0} fusion(%parts), kind=kInput, calls=%sum
  ROOT %loop = f32[64,2048]{1,0} fusion(%parts), kind=kLoop, calls=%sum
}
"""


def test_a_slice_of_what_a_kernel_computes_takes_that_share_of_its_operands() -> None:
    sets, columns, loop = kernels_of(HloModule(PARTS))
    of_one = 4 * 64 * 512
    assert (sets.read_bytes, sets.written_bytes) == (4 * of_one + 4, of_one)
    assert sets.lane_ops == 64 * 512
    assert columns.read_bytes == loop.read_bytes == 16 * of_one
    # A loop adds up the parts of a product element by element, next to each other.
    kinds = [sets.kind, columns.kind, loop.kind]
    assert kinds == [KernelKind.SLICES, KernelKind.COLUMN_REDUCTION, KernelKind.ELEMENTWISE]

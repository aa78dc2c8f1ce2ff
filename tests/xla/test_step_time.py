"""The seconds of a step by XLA's text."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from hloom import targets
from hloom.passes.framework.target import Target
from hloom.targets import deviceless
from hloom.xla.hlo import HloInstruction, HloModule, Runs
from hloom.xla.kernels import HloKernel, KernelKind, kernels_of
from hloom.xla.step_time import (
    REACHED,
    NoStepTimeError,
    Reached,
    StepTime,
    kernel_seconds,
    step_time,
)

H200 = targets.load("h200")
PEAK = Reached(
    bandwidth={KernelKind.ELEMENTWISE: 1.0, KernelKind.REDUCTION: 0.5},
    products=1.0,
    convolutions=0.5,
    lanes=1.0,
    launch_s=1e-6,
    product_s=1e-6,
    convolution_s=1e-6,
    iteration_s=2e-6,
)
NOTHING = HloKernel(
    one=HloInstruction(),
    kind=KernelKind.ELEMENTWISE,
    read_bytes=0,
    written_bytes=0,
    lane_ops=0,
    flops=0,
    bits=0,
    runs=Runs(1, 0),
)


@pytest.mark.parametrize(
    ("kernel", "wanted_s"),
    [
        ({"read_bytes": 4_800_000_000}, 1e-3),
        ({"written_bytes": 4_800_000_000, "kind": KernelKind.REDUCTION}, 2e-3),
        ({"written_bytes": 4_800_000_000, "kind": KernelKind.TRANSPOSE}, 1e-3),
        (
            {"flops": int(H200.speed.matrix_rate(16)), "bits": 16, "kind": KernelKind.PRODUCT},
            1.0 + 1e-6,
        ),
        (
            {"flops": int(H200.speed.matrix_rate(32)), "bits": 32, "kind": KernelKind.CONVOLUTION},
            2.0 + 1e-6,
        ),
        ({"lane_ops": int(H200.speed.vector_flops_per_s / 2)}, 1.0),
        ({}, 0.0),
    ],
)
def test_a_kernel_takes_the_longest_of_its_parts(kernel: dict[str, int], wanted_s: float) -> None:
    each = dataclasses.replace(NOTHING, **kernel)  # type: ignore[arg-type]
    assert kernel_seconds(each, H200.speed, PEAK) == pytest.approx(wanted_s + 1e-6, rel=1e-6)


def text(trips: str = '"known_trip_count":{"n":"7"}', header: str = ", is_scheduled=true") -> str:
    return f"""HloModule jit_step{header}

%body (at: f32[1024]) -> f32[1024] {{
  %at = f32[1024]{{0}} parameter(0)
  ROOT %more = f32[1024]{{0}} sine(%at)
}}

%condition (at: f32[1024]) -> pred[] {{
  %at = f32[1024]{{0}} parameter(0)
  ROOT %go = pred[] constant(true)
}}

ENTRY %main (x: f32[1024]) -> f32[1024] {{
  %x = f32[1024]{{0}} parameter(0)
  ROOT %loop = f32[1024]{{0}} while(%x), condition=%condition, body=%body, \
backend_config={{{trips}}}
}}
"""


def told(hlo: str, target: Target = H200) -> StepTime:
    return step_time(hlo, target, PEAK)


def test_a_loop_takes_its_kernels_and_its_iterations() -> None:
    found = told(text())
    assert found.launches == 7
    assert found.loops_s == pytest.approx(7 * 2e-6)
    assert found.seconds == pytest.approx(found.loops_s + sum(found.by_kind.values()))
    assert sum(found.by_line.values()) == pytest.approx(sum(found.by_kind.values()))


@pytest.mark.parametrize(
    ("hlo", "target", "why"),
    [
        (text(trips=""), H200, "1 loop without a known trip count"),
        (text(header=""), H200, "XLA's text has no schedule"),
        ("", H200, "XLA's text has no schedule"),
        (text().partition("ENTRY")[0], H200, "XLA's text has no kernels"),
        (text(), targets.load("v5p"), "no kernels of v5p were timed"),
        (text().rpartition("}")[0], H200, "damaged: a part of it is missing"),
        (text().replace("}\n\n%condition", "\n%condition", 1), H200, "a part of it is missing"),
        (text().replace("sine(%at)", "sine(%gone)"), H200, "does not define 'gone'"),
        (text().replace("sine(", "hypersine("), H200, "operation 'hypersine' is not known"),
        *(
            (text().replace("%more = f32[1024]", f"%more = {type_}"), H200, f"damaged: {why}")
            for type_, why in {
                "f32[-1024]": "'more' has a size that is no number",
                "f32[<=1024]": "'more' has a size that is no number",
                "f32[9999999999999999999]": "'more' has a size that is no number",
                "f32[999999999999,999999999999]": "'more' has an array larger than the memory",
                "f32[99999999,1024]": "'more' has an array larger than the memory",
                "f999[1024]": "'more' has elements of 999 bits",
            }.items()
        ),
        *(
            (
                text().replace("sine(%at)", f"dot(%at, %at), {sums}"),
                H200,
                "damaged: 'more' has a dimension that its operand does not",
            )
            for sums in (
                "lhs_contracting_dims={-1}, rhs_contracting_dims={0}",
                "lhs_contracting_dims={7}, rhs_contracting_dims={0}",
                "lhs_contracting_dims={0}",
            )
        ),
        *(
            (text(trips=f'"known_trip_count":{{"n":"{trips}"}}'), H200, why)
            for trips, why in {
                10**17: "damaged: a step of 3e+11 s",
                10**18: "1 loop without a known trip count",
                -1: "1 loop without a known trip count",
            }.items()
        ),
    ],
)
def test_what_is_not_known_is_not_told(hlo: str, target: Target, why: str) -> None:
    with pytest.raises(NoStepTimeError, match=re.escape(why)):
        told(hlo, target)


def test_a_gpu_that_was_not_timed_is_not_told() -> None:
    a100 = targets.load("a100_sxm_80")
    assert a100.compute_capability not in REACHED
    with pytest.raises(NoStepTimeError, match="no kernels of a100_sxm_80 were timed"):
        step_time(text(), a100)
    assert step_time(text(), a100, PEAK).launches == 7


def test_a_small_loop_runs_in_the_cache() -> None:
    [inside] = kernels_of(HloModule(text()))
    assert inside.iteration_bytes == inside.bytes == 2 * 4096
    [whole] = kernels_of(HloModule(text().replace("f32[1024]", "f32[1024,1024,1024]")))
    rates = [
        each.bytes / (kernel_seconds(each, H200.speed, PEAK) - PEAK.launch_s)
        for each in (inside, whole)
    ]
    assert rates == pytest.approx([PEAK.cache_bytes_per_s, H200.speed.bytes_per_s], rel=0.01)


@pytest.mark.parametrize(
    ("target", "mask", "window", "products"),
    [
        ("Softmax", "NO_MASK", 0, 1),
        ("Softmax", "CAUSAL", 0, 0.5),
        ("Softmax", "CAUSAL", 256, 0.25),
        ("SoftmaxBackward", "NO_MASK", 0, 2.5),
    ],
)
def test_attention_counts_the_products_of_its_scores(
    target: str, mask: str, window: int, products: float
) -> None:
    config = (
        'backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": '
        '{"element_type": "BF16", "dimensions": ["4", "8", "1024", "1024"], "layout": {}}, '
        f'"mask_type": "{mask}", "sliding_window_length": {window}}}}}'
    )
    call = f'custom-call(%at, %at, %at), custom_call_target="__cudnn$fmha{target}", {config}'
    hlo = text().replace("sine(%at)", call).replace("f32[1024]{0}", "bf16[4,1024,8,64]{3,2,1,0}")
    [kernel] = kernels_of(HloModule(hlo))
    assert (kernel.kind, kernel.bits) == (KernelKind.ATTENTION, 16)
    assert kernel.flops == 4 * 4 * 8 * 1024 * 1024 * 64 * products
    matrix_s = kernel.flops / H200.speed.matrix_rate(16)
    assert matrix_s < kernel_seconds(kernel, H200.speed, PEAK) < 4 * matrix_s + 1e-6


@pytest.mark.parametrize(
    "target", ["__cudnn$fmhaSoftmax", "__gpu$xla.gpu.triton", "convert_layout"]
)
def test_a_call_of_unknown_work_has_no_seconds(target: str) -> None:
    call = f'custom-call(%at), custom_call_target="{target}"'
    with pytest.raises(NoStepTimeError, match="the work of a call of"):
        told(text().replace("sine(%at)", call))


def test_a_damaged_text_has_no_seconds() -> None:
    huge = ",".join(["999999999999999999"] * 20)
    with pytest.raises(NoStepTimeError, match="damaged"):
        told(text().replace("f32[1024]", f"f32[{huge}]"))


def test_exchanges_in_an_asynchronous_call_have_no_seconds() -> None:
    hlo = (
        text()
        .replace(
            "  ROOT %loop",
            "  %sent = ((f32[1024]), f32[1024]) call-start(%x), to_apply=%other\n  ROOT %loop",
        )
        .replace(
            "%condition (",
            "%other (at: f32[1024]) -> f32[1024] {\n  %at = f32[1024]{0} parameter(0)\n"
            "  ROOT %sum = f32[1024]{0} all-reduce(%at)\n}\n\n%condition (",
            1,
        )
    )
    with pytest.raises(NoStepTimeError, match="exchanges"):
        told(hlo)


@pytest.mark.h100
def test_a_compiled_step_is_near_its_products_time() -> None:
    """Large products alone: the seconds are those of their FLOPs at the rate that they reach."""
    deviceless.prepare()
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16, sharding=deviceless.placement("h200"))
    hlo = jax.jit(lambda x: x @ x @ x).lower(x).compile().as_text()
    rate = H200.speed.matrix_rate(16) * REACHED[9, 0].products
    assert step_time(hlo, H200).seconds == pytest.approx(2 * 2 * 8192**3 / rate, rel=0.05)

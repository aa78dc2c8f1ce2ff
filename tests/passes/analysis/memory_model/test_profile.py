"""The memory of a program over its kernels: the model's peak, its owners and their lines."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from hloom.passes.analysis.memory_model.peak import buffer_timeline, simulate
from hloom.passes.analysis.memory_model.profile import MemoryProfile, memory_profile
from hloom.passes.analysis.memory_model.trace import OpTrace
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.structure import read, written
from hloom.passes.ir.op_facts import BufferUse
from hloom_tools.report.memory import curve_of_text

LAYERS, ROWS, WIDTH = 4, 64, 32
ONE_BYTES = 4 * ROWS * WIDTH


def prepared(function: Callable[..., Any], *arguments: Any, **options: Any) -> ir.Module:
    """The module as `remat` gets it, in a clone."""
    return module_after(jax.jit(function, **options).lower(*arguments))


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def chain(x: jax.Array, kernels: list[jax.Array]) -> jax.Array:
    for kernel in kernels:
        x = jnp.tanh(x @ kernel)
    return x.sum()


def scanned(x: jax.Array, kernels: jax.Array) -> jax.Array:
    def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ kernel), None

    return jax.lax.scan(layer, x, kernels)[0].sum()


def branching(flag: jax.Array, x: jax.Array) -> jax.Array:
    def long_way(x: jax.Array) -> jax.Array:
        y = x @ x
        return jnp.sort(y, 0) @ y @ x

    return jax.lax.cond(flag, long_way, lambda x: x, x)


KERNELS = [spec(WIDTH, WIDTH)] * LAYERS
PROGRAMS = {
    "chain": lambda: prepared(jax.grad(chain, argnums=1), spec(ROWS, WIDTH), KERNELS),
    "scan": lambda: prepared(
        jax.grad(scanned, argnums=1), spec(ROWS, WIDTH), spec(LAYERS, WIDTH, WIDTH)
    ),
    "branches": lambda: prepared(branching, jax.ShapeDtypeStruct((), "bool"), spec(WIDTH, WIDTH)),
    "donated": lambda: prepared(lambda x, g: (x - g, g.sum()), spec(8, 8), spec(8, 8),
                                donate_argnums=0),
    "nothing": lambda: prepared(lambda x: x, spec(8, 8)),
}  # fmt: skip


@pytest.fixture(params=PROGRAMS)
def module(request: pytest.FixtureRequest) -> ir.Module:
    return PROGRAMS[request.param]()


def test_the_peak_is_what_the_model_predicts(module: ir.Module) -> None:
    curve, predicted = memory_profile(module), predict(module)
    assert curve.temp_bytes == max((point.bytes for point in curve.points), default=0)
    assert curve.temp_bytes == predicted.temp_bytes
    assert curve.step_bytes == predicted.step_bytes


def test_the_owners_make_up_the_peak(module: ir.Module) -> None:
    curve = memory_profile(module)
    assert sum(owner.bytes for owner in curve.owners) == curve.temp_bytes
    assert all(owner.start <= curve.peak_at <= owner.end for owner in curve.owners)
    assert list(curve.owners) == sorted(curve.owners, key=lambda owner: -owner.bytes)


def test_a_curve_survives_json(module: ir.Module) -> None:
    curve = memory_profile(module)
    assert read(MemoryProfile, json.loads(json.dumps(written(curve)))) == curve


def test_memory_grows_forward_and_shrinks_backward() -> None:
    curve = memory_profile(PROGRAMS["chain"]())
    sizes = [point.bytes for point in curve.points]
    assert sizes[: curve.peak_at + 1] == sorted(sizes[: curve.peak_at + 1])
    forward = [n for n, point in enumerate(curve.points) if "transpose(" not in point.name]
    assert max(forward) < len(sizes) - 2 * LAYERS
    kept = [owner for owner in curve.owners if owner.name.endswith("/tanh")]
    assert len(kept) >= LAYERS - 1
    assert all("test_profile.py:" in owner.line for owner in kept)
    (end,) = {owner.end for owner in kept if owner.start == min(o.start for o in kept)}
    assert all(owner.end <= end for owner in kept)  # the first layer is read last


def test_a_loop_is_shown_by_its_body() -> None:
    curve = memory_profile(PROGRAMS["scan"]())
    inside = [number for number, point in enumerate(curve.points) if point.in_loop]
    assert len(inside) >= 6
    outside = [owner for owner in curve.owners if not owner.in_loop]
    assert any(owner.in_loop for owner in curve.owners)
    stacks = [o for o in outside if o.type == f"tensor<{LAYERS}x{ROWS}x{WIDTH}xf32>"]
    for stack in stacks:
        assert stack.bytes == LAYERS * ONE_BYTES
        assert stack.start <= inside[0]
        assert stack.end >= inside[len(inside) // 2]
    # What the loop stores for the backward pass is named after what makes it in the loop's body.
    stored = [stack for stack in stacks if "/while/body/" in stack.name]
    assert stored
    layer = "return x + jnp.tanh(x @ kernel), None"
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if layer in text
    )
    assert {stack.line for stack in stored} == {f"{__file__}:{line}"}


def test_of_branches_the_larger_one_is_shown() -> None:
    curve = memory_profile(PROGRAMS["branches"]())
    assert any("sort" in point.name for point in curve.points)
    assert not any(point.in_loop for point in curve.points)


def test_a_text_is_prepared_first() -> None:
    lowered = jax.jit(jax.grad(scanned, argnums=1)).lower(
        spec(ROWS, WIDTH), spec(LAYERS, WIDTH, WIDTH)
    )
    text = str(lowered.compiler_ir().operation.get_asm(enable_debug_info=True))
    assert "func.call" in text or " call @" in text
    assert curve_of_text(text) == memory_profile(PROGRAMS["scan"]())


def test_what_jax_makes_itself_has_the_line_of_the_call() -> None:
    curve = curve_of_text(
        """
        func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
          %a = call @relu(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32> loc(#call)
          %b = "stablehlo.dot"(%a, %a)
            : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc(#dot)
          return %b : tensor<8x8xf32>
        }
        func.func private @relu(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
          %0 = stablehlo.tanh %x : tensor<8x8xf32> loc("tanh")
          return %0 : tensor<8x8xf32>
        }
        #call = loc("jit(f)/jit(relu)"("model.py":31:4))
        #dot = loc("jit(f)/dot"("model.py":32:4))
        """
    )
    assert [(point.name, point.line) for point in curve.points] == [
        ("jit(f)/jit(relu)/tanh", "model.py:31"),
        ("jit(f)/dot", "model.py:32"),
    ]
    [owner] = curve.owners
    assert (owner.name, owner.line, owner.bytes) == ("jit(f)/jit(relu)/tanh", "model.py:31", 256)


def test_who_reads_an_unchanged_carry_reads_what_went_into_the_loop() -> None:
    curve = curve_of_text(
        """
        func.func public @main(%x: tensor<64xf32>, %n: tensor<i32>) -> tensor<64xf32> {
          %kept = stablehlo.cosine %x : tensor<64xf32>
          %two:2 = stablehlo.while(%i = %n, %carry = %kept) : tensor<i32>, tensor<64xf32>
            cond {
              %least = stablehlo.constant dense<3> : tensor<i32>
              %more = stablehlo.compare LT, %i, %least : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %more : tensor<i1>
            } do {
              %next = stablehlo.add %i, %i : tensor<i32>
              stablehlo.return %next, %carry : tensor<i32>, tensor<64xf32>
            }
          %one = stablehlo.constant dense<1.0> : tensor<1xf32>
          %out = stablehlo.dynamic_update_slice %two#1, %one, %two#0
            : (tensor<64xf32>, tensor<1xf32>, tensor<i32>) -> tensor<64xf32>
          %sum = stablehlo.add %out, %kept : tensor<64xf32>
          return %sum : tensor<64xf32>
        }
        """
    )
    # Both its copy to be written over and what is read afterwards.
    assert [owner.bytes for owner in curve.owners if owner.bytes > 4] == [256, 256]


def test_a_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="not a module of StableHLO"):
        curve_of_text("func.func @main(")


@pytest.mark.once
@pytest.mark.parametrize("seed", range(30))
def test_a_timeline_peaks_where_the_simulation_does(seed: int) -> None:
    line = random_line(random.Random(seed))
    found, peak = buffer_timeline(line), simulate(line)
    assert found.peak_bytes == peak.bytes
    at = found.bytes.index(peak.bytes)
    assert found.positions[at] == peak.position
    alive = {(one.value, one.bytes) for one in found.live_ranges if one.start <= at <= one.end}
    assert alive == set(peak.alive)


def random_line(random_: random.Random) -> OpTrace:
    kinds = [work for work in BufferUse if work not in (BufferUse.SHIFT, BufferUse.ALIAS)]
    line = OpTrace(
        sizes=[random_.randrange(1, 9) for _ in range(2)],
        inputs=frozenset({0, 1}),
        writes_over=True,
    )
    for _ in range(14):
        work = random_.choice(kinds)
        count = 0 if work is BufferUse.FREE else random_.randrange(1, 3)
        reads = random_.sample(range(len(line.sizes)), count)
        line.uses.append(work)
        line.reads.append(reads[:1] if work is BufferUse.VIEW else reads)
        line.makes.append([len(line.sizes)])
        same = work in (BufferUse.VIEW, BufferUse.IN_PLACE)
        line.sizes.append(line.sizes[reads[0]] if same else random_.randrange(1, 9))
        line.inner.append(random_.randrange(3) if work is BufferUse.WHOLE else 0)
    line.uses.append(BufferUse.WHOLE)  # a line of one kernel at least
    line.reads.append([len(line.sizes) - 1])
    line.makes.append([len(line.sizes)])
    line.sizes.append(1)
    line.inner.append(0)
    line.returned = frozenset({len(line.sizes) - 1, len(line.sizes) - 3})
    return line


@pytest.mark.once
def test_a_program_of_no_kernels_has_no_peak() -> None:
    curve = MemoryProfile((), 0, (), 8, 8, 0)
    assert (curve.temp_bytes, curve.base_bytes, curve.step_bytes) == (0, 16, 16)

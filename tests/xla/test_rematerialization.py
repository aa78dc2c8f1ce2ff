"""What XLA's own rematerialization adds is counted, and told in the line and the report."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from support.records import recorded

from hloom.targets import deviceless
from hloom.xla.hlo import HloModule
from hloom.xla.rematerialization import rematerialized
from hloom_tools.report.cost import AddedCost

pytestmark = pytest.mark.once

TEXT = """\
HloModule jit_step, is_scheduled=true

%fused (param_0: f32[8]) -> f32[8] {
  %param_0 = f32[8]{0} parameter(0)
  ROOT %tanh.1 = f32[8]{0} tanh(%param_0), metadata={op_name="jit(step)/hloom.remat/tanh"}
}

ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %loop_fusion = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %loop_fusion.remat = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %loop_fusion.remat2.1 = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %moved.remat = f32[8]{0} copy(%x)
  %gte.remat = f32[8]{0} get-tuple-element(%pair), index=0
  %wrapped.rematch = f32[8]{0} copy(%loop_fusion.remat2.1)
  ROOT %tuple = (f32[8]{0}, f32[8]{0}) tuple(%loop_fusion, %loop_fusion.remat)
}
"""


def test_clones_that_add_work_are_counted_by_their_names() -> None:
    assert rematerialized(TEXT) == 2
    assert rematerialized(TEXT.replace(".remat", ".re")) == 0
    assert rematerialized("damaged .remat = (") == 0


def test_the_line_and_the_report_tell_them() -> None:
    record = recorded(platform="cuda", temp_bytes=None, xla_recomputed=3)
    assert ": XLA recomputes 3 more, " in record.headline
    assert record.summary()["xla_recomputed"] == 3
    cost = AddedCost(True, None, None, 0.1, (), xla_recomputed=3)
    assert cost.remark.endswith("; XLA itself recomputes 3 more")


@pytest.mark.h100
def test_what_xla_adds_in_too_little_memory_is_what_is_counted() -> None:
    """All instructions that a compile with a limit of 2 % of the memory has more, and no others."""

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = jnp.tanh(x @ w) * jnp.cos(x)
        return (x**2).mean()

    deviceless.prepare()
    where = deviceless.placement("h100_sxm")
    ws = [jax.ShapeDtypeStruct((2048, 2048), "float32", sharding=where)] * 8
    x = jax.ShapeDtypeStruct((65536, 2048), "float32", sharding=where)
    lowered = jax.jit(jax.grad(loss)).lower(ws, x)
    plenty, little = (
        lowered.compile({"xla_gpu_memory_limit_slop_factor": percent}).as_text()
        for percent in (95, 2)
    )
    assert rematerialized(plenty) == 0
    assert rematerialized(little) == fusions(little) - fusions(plenty) > 0


def fusions(text: str) -> int:
    module = HloModule(text)
    return sum(one.opcode == "fusion" for one in module.of_computation(module.entry))

"""What groups of microbatches cost in front of a pipeline, in `fit`'s seconds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices.meshes import mesh_of
from support.modules import module_after

from hloom.passes.fit import Fit
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Speed, Target
from hloom.passes.pipeline.schedule import PipelineSchedule
from hloom.passes.planner.candidates import PlannerSettings
from hloom.passes.planner.variants import Variant, Variants

STAGES, LAYERS, WIDTH, BATCH = 4, 8, 64, 16

WORK = Speed(
    matrix_flops_per_s=((32, 1e9),), vector_flops_per_s=1e15, bytes_per_s=1e18, kernel_s=0.0
)
"""Nothing but products takes time."""

LINKS = Speed(
    matrix_flops_per_s=((32, 1e18),),
    vector_flops_per_s=1e18,
    bytes_per_s=1e18,
    kernel_s=0.0,
    link_bytes_per_s=1e6,
)
"""Nothing but what is sent takes time."""


def loss(p: jax.Array, x: jax.Array) -> jax.Array:
    return (lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p)[0] ** 2).mean()


def prepared(target: Target) -> ir.Module:
    mesh = mesh_of(AxisType.Auto, stage=STAGES)
    placed = [NamedSharding(mesh, spec) for spec in (PartitionSpec("stage"), PartitionSpec())]
    arguments = np.ones((LAYERS, WIDTH, WIDTH), "float32"), np.ones((BATCH, WIDTH), "float32")
    lowered = jax.jit(jax.value_and_grad(loss), in_shardings=placed).lower(*arguments)
    return module_after(lowered, "inline,drop-constraints,cse", target)


def variants_of(speed: Speed, behind: str) -> Variants:
    """The step, in front of some passes."""
    target = Target(speed=speed)
    return Variants(prepared(target), target, PlannerSettings(behind=behind))


def in_groups(variants: Variants, groups: int) -> Variant:
    found = variants.of(f"accumulate{{microbatches={groups}}}" if groups > 1 else "")
    assert found is not None
    return found


def times_as_long(speed: Speed, groups: int, behind: str) -> float:
    """How many times as long a step with groups takes, in the seconds that `fit` compares."""
    variants = variants_of(speed, behind)
    with variants.base.of.module.context, ir.Location.unknown():
        return 1 + in_groups(variants, groups).added_seconds / variants.base.step_seconds


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_each_group_has_its_bubble(groups: int) -> None:
    """Each has all of the ticks that its microbatches take, in which devices idle as before."""

    def ticks(microbatches: int) -> float:
        """Of the work of the batch."""
        return PipelineSchedule(STAGES, microbatches, 1).ticks / microbatches

    microbatches = min(BATCH // groups, 2 * STAGES)
    wanted = ticks(microbatches) / ticks(2 * STAGES)
    assert times_as_long(WORK, groups, "pipeline") == pytest.approx(wanted, rel=0.02)
    assert times_as_long(WORK, groups, "") == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_each_group_sends_in_all_of_its_ticks(groups: int) -> None:
    """Forward and backward; where links alone take time there are as many microbatches as rows."""
    variants = variants_of(LINKS, "pipeline{repeats=1}")
    with variants.base.of.module.context, ir.Location.unknown():
        behind = in_groups(variants, groups).behind
        sent_s = sum(
            each.seconds(LINKS) or 0.0
            for each in behind.model.device.exchanged.exchanges
            if each.kind == "collective-permute"
        )
    ticks = PipelineSchedule(STAGES, BATCH // groups, 1).ticks
    assert sent_s == pytest.approx(2 * groups * ticks * WIDTH * 4 / 1e6)


def test_a_group_that_is_too_small_for_the_microbatches_is_no_move() -> None:
    variants = variants_of(Speed(), "pipeline{microbatches=8}")
    with variants.base.of.module.context, ir.Location.unknown():
        assert variants.of("accumulate{microbatches=2}") is not None
        assert variants.of("accumulate{microbatches=4}") is None


def test_fit_knows_the_pipeline_behind_it() -> None:
    [fit, _] = Pipeline.parse("fit{budget=1GiB},pipeline{repeats=2}").passes
    assert isinstance(fit, Fit)
    assert fit.settings.behind == "pipeline{repeats=2}"
    assert fit == Pipeline.parse(f"{fit},pipeline{{repeats=2}}").passes[0]
    assert "behind" not in str(fit)

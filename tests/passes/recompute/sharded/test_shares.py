"""Sizes on one device in loops that `remat` has rewritten: as if Shardy saw them rewritten."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import Mesh

from benchmarks.programs.sharded import DATA, MESHES, MODEL, ShardedDecoder
from hloom.passes.analysis.autodiff import has_remat_name
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.memory_model.tpu import XLA_TPU
from hloom.passes.analysis.pricing import Pricing, Rates
from hloom.passes.analysis.shardings.shardings import Shardings
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import CPU_SPEED, Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.types import tensor_bytes
from hloom.passes.ir.while_rewriter import Replacements
from hloom.passes.recompute.scan.plan import BlockScans
from hloom.passes.recompute.scan.rewrite import apply_scan, finish_scans

LARGE = 2**16
"""Bytes: what is smaller is no part of a figure."""


def decoder(kind: str) -> ShardedDecoder:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[kind]), (DATA, MODEL))
    return ShardedDecoder(mesh, layers=2)


@pytest.mark.parametrize("kind", MESHES)
def test_what_a_rewrite_makes_has_the_share_that_shardy_gives_it(kind: str) -> None:
    module = clone_module(decoder(kind).lower().compiler_ir())
    Pipeline.parse("inline,cse").run(module, target=Target())
    shards, replaced = Shardings.of(module), Replacements()
    pricing = Pricing(CPU_SPEED, Rates(0.0, 0.0))
    with module.context, ir.Location.unknown():
        blocks = list(walk.code_blocks(module.operation))
        for plan in [plan for block in blocks for plan in BlockScans(block, 0).plan(pricing)]:
            apply_scan(plan, replaced)
        finish_scans(replaced)
    after, again = shards.with_made(replaced.like), Shardings.of(module)
    cloned = [op for op in walk.operations(module.operation) if has_remat_name(op)]
    values = [
        value for op in cloned for value in op.results if (tensor_bytes(value.type) or 0) > LARGE
    ]
    assert values
    assert [after.share(value) for value in values] == [again.share(value) for value in values]


def test_sizes_of_what_was_made_are_by_the_rules_of_the_target() -> None:
    module = decoder("both").lower().compiler_ir()
    device = DeviceView.of(module, XLA_TPU)
    known = next(
        value
        for op in walk.operations(module.operation)
        for value in op.results
        if device.shardings.share(value) < 1 and (tensor_bytes(value.type) or 0) > LARGE
    )
    with module.context, ir.Location.unknown():
        made = ir.Operation.create("test.made", [known.type]).results[0]
    after = device.with_made({made: known})
    whole = XLA_TPU.bytes_of(known.type)
    assert whole is not None
    assert after.rules is XLA_TPU
    assert after.bytes_of(made) == math.ceil(whole * device.shardings.share(known))
    assert after.bytes_of(known) == device.bytes_of(known) < whole

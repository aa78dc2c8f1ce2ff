"""`attention` finds every way to write it, and gives its values and all its gradients."""

from __future__ import annotations

import pytest
from support.attention.runs import assert_same, rewritten
from support.attention.ways import WAYS

from benchmarks.attention_random.outcomes import SPEC
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import rows_of
from hloom.passes.framework.target import Target

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", WAYS)
def test_every_way(name: str) -> None:
    way = WAYS[name]()
    module = way.module()
    changed, run = rewritten(module)
    found = rows_of(run.plan, "Attention in a fused kernel")
    assert len(found) == way.attentions, run.summary
    assert sum(row["gradients"] for row in found) == way.gradients
    assert "left" not in run.summary
    assert_same(module, changed, way.arguments)
    again = Pipeline.parse(SPEC).run(changed, target=Target()).runs[-1]
    assert again.empty, again.summary

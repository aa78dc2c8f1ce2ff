"""`attention` finds every way to write it, and gives its values and all its gradients.

Random programs with attention, and mutants of them: what the pass changes gives what it gave.
"""

from __future__ import annotations

from collections import Counter

import pytest
from support import often
from support.attention.runs import assert_same, rewritten
from support.attention.ways import WAYS

from benchmarks.attention_random.outcomes import SPEC, mutant_outcome, program_outcome
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


def test_random_programs() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(often(25, 500)):
        program, outcome = program_outcome(seed)
        assert outcome.kind in ("fused", "left"), (seed, program, outcome)
        kinds[outcome.kind] += 1
    assert kinds["fused"] > 2 * kinds["left"]


def test_mutants_are_left_or_right() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(often(25, 300)):
        found = mutant_outcome(seed)
        if found is not None:
            program, changed, outcome = found
            assert outcome.kind in ("fused", "left"), (seed, changed, program, outcome)
            kinds[outcome.kind] += 1
    assert min(kinds["fused"], kinds["left"]) > 0

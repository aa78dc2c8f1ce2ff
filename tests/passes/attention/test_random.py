"""Random programs with attention, and mutants of them: what the pass changes gives what it gave."""

from __future__ import annotations

from collections import Counter

import pytest
from support import often

from benchmarks.attention_random.outcomes import mutant_outcome, program_outcome

pytestmark = pytest.mark.long


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

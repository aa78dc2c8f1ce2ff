"""Every rule by its definition: an operation on chunks gives chunks of its result, or terms of it.

Operands are whole, split along a random axis, in one piece or as a factor of it, or partial: then
they are reduced first. Numbers are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.flows.drawn import drawn_program
from support.flows.operations import COMPILED, FAMILIES, Draw, Operation
from support.flows.runs import (
    assert_chunks_agree,
    compiled,
    evaluated,
    flow_of,
    lowered,
    results_of,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rule_holds(name: str) -> None:
    assert examples_with_a_loop(FAMILIES[name], evaluated, 40) >= 4, "they say nothing of the rule"


@pytest.mark.parametrize("name", COMPILED)
def test_a_rule_of_what_is_compiled_holds(name: str) -> None:
    assert examples_with_a_loop(COMPILED[name], compiled, 12) >= 2, "they say nothing of the rule"


def examples_with_a_loop(
    family: Callable[[Draw], Operation], evaluate: Callable[..., Any], examples: int
) -> int:
    """How many of the drawn programs return what a loop makes. All give the same in chunks."""
    found = 0

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal found
        drawn = drawn_program(data.draw, family(data.draw))
        if drawn.places:
            module = lowered(drawn.function, *drawn.arguments)
            flow = flow_of(module, *drawn.places, barrier=True)
            found += any(text.startswith(("split", "partial")) for text in results_of(flow))
            count = data.draw(st.sampled_from([2, 3]))
            assert_chunks_agree(module, flow, drawn.arguments, count=count, evaluate=evaluate)

    check()
    return found

"""The programs that the benchmarks of memory compile: they heed a policy for their layers."""

from __future__ import annotations

import pytest

from benchmarks.common.flops import executed_flops
from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS

pytestmark = pytest.mark.once


def flops(name: str, policy: str | None) -> int:
    return executed_flops(HARD_SUBJECTS[name].lower(policy, None).compiler_ir()).products


@pytest.mark.parametrize("name", sorted(HARD_SUBJECTS.keys() - {"checkpointed_gpt"}))
def test_layers_are_recomputed_under_a_policy(name: str) -> None:
    assert flops(name, "nothing_saveable") > flops(name, None)


def test_a_policy_takes_the_place_of_the_one_that_is_there() -> None:
    assert flops("checkpointed_gpt", "dots_saveable") < flops("checkpointed_gpt", None)


def test_names_are_of_one_program_each() -> None:
    titles = [subject.title for subject in (SUBJECTS | HARD_SUBJECTS).values()]
    assert len(set(titles)) == len(SUBJECTS) + len(HARD_SUBJECTS)

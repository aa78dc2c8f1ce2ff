"""Whether a plan is the recorded one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hloom_tools.replay.decisions import other_plans

pytestmark = pytest.mark.once

USERS, LIBRARY = "/home/user/train.py:41", "/v/site-packages/flax/linear.py:4"
VALUE = {"name": "jit(f)/mul", "source": {"line": USERS, "library": LIBRARY, "function": "f"}}


def others(made: dict[str, Any], recorded: dict[str, Any]) -> tuple[str, ...]:
    runs: Any = [SimpleNamespace(name="remat", plan={"kept": [made]})]
    dump: Any = SimpleNamespace(
        planned=[SimpleNamespace(index=1, name="remat", json={"kept": [recorded]})]
    )
    return other_plans(runs, dump)


@pytest.mark.parametrize(
    "made",
    [
        VALUE,
        VALUE | {"source": {"line": USERS}},
        # A place in the dumped text.
        {"source": {"line": "-:3:7"}},
    ],
)
def test_what_the_dumped_text_has_not_makes_no_other_plan(made: dict[str, Any]) -> None:
    assert others(made, VALUE) == ()


@pytest.mark.parametrize(
    "recorded",
    [
        VALUE | {"source": {"line": "/home/user/train.py:42"}},
        VALUE | {"name": "jit(f)/add"},
        VALUE | {"bytes": 4},
        {"name": "jit(f)/mul", "source": {"line": "/v/site-packages/flax/linear.py:5"}},
    ],
)
def test_another_value_makes_another_plan(recorded: dict[str, Any]) -> None:
    assert others(VALUE, recorded) == ("'remat' (kept)",)
    assert others(recorded, VALUE) == ("'remat' (kept)",)

"""Whether a plan is the recorded one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hloom_tools.replay.decisions import other_plans

pytestmark = pytest.mark.once

USERS, LIBRARY = "/home/user/train.py:41", "/v/site-packages/flax/linear.py:4"
VALUE = {"name": "jit(f)/mul", "source": USERS, "library": LIBRARY}


def others(made: dict[str, Any], recorded: dict[str, Any]) -> tuple[str, ...]:
    runs: Any = [SimpleNamespace(name="remat", plan={"kept": [made]})]
    dump: Any = SimpleNamespace(
        planned=[SimpleNamespace(index=1, name="remat", json={"kept": [recorded]})]
    )
    return other_plans(runs, dump)


@pytest.mark.parametrize(
    "recorded",
    [
        VALUE,
        # An older dump names the library's line alone.
        {"name": "jit(f)/mul", "source": LIBRARY},
    ],
)
def test_lines_of_an_older_dump_make_no_other_plan(recorded: dict[str, Any]) -> None:
    assert others(VALUE, recorded) == ()


@pytest.mark.parametrize(
    "recorded",
    [
        VALUE | {"source": "/home/user/train.py:42"},
        VALUE | {"name": "jit(f)/add"},
        VALUE | {"bytes": 4},
        {"name": "jit(f)/mul", "source": "/v/site-packages/flax/linear.py:5"},
    ],
)
def test_another_value_makes_another_plan(recorded: dict[str, Any]) -> None:
    assert others(VALUE, recorded) == ("'remat' (kept)",)
    assert others(recorded, VALUE) == ("'remat' (kept)",)

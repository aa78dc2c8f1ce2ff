"""How many random examples a test draws.

``TESTS_EXAMPLES=2000 python -m pytest FILE`` draws as many as it says, others each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ASKED = "TESTS_EXAMPLES"

_share = 1.0
"""Of the examples that a test says, those that are drawn."""


def draw_share(share: float) -> None:
    """Tests that are collected after this draw so much of their examples, and the first ones."""
    global _share
    _share = share


def drawn(examples: int) -> settings:
    """So many examples, the same in each run, or what is asked for."""
    return settings(
        max_examples=int(os.environ.get(_ASKED, max(1, examples * _share))),
        deadline=None,
        derandomize=_ASKED not in os.environ,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )

"""How many random examples a test draws.

``TESTS_EXAMPLES=2000 python -m pytest FILE`` draws as many as it says, others each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ASKED = "TESTS_EXAMPLES"


def drawn(examples: int) -> settings:
    """So many examples, the same in each run, or what is asked for."""
    return settings(
        max_examples=int(os.environ.get(_ASKED, examples)),
        deadline=None,
        derandomize=_ASKED not in os.environ,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )

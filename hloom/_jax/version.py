"""The versions of JAX that hloom is tested with."""

from __future__ import annotations

import jax

OLDEST_TESTED = (0, 10, 2)
FIRST_UNTESTED = (0, 13)


def is_tested_version() -> bool:
    """Whether this JAX is one that hloom is tested with."""
    version: tuple[int, ...] = jax.__version_info__
    return OLDEST_TESTED <= version < FIRST_UNTESTED

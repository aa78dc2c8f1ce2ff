"""Every pass of the registry as tests run it on small programs, so that no test has a list."""

from __future__ import annotations

import dataclasses
from typing import Any

from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import Budget, Bytes
from hloom.passes.framework.pipeline import Pipeline

_LEAST = {"min_bytes": Bytes(16), "budget": Budget(percent=0.0, least=True)}
"""Values of options with which passes act on small programs."""


def small_passes() -> tuple[Pass, ...]:
    """Each pass with the options of its example, and the least sizes and budget."""
    return tuple(map(_small, registry.all_passes()))


def _small(cls: type[Pass]) -> Pass:
    step = next(step for step in Pipeline.parse(cls.example).passes if type(step) is cls)
    given: dict[str, Any] = {
        name: value for name, value in _LEAST.items() if getattr(step, name, None) is not None
    }
    return dataclasses.replace(step, **given)

"""Whether JAX's persistent cache served a compile."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclass
class CacheOutcome:
    """Whether a compile was served by the persistent cache; None where the cache is off."""

    hit: bool | None


_watched = threading.local()


@contextmanager
def watch_cache() -> Iterator[CacheOutcome]:
    """Sees whether the compile inside the block, in this thread, hits the persistent cache."""
    _listen_to_cache()
    config: Any = jax.config
    is_on = bool(config.jax_compilation_cache_dir and config.jax_enable_compilation_cache)
    _watched.outcome = outcome = CacheOutcome(False if is_on else None)
    try:
        yield outcome
    finally:
        _watched.outcome = None


@functools.cache
def _listen_to_cache() -> None:
    jax.monitoring.register_event_listener(_on_event)


def _on_event(event: str, **_: Any) -> None:
    outcome: CacheOutcome | None = getattr(_watched, "outcome", None)
    if outcome is not None and event == _CACHE_HIT:
        outcome.hit = True

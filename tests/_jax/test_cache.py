"""What hloom/_jax/cache.py takes for granted of JAX.

The event /jax/compilation_cache/cache_hits.
"""

from __future__ import annotations

import threading

import jax

from hloom._jax.cache import watch_cache


def test_a_cache_hit_is_seen_in_its_own_thread_only() -> None:
    def hit() -> None:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")

    was_on = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", "/nonexistent")
    try:
        with watch_cache() as outcome:
            thread = threading.Thread(target=hit)
            thread.start()
            thread.join()
            assert outcome.hit is False
            hit()
            assert outcome.hit is True
        with watch_cache() as outcome:
            pass
        hit()
        assert outcome.hit is False
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update("jax_enable_compilation_cache", was_on)


def test_no_cache_is_neither_hit_nor_miss() -> None:
    with watch_cache() as outcome:
        pass
    assert outcome.hit is None

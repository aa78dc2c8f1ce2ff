"""JAX's persistent cache: whether it served a compile, and hloom's own entries in it."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

_CACHE_HIT = "/jax/compilation_cache/cache_hits"


def is_persistent_cache_on() -> bool:
    """Whether JAX has a cache folder for executables, and caching is on."""
    config: Any = jax.config
    return bool(config.jax_compilation_cache_dir and config.jax_enable_compilation_cache)


@dataclass
class CacheOutcome:
    """Whether a compile was served by the persistent cache; None where the cache is off."""

    hit: bool | None


_watched = threading.local()


@contextmanager
def watch_cache() -> Iterator[CacheOutcome]:
    """Records whether the compile inside the block, in this thread, hits the persistent cache."""
    _listen_to_cache()
    _watched.outcome = outcome = CacheOutcome(False if is_persistent_cache_on() else None)
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


@dataclass(frozen=True)
class CacheEntry:
    """An entry of hloom's own in JAX's cache folder, under its size limit, evicted as any other."""

    key: str
    is_writer: bool
    _cache: Any

    def read(self) -> bytes | None:
        """Returns the entry's value; None where it does not exist. Raises OSError."""
        try:
            found: bytes | None = self._cache.get(self.key)
        except FileNotFoundError:  # another process has removed it between two steps of JAX
            return None
        return found

    def write(self, value: bytes, seconds: float) -> None:
        """Stores a value that took `seconds` to compute, if JAX would cache an executable that took
        as long.

        One process of several writes, as for executables. Others read nothing or the whole value
        meanwhile. Raises OSError.
        """
        config: Any = jax.config
        if not self.is_writer or seconds < config.jax_persistent_cache_min_compile_time_secs:
            return
        if self._cache.eviction_enabled:  # then JAX writes and reads behind a lock
            self._cache.put(self.key, value)
        elif not self._path.exists():
            written = self._path.with_name(f"{self.key}.{os.getpid()}.{threading.get_ident()}")
            try:
                written.write_bytes(value)
                written.replace(self._path)
            finally:
                written.unlink(missing_ok=True)

    def forget(self) -> None:
        """Deletes the entry: JAX's cache never overwrites an existing one. Raises OSError."""
        if self.is_writer:
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Any:
        return self._cache.path / f"{self.key}-cache"


def cache_entry(
    module: Any, devices: Any, options: Any, backend: Any, *, more: str, is_writer: bool
) -> CacheEntry | None:
    """Returns the entry with JAX's cache key of a program and ``more``; None where the cache is
    off.

    None also where JAX recompiles to compare with the cached executable.
    """
    from jax._src import cache_key, compilation_cache

    config: Any = jax.config
    if (
        not is_persistent_cache_on()
        or config.jax_compilation_cache_check_contents
        or not compilation_cache.is_cache_used(backend)
    ):
        return None
    cache = compilation_cache._get_cache(backend)
    if cache is None:
        return None
    program = cache_key.get(module, devices, options, backend)
    digest = hashlib.sha256(f"{program}\n{more}".encode()).hexdigest()
    return CacheEntry(f"{program.rpartition('-')[0]}-hloom-{digest}", is_writer, cache)

"""JAX's persistent cache: whether it served a compile, and entries of hloom's own in it."""

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
    """Whether JAX has a folder to keep executables in, and is to."""
    config: Any = jax.config
    return bool(config.jax_compilation_cache_dir and config.jax_enable_compilation_cache)


@dataclass
class CacheOutcome:
    """Whether a compile was served by the persistent cache; None where the cache is off."""

    hit: bool | None


_watched = threading.local()


@contextmanager
def watch_cache() -> Iterator[CacheOutcome]:
    """Sees whether the compile inside the block, in this thread, hits the persistent cache."""
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
    """An entry of hloom's own: in JAX's folder, under its limit of size, evicted as any other."""

    key: str
    is_writer: bool
    _cache: Any

    def read(self) -> bytes | None:
        """Its value; None where there is none. Raises OSError."""
        try:
            found: bytes | None = self._cache.get(self.key)
        except FileNotFoundError:  # another process has removed it between two steps of JAX
            return None
        return found

    def write(self, value: bytes, seconds: float) -> None:
        """Keeps a value that took so long to make: where JAX would keep an executable that did.

        One process of several writes, as of executables. What others read at that time is nothing,
        or all of it. Raises OSError.
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
        """Removes it: JAX's cache leaves an entry as it is that it has. Raises OSError."""
        if self.is_writer:
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Any:
        return self._cache.path / f"{self.key}-cache"


def cache_entry(
    module: Any, devices: Any, options: Any, backend: Any, *, more: str, is_writer: bool
) -> CacheEntry | None:
    """The entry of what JAX's key of a program and ``more`` name; None where the cache is off.

    So it is where JAX compares what it makes anew with what it has.
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

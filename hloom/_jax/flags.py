"""hloom's flags among JAX's: those that a user sets, and one that keeps calls in Python."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

FLAG = "jax_hloom"
MODULES_FLAG = "jax_hloom_modules"
MIN_SIZE_FLAG = "jax_hloom_min_size"
STEP_FLAG = "jax_hloom_step"


class Flag(Protocol):
    """One configuration option of JAX."""

    @property
    def value(self) -> Any:
        """Returns the value in this thread."""

    def __call__(self, value: Any) -> AbstractContextManager[None]:
        """Sets the value in this thread inside a `with` block."""


def declare_flag(name: str, doc: str, validate: Callable[[Any], None]) -> Flag:
    """Declares a flag: for `jax_hloom` the variable `JAX_HLOOM`, `jax.config.update` and a context
    manager at once.

    A change of its value recompiles. Until a value is set, `jax.config.values` does not list the
    flag: plugins load when a backend starts, which may be inside of a test, and JAX's own test
    harness fails a test that changes what is listed. `validate` may raise to refuse a new value;
    that from the environment is not validated here, since JAX would swallow the error at this
    point.
    """
    from jax._src import config

    declared = False

    def validator(value: Any) -> None:
        if declared:
            validate(value)

    flag: Flag = config.string_or_object_state(
        name=name,
        default=None,
        help=doc,
        validator=validator,
        # The flag in the jit key alone is not enough: tracing and lowering are cached by trace
        # context.
        include_in_jit_key=True,
        include_in_trace_context=True,
    )
    _hide_until_set(name, flag)
    declared = True
    return flag


_STEP_DOC = "hloom's own: whether it watches this thread. Never set it."
_step_flag_lock = threading.Lock()


def step_flag() -> Flag:
    """Declares `jax_hloom_step`: while it has a value, each call in this thread goes through
    Python.

    JAX calls an executable from C++ once it is cached for the arguments and the values of such
    flags. Another value causes no tracing and no compile; with the old one calls go through C++
    again. The value should be the same each time: JAX keeps a cache entry for each value, and many
    entries make a function's look-ups slow (5 ms a call after 5000 values).
    """
    with _step_flag_lock:
        return _declare_step_flag()


@functools.cache
def _declare_step_flag() -> Flag:
    from jax._src import config

    flag: Flag = config.string_or_object_state(
        name=STEP_FLAG,
        default=None,
        help=_STEP_DOC,
        include_in_jit_key=True,
        include_in_trace_context=False,
    )
    _hide_until_set(STEP_FLAG, flag)
    return flag


_declared_values: dict[str, Any] = {}
"""The value that each flag was declared with: that of its environment variable, or None."""


def _hide_until_set(name: str, flag: Flag) -> None:
    """Leaves a flag out of `jax.config.values` while its value is the one it was declared with."""
    _declared_values[name] = flag.value
    _install_hiding()


@functools.cache
def _install_hiding() -> None:
    from jax._src import config

    def listed(self: config.Config) -> dict[str, Any]:
        values = {name: holder.value for name, holder in self._value_holders.items()}
        for name, declared in _declared_values.items():
            if values.get(name) == declared:
                values.pop(name, None)
        return values

    config.Config.values = property(listed)  # type: ignore[method-assign, assignment]

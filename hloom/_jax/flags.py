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
    """JAX's state of one configuration option."""

    @property
    def value(self) -> Any:
        """The value in this thread."""

    def __call__(self, value: Any) -> AbstractContextManager[None]:
        """Sets the value in this thread inside a `with` block."""


def declare_flag(name: str, doc: str, validate: Callable[[Any], None]) -> Flag:
    """Declares a flag: for `jax_hloom` the variable `JAX_HLOOM`, `jax.config.update` and a context
    manager at once.

    A change of its value recompiles. `validate` may raise to refuse a new value; the value from
    the environment is not validated here, since JAX would swallow the error at this point.
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
        # The jit key alone is not enough: tracing and lowering are cached by trace context.
        include_in_jit_key=True,
        include_in_trace_context=True,
    )
    declared = True
    return flag


_STEP_DOC = "hloom's own: whether it watches this thread. Never set it."
_step_flag_lock = threading.Lock()


def step_flag() -> Flag:
    """`jax_hloom_step`: while it has a value, each call in this thread goes through Python.

    JAX calls an executable from C++ as soon as it knows it for the arguments and the values of
    such flags. Nothing is traced or compiled for another value; with the old one it is back in C++.
    The value is to be the same each time: JAX keeps an entry for each, and finds none of a
    function's entries quickly where there are many (5 ms a call after 5000 values).
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
    return flag

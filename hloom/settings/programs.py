"""Selects the programs that the flag's passes run on, by name and, to save memory, by size."""

from __future__ import annotations

import atexit
import functools
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloom.passes.framework.errors import SpecError, echo
from hloom.settings import patterns
from hloom.show.visible import visible

if TYPE_CHECKING:
    from hloom.compiling.origin import Origin
    from hloom.passes.framework.pipeline import Pipeline

MODULES = "JAX_HLOOM_MODULES"
MIN_SIZE = "JAX_HLOOM_MIN_SIZE"

DEFAULT_MIN_BYTES = 2**20
"""The default for the bytes of all of a program's values, far more than its memory at any time."""


def chosen(pipeline: Pipeline, origin: Origin, modules: object, min_size: object) -> Pipeline:
    """Returns the part of the flag's pipeline that runs on a program; an empty one where the name
    does not match.

    Args:
      pipeline: the flag's pipeline.
      origin: the program.
      modules: the value of `jax_hloom_modules`.
      min_size: the value of `jax_hloom_min_size`.

    Raises SpecError where one of the values, which may come from the environment, is mistaken.
    """
    least_bytes = parse_min_size(min_size, source=MIN_SIZE)
    wanted = parse_modules(modules, source=MODULES)
    if wanted:
        matched = patterns.matches(origin.name, wanted)
        _note(",".join(wanted), origin.name, matched=matched)
        if not matched:
            return type(pipeline)()
    if not any(step.saves_memory for step in pipeline.passes):
        return pipeline
    from hloom.passes.ir.walk import values_take

    if values_take(origin.module, least_bytes):
        return pipeline
    return type(pipeline)(tuple(step for step in pipeline.passes if not step.saves_memory))


def parse_modules(value: object, *, source: str) -> tuple[str, ...]:
    """Returns patterns of module names; none where the value is not set. Raises SpecError."""
    if value is None or value == "":
        return ()
    if not isinstance(value, str):
        raise SpecError(
            f"{source}={echo(repr(value))}: wanted patterns of module names in one string, such as "
            "'jit_train*,jit_loss'."
        )
    return patterns.words(value)


def parse_min_size(value: object, *, source: str) -> int:
    """Returns a size in bytes; the default where the value is not set. Raises SpecError."""
    if value is None or value == "":
        return DEFAULT_MIN_BYTES
    if type(value) is int and value >= 0:
        return value
    from hloom.passes.framework.options import SpellingError, parse_bytes

    try:
        return parse_bytes(value if isinstance(value, str) else "")
    except SpellingError as hint:
        raise SpecError(
            f"{source}={echo(str(value))}: wanted a size such as 1MiB, or 0 for every "
            f"program.{hint}"
        ) from None


@dataclass
class _Seen:
    """The programs that were compiled under some patterns.

    Attributes:
      names: the names that no pattern matches, the newest last.
      matched: whether a pattern matched any program's name.
    """

    names: dict[str, None] = field(default_factory=dict)
    matched: bool = False


_seen: dict[str, _Seen] = {}
_TOLD = 5
"""The most names in a reminder."""


def _note(wanted: str, name: str, *, matched: bool) -> None:
    seen = _seen.setdefault(wanted, _Seen())
    seen.matched |= matched
    if not seen.matched:
        seen.names[name] = seen.names.pop(name, None)
    _remind_at_exit()


@functools.cache
def _remind_at_exit() -> None:
    atexit.register(remind)


def remind() -> None:
    """Prints on stderr, a line each, the patterns that matched no program of the process."""
    for wanted, seen in _seen.items():
        if not seen.matched:
            told = ", ".join(list(seen.names)[-_TOLD:])
            more = " and others" if len(seen.names) > _TOLD else ""
            print(
                visible(
                    f"hloom: {MODULES}={echo(wanted)}: no program has a name that it matches, and "
                    f"no pass ran. There were {told}{more}."
                ),
                file=sys.stderr,
            )

"""The target and the options of a module's first compile, read from a dump's manifest."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from hloom.passes.analysis.cost import Speed
from hloom.passes.framework.base import Target
from hloom.tools.replay import xla_options

_LONGEST_NAME = 500
_MOST_LEFT_OUT = 10
_MOST_WIDTHS = 16
"""Of elements of matrix products, in bits."""

_VERSION = re.compile(r"\d+(\.\d+){0,4}([.+-]?[A-Za-z0-9.]+)?", re.ASCII)


def names(entries: Any) -> tuple[str, ...]:
    """The names of a manifest's arguments or results."""
    if not isinstance(entries, list):
        return ()
    given = (str(each.get("name") or "") for each in entries if isinstance(each, dict))
    return tuple(name[:_LONGEST_NAME] for name in given)


def version(versions: Any, name: str) -> str | None:
    """The version of a package in a manifest's "versions"; None where none can be told.

    It goes into commands to copy.
    """
    found = versions.get(name) if isinstance(versions, dict) else None
    return found if isinstance(found, str) and _VERSION.fullmatch(found) else None


def target(recorded: Any, here: Target) -> Target:
    """The recorded target on this platform, so that the passes plan as they did; or `here`."""
    if not isinstance(recorded, dict):
        return here
    try:
        return dataclasses.replace(
            here,
            name=_text(recorded["name"]),
            memory_bytes=_bytes(recorded["memory_bytes"]),
            usable_bytes=_bytes(recorded["usable_bytes"]),
            speed=_speed(recorded["speed"]),
            keeps_barriers=recorded["keeps_barriers"] is True,
        )
    except (KeyError, TypeError, ValueError):
        # Another version of hloom wrote it, whose targets have other fields.
        return here


def _speed(recorded: Any) -> Speed:
    figures = {
        name: _rate(recorded[name]) for name in ("vector_flops_per_s", "bytes_per_s", "kernel_s")
    }
    # JSON has lists where a Speed has tuples.
    rates = [(int(_rate(bits)), _rate(rate)) for bits, rate in recorded["matrix_flops_per_s"]]
    if len(rates) > _MOST_WIDTHS:
        raise ValueError
    return Speed(matrix_flops_per_s=tuple(rates), **figures)


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ValueError
    return value


def _bytes(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**60:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_NAME:
        raise ValueError
    return value


@dataclass(frozen=True)
class Options:
    """The options of XLA that a program had set.

    Attributes:
      applied: those that the replay sets too.
      left_out: the names of those that it does not know.
    """

    applied: Mapping[str, str]
    left_out: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """What is applied and what is not, sentences for people."""
        if self.applied:
            shown = " ".join(f"{name}={value}" for name, value in self.applied.items())
            yield f"with the dump's options of XLA: {shown}"
        if self.left_out:
            shown = ", ".join(name[:_LONGEST_NAME] for name in self.left_out[:_MOST_LEFT_OUT])
            more = len(self.left_out) - _MOST_LEFT_OUT
            yield f"left out of the dump's options of XLA: {shown}" + (
                f" and {more} more" if more > 0 else ""
            )


NO_OPTIONS = Options({})


def options(manifest: Mapping[str, Any], platform: str) -> Options:
    """The program's own options of XLA; none of them on another platform, where they may fail.

    Raises ReplayError for those that may read, write or run files.
    """
    given = manifest.get("compile_options")
    if not isinstance(given, dict) or manifest.get("platform") != platform:
        return NO_OPTIONS
    return Options(*xla_options.taken_over(given))


def notes(
    manifest: Mapping[str, Any], here: str, planned: Target, found: Target
) -> tuple[str, ...]:
    """What is otherwise than it was, sentences for people.

    Args:
      manifest: of the module.
      here: the platform or target that it is compiled for now.
      planned: what the passes plan for.
      found: what is here.
    """
    said = []
    theirs = manifest.get("platform")
    if isinstance(theirs, str) and theirs != here:
        said.append(f"dumped on {theirs[:_LONGEST_NAME]}, compiled for {here}")
    if planned.name != found.name:
        said.append(f"the passes plan for {planned.name}, as they did")
    if planned is found and here == found.platform and isinstance(manifest.get("target"), dict):
        said.append("the recorded target cannot be read: the passes plan for what is here")
    compiled = manifest.get("compile")
    if isinstance(compiled, dict) and compiled.get("fell_back"):
        said.append(f"the dumped program ran without its passes: {compiled['fell_back']}")
    jax_then = version(manifest.get("versions"), "jax")
    if jax_then is not None and jax_then != jax.__version__:
        said.append(f"dumped with jax {jax_then}, replayed with {jax.__version__}")
    return tuple(said)

"""The options of a pass: dataclass fields with units, choices and limits, spelled in specs.

A field's type decides its spelling:

| type       | spelled                        | printed                  |
| ---------- | ------------------------------ | ------------------------ |
| `bool`     | on, off                        | on, off                  |
| `int`      | 12, -3                         | 12, -3                   |
| `float`    | 0.5, 1e-3                      | shortest that reads back |
| `str`      | one of `choices`               | itself                   |
| `Words`    | some of `choices`, joined by + | in the order of these    |
| `Bytes`    | 4KiB, 1.5GiB, 60GB, 4096       | shortest that reads back |
| `Duration` | 60s, 1.5s, 500ms               | the largest exact unit   |
| `Budget`   | 60GiB, 12.5%, fit, min         | the same way             |
| `Axes`     | tokens, batch['x']:1;7         | the same way             |
| `Cuts`     | 4, 4:8                         | the same way             |
| `AxisName` | stage                          | itself                   |

KiB, MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB, powers of 1000.

A field of type `… | None` with default None is an optional option.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable
from typing import Any

from . import spellings
from .errors import did_you_mean
from .spellings import (
    LARGEST,
    Axes,
    AxisName,
    Budget,
    Bytes,
    Cuts,
    Duration,
    SpellingError,
    Words,
    parse_bytes,
    print_bytes,
    unit_hint,
)

__all__ = [
    "Axes",
    "AxisName",
    "Budget",
    "Bytes",
    "Cuts",
    "Duration",
    "OptionInfo",
    "SpellingError",
    "Words",
    "option",
    "options_of",
    "parse_bytes",
    "print_bytes",
    "unit_hint",
]

_METADATA_KEY, _CONTEXT_KEY = "hloom.option", "hloom.context"
_CHOICE = re.compile(r"[A-Za-z0-9_.-]+")


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One option of a pass, as `hloom passes` and docs/passes.md show it."""

    name: str
    type: type
    default: Any
    doc: str
    unit: str | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False

    @property
    def wants(self) -> str:
        """Returns a description of the values, e.g. "a size in bytes such as 4KiB or 60GiB"."""
        limits = _limits(self)
        if self.type is str:
            return "one of " + ", ".join(self.choices)
        if self.type is Words:
            return "some of " + ", ".join(self.choices) + ", joined by '+'"
        return f"{_KINDS[self.type].wants}, {limits}" if limits else _KINDS[self.type].wants

    @property
    def shown_default(self) -> str:
        """Returns the default, for people."""
        return "not given" if self.default is None else self.print(self.default)

    def parse(self, text: str) -> Any:
        """Returns the value that `text` spells. Raises SpellingError where none is allowed."""
        if self.type is Duration and spellings.is_duration(meant := f"{text}s"):
            allowed = self.allows(spellings.parse_duration(meant))
            raise SpellingError(f" Did you mean '{meant}'?" if allowed else "")
        if self.type is Words:
            return spellings.parse_words(text, self.choices)
        value = text if self.type is str else _KINDS[self.type].parse(text)
        if not self.allows(value):
            if self.type is str:
                raise SpellingError(did_you_mean(text, self.choices))
            raise SpellingError(_beyond(value))
        return value

    def print(self, value: Any) -> str:
        """Returns the spelling of `value`; `parse` gives it back."""
        if self.type is Words:
            return "+".join(value)
        return value if self.type is str else _KINDS[self.type].print(value)

    def allows(self, value: Any) -> bool:
        """Whether `value` has the option's type and keeps to its choices and limits."""
        if value is None:
            return self.optional
        if self.type is str:
            return value in self.choices
        if self.type is Words:
            ordered = tuple(word for word in self.choices if word in value)
            return isinstance(value, tuple) and bool(value) and value == ordered
        if self.type is Budget:
            return isinstance(value, Budget) and spellings.is_possible_budget(value)
        if self.type is Axes:
            return spellings.are_axes(value)
        if self.type is Cuts:
            return spellings.are_cuts(value)
        if self.type is AxisName:
            return spellings.is_axis_name(value)
        if type(value) not in _KINDS[self.type].accepts:
            return False
        low = _KINDS[self.type].minimum if self.minimum is None else self.minimum
        high = _KINDS[self.type].maximum if self.maximum is None else self.maximum
        return bool(low <= value <= high)


@dataclasses.dataclass(frozen=True)
class _Kind:
    wants: str
    accepts: tuple[type, ...]
    parse: Callable[[str], Any]
    print: Callable[[Any], str]
    minimum: float = -math.inf
    maximum: float = math.inf


def option(
    default: Any,
    *,
    doc: str,
    unit: str | None = None,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declares a field of a pass as an option.

    Args:
      default: the value when the spec does not name the option.
      doc: what the option does, one sentence.
      unit: what a number counts, e.g. "layers"; sizes (`Bytes`) have theirs already.
      choices: every allowed value; required for `str` and `Words` fields, only for them.
      minimum: smallest allowed number, inclusive.
      maximum: largest allowed number, inclusive.
    """
    metadata = {
        "doc": doc, "unit": unit, "choices": choices, "minimum": minimum, "maximum": maximum
    }  # fmt: skip
    return dataclasses.field(default=default, metadata={_METADATA_KEY: metadata})


def in_context(default: Any) -> Any:
    """Declares a field that is no option: `Pass.in_front_of` or `Pass.behind` sets it from the rest
    of a spec."""
    return dataclasses.field(default=default, metadata={_CONTEXT_KEY: True})


@functools.cache
def options_of(pass_class: type) -> tuple[OptionInfo, ...]:
    """Returns the options of a pass class in the order of its fields, `in_context` ones left out.

    Raises TypeError where a field is not declared with `option`, has a type without a spelling,
    or has a default that its own limits forbid: mistakes of the author of the pass.
    """
    hints = typing.get_type_hints(pass_class)
    return tuple(
        _option_info(pass_class, field, hints[field.name])
        for field in dataclasses.fields(pass_class)
        if _CONTEXT_KEY not in field.metadata
    )


def _option_info(pass_class: type, field: dataclasses.Field[Any], type_: Any) -> OptionInfo:
    where = f"{pass_class.__name__}.{field.name}"
    if _METADATA_KEY not in field.metadata:
        raise TypeError(f"{where} is not declared with option(...)")
    members = typing.get_args(type_)
    optional = type(None) in members and field.default is None
    if optional:
        type_ = next(member for member in members if member is not type(None))
    if type_ not in (str, Words) and type_ not in _KINDS:
        raise TypeError(f"{where}: options of type {type_} have no spelling in a spec")
    info = OptionInfo(
        field.name, type_, field.default, optional=optional, **field.metadata[_METADATA_KEY]
    )
    has_choices = type_ in (str, Words)
    if has_choices != bool(info.choices) or not all(map(_CHOICE.fullmatch, info.choices)):
        raise TypeError(
            f"{where}: str and Words options, and only they, have choices, each a plain word"
        )
    if not info.allows(info.default):
        raise TypeError(f"{where}: its default {info.default!r} is not {info.wants}")
    return info


def _limits(info: OptionInfo) -> str:
    spell = _KINDS[info.type].print if info.type in (Bytes, Duration) else str
    if info.minimum is not None and info.maximum is not None:
        return f"from {spell(info.minimum)} to {spell(info.maximum)}"
    if info.minimum is not None:
        return f"at least {spell(info.minimum)}"
    if info.maximum is not None:
        return f"at most {spell(info.maximum)}"
    return ""


def _beyond(value: Any) -> str:
    """Returns a hint for a value that is spelled well, but not allowed."""
    size = value.size_bytes if isinstance(value, Budget) else value
    if isinstance(size, int) and abs(size) > LARGEST:
        return " That is more than 2**63 - 1."
    if not isinstance(value, Budget):
        return ""
    return (
        " A share is from 0% to 100%." if value.percent is not None else " It is at least 1 byte."
    )


_KINDS: dict[Any, _Kind] = {
    bool: _Kind("on or off", (bool,), spellings.parse_bool, lambda value: "on" if value else "off"),
    int: _Kind("a whole number", (int,), spellings.parse_int, str, -LARGEST, LARGEST),
    float: _Kind("a number", (float, int), spellings.parse_float, repr),
    Bytes: _Kind(
        "a size in bytes such as 4KiB or 60GiB", (int,), parse_bytes, print_bytes, 0, LARGEST
    ),
    Duration: _Kind(
        "a time such as 60s or 500ms",
        (int,),
        spellings.parse_duration,
        spellings.print_duration,
        0,
        LARGEST,
    ),
    Budget: _Kind(
        "a size such as 60GiB, a share such as 50%, fit, or min",
        (Budget,),
        spellings.parse_budget,
        spellings.print_budget,
    ),
    Axes: _Kind(
        "arguments with axes, such as tokens, batch['x']:1 or 7, parted by ';'",
        (Axes,),
        spellings.parse_axes,
        spellings.print_axes,
    ),
    AxisName: _Kind(
        "the name of an axis of the mesh, such as stage", (str,), spellings.parse_axis_name, str
    ),
    Cuts: _Kind(
        "ascending numbers from 1, parted by ':', such as 4 or 4:8",
        (Cuts,),
        spellings.parse_cuts,
        spellings.print_cuts,
    ),
}

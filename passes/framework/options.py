"""The options of a pass: dataclass fields with units, choices and limits, spelled in specs.

A field's type decides its spelling:

| type       | spelled                        | printed                  |
| ---------- | ------------------------------ | ------------------------ |
| `bool`     | on, off                        | on, off                  |
| `int`      | 12, -3                         | 12, -3                   |
| `float`    | 0.5, 1e-3                      | shortest that reads back |
| `str`      | one of `choices`               | itself                   |
| `Bytes`    | 4KiB, 1.5GiB, 60GB, 4096       | the largest exact unit   |
| `Duration` | 60s, 1.5s, 500ms               | the largest exact unit   |
| `Budget`   | 60GiB, 12.5%, fit, min         | the same way             |
| `Axes`     | tokens, batch['x']:1;7         | the same way             |
| `Cuts`     | 4, 4:8                         | the same way             |

KiB, MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB, powers of 1000.

A field of type `… | None` with default None is an option that need not be given.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable
from typing import Any, NewType

from hloom.passes.framework.errors import did_you_mean

Bytes = NewType("Bytes", int)
"""A size in bytes."""

Duration = NewType("Duration", int)
"""A time in milliseconds."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """A bound on memory: a size, or a share of something, or, where both are None, what fits.

    Attributes:
      size_bytes: the bound itself, from 1 to 2**63 - 1.
      percent: the share that is allowed, from 0 to 100, of what the pass says.
      least: as little as the pass reaches is wanted, and no more; `percent` is 0 then.
    """

    size_bytes: int | None = None
    percent: float | None = None
    least: bool = False


@dataclasses.dataclass(frozen=True)
class Axes:
    """Axes of a program's arguments.

    Attributes:
      places: pairs of an argument, by its name or by its number in decimal digits, and an axis.
        A name has none of the characters that specs are made of: spaces and any of `,;={}`.
    """

    places: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Where parts of something begin, the first one left out: at least one number, ascending."""

    positions: tuple[int, ...]


class SpellingError(ValueError):
    """A value that is spelled wrongly; its text is a hint for the user, or empty."""


_METADATA_KEY = "hloom.option"
_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = {"": 1, "B": 1, **_BINARY, **_DECIMAL}
_UNITS_LISTED = f" Units: B, {', '.join(_BINARY)}; {', '.join(_DECIMAL)} are powers of 1000."
_LARGEST = 2**63 - 1
"""Of sizes, times and whole numbers: what XLA counts in."""

# Without re.ASCII, \d is any digit of Unicode.
_SIZE = re.compile(r"(\d{1,40}(?:\.\d{1,40})?)([A-Za-z]*)", re.ASCII)
_TIME = re.compile(r"(\d{1,40}(?:\.\d{1,3})?)s|(\d{1,40})ms", re.ASCII)
_INT = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_CHOICE = re.compile(r"[A-Za-z0-9_.-]+")
_PLACE = re.compile(r"([^\s,;={}]+?)(?::(\d{1,9}))?", re.ASCII)


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
        """What a value looks like, for people: "a size in bytes such as 4KiB or 60GiB"."""
        limits = _limits(self)
        if self.type is str:
            return "one of " + ", ".join(self.choices)
        return f"{_KINDS[self.type].wants}, {limits}" if limits else _KINDS[self.type].wants

    @property
    def shown_default(self) -> str:
        """The default, for people."""
        return "not given" if self.default is None else self.print(self.default)

    def parse(self, text: str) -> Any:
        """The value that `text` spells. Raises SpellingError where it spells none allowed."""
        if self.type is Duration and _TIME.fullmatch(meant := f"{text}s"):
            allowed = self.allows(_parse_duration(meant))
            raise SpellingError(f" Did you mean '{meant}'?" if allowed else "")
        value = text if self.type is str else _KINDS[self.type].parse(text)
        if not self.allows(value):
            if self.type is str:
                raise SpellingError(did_you_mean(text, self.choices))
            raise SpellingError(_beyond(value))
        return value

    def print(self, value: Any) -> str:
        """The spelling of `value`; `parse` gives it back."""
        return value if self.type is str else _KINDS[self.type].print(value)

    def allows(self, value: Any) -> bool:
        """Whether `value` has the option's type and keeps to its choices and limits."""
        if value is None:
            return self.optional
        if self.type is str:
            return value in self.choices
        if self.type is Budget:
            return isinstance(value, Budget) and _is_possible(value)
        if self.type is Axes:
            return _are_axes(value)
        if self.type is Cuts:
            return _are_cuts(value)
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
      choices: every allowed value; required for `str` fields, only for them.
      minimum: smallest allowed number, inclusive.
      maximum: largest allowed number, inclusive.
    """
    metadata = {
        "doc": doc, "unit": unit, "choices": choices, "minimum": minimum, "maximum": maximum
    }  # fmt: skip
    return dataclasses.field(default=default, metadata={_METADATA_KEY: metadata})


@functools.cache
def options_of(pass_class: type) -> tuple[OptionInfo, ...]:
    """The options of a pass class in the order of its fields.

    Raises TypeError where a field is not declared with `option`, has a type without a spelling,
    or has a default that its own limits forbid: mistakes of the author of the pass.
    """
    hints = typing.get_type_hints(pass_class)
    return tuple(
        _option_info(pass_class, field, hints[field.name])
        for field in dataclasses.fields(pass_class)
    )


def _option_info(pass_class: type, field: dataclasses.Field[Any], type_: Any) -> OptionInfo:
    where = f"{pass_class.__name__}.{field.name}"
    if _METADATA_KEY not in field.metadata:
        raise TypeError(f"{where} is not declared with option(...)")
    members = typing.get_args(type_)
    optional = type(None) in members and field.default is None
    if optional:
        type_ = next(member for member in members if member is not type(None))
    if type_ is not str and type_ not in _KINDS:
        raise TypeError(f"{where}: options of type {type_} have no spelling in a spec")
    info = OptionInfo(
        field.name, type_, field.default, optional=optional, **field.metadata[_METADATA_KEY]
    )
    if (type_ is str) != bool(info.choices) or not all(map(_CHOICE.fullmatch, info.choices)):
        raise TypeError(f"{where}: str options, and only they, have choices, each a plain word")
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
    """A hint for a value that is spelled well, but not allowed."""
    size = value.size_bytes if isinstance(value, Budget) else value
    if isinstance(size, int) and abs(size) > _LARGEST:
        return " That is more than 2**63 - 1."
    if not isinstance(value, Budget):
        return ""
    return (
        " A share is from 0% to 100%." if value.percent is not None else " It is at least 1 byte."
    )


_ON, _OFF = ("true", "yes", "1"), ("false", "no", "0", "none")


def _parse_bool(text: str) -> bool:
    if text not in ("on", "off"):
        meant = text.lower()
        word = "on" if meant in (*_ON, "on") else "off" if meant in (*_OFF, "off") else ""
        raise SpellingError(f" Did you mean '{word}'?" if word else "")
    return text == "on"


def _parse_int(text: str) -> int:
    if not _INT.fullmatch(text):
        raise SpellingError
    return int(text)


def _parse_float(text: str) -> float:
    if not _FLOAT.fullmatch(text) or not math.isfinite(value := float(text)):
        raise SpellingError
    return value


def unit_hint(text: str) -> str:
    """A hint for a number with a unit, as it may have been meant; empty where it is none."""
    match = _SIZE.fullmatch(text)
    if match is None or not match[2]:
        return ""
    number, unit = match[1], match[2].lower()
    # "60gib", "60gb" and "60G": the same letters, or the first of them.
    meant = [
        f"'{number}{known}'"
        for known in (*_BINARY, *_DECIMAL)
        if unit in (known.lower(), known[0].lower())
    ]
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def parse_bytes(text: str) -> Bytes:
    """Bytes that "4KiB", "1.5GiB", "60GB" or "4096" spell.

    Raises SpellingError for another spelling, and where it is not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        raise SpellingError(unit_hint(text) or _UNITS_LISTED)
    # Decimal digits against a power of two, in integers: exact where floats would round.
    whole, _, fraction = match[1].partition(".")
    scaled = int(whole + fraction) * _UNITS[match[2]]
    size_bytes, rest = divmod(scaled, 10 ** len(fraction))
    if rest:
        raise SpellingError(" That is no whole number of bytes.")
    return Bytes(size_bytes)


def print_bytes(size_bytes: int) -> str:
    """The spelling of a size in the largest unit that divides it: 1536MiB, 60GB, 1001."""
    exact = [unit for unit, scale in _UNITS.items() if unit != "B" and size_bytes % scale == 0]
    unit = max(exact, key=_UNITS.__getitem__) if size_bytes else ""
    return f"{size_bytes // _UNITS[unit]}{unit}"


def _parse_duration(text: str) -> Duration:
    match = _TIME.fullmatch(text)
    if match is None:
        raise SpellingError
    if match[2]:
        return Duration(int(match[2]))
    seconds, _, fraction = match[1].partition(".")
    return Duration(int(seconds) * 1000 + int(fraction.ljust(3, "0") or 0))


def _print_duration(duration_ms: int) -> str:
    return f"{duration_ms}ms" if duration_ms % 1000 else f"{duration_ms // 1000}s"


def _parse_budget(text: str) -> Budget:
    if text == "fit":
        return Budget()
    if text == "min":
        return Budget(percent=0.0, least=True)
    if text.endswith("%"):
        return Budget(percent=_parse_float(text[:-1]))
    if not text[:1].isdigit():
        raise SpellingError(did_you_mean(text.lower(), ("fit", "min")))
    if _FLOAT.fullmatch(text) and 0 < float(text) < 1:
        raise SpellingError(f" Did you mean '{float(text) * 100:g}%'?")
    return Budget(size_bytes=parse_bytes(text))


def _print_budget(budget: Budget) -> str:
    if budget.size_bytes is not None:
        return print_bytes(budget.size_bytes)
    if budget.least:
        return "min"
    if budget.percent is not None:
        return f"{repr(float(budget.percent)).removesuffix('.0')}%"
    return "fit"


def _is_possible(budget: Budget) -> bool:
    if budget.least:
        return budget.size_bytes is None and budget.percent == 0
    if budget.size_bytes is not None:
        is_size = type(budget.size_bytes) is int and 0 < budget.size_bytes <= _LARGEST
        return budget.percent is None and is_size
    if budget.percent is not None:
        return type(budget.percent) in (int, float) and 0 <= budget.percent <= 100
    return True


def _parse_axes(text: str) -> Axes:
    places = []
    for word in text.split(";"):
        match = _PLACE.fullmatch(word)
        if match is None:
            raise SpellingError(" Several are parted by ';'.")
        places.append((match[1], int(match[2] or 0)))
    return Axes(tuple(places))


def _print_axes(axes: Axes) -> str:
    return ";".join(f"{name}:{axis}" if axis else name for name, axis in axes.places)


def _are_axes(axes: Any) -> bool:
    """Whether they are spelled in a spec, and read back."""
    try:
        return isinstance(axes, Axes) and _parse_axes(_print_axes(axes)) == axes
    except (SpellingError, TypeError, ValueError):
        return False


def _parse_cuts(text: str) -> Cuts:
    return Cuts(tuple(map(_parse_int, text.split(":"))))


def _print_cuts(cuts: Cuts) -> str:
    return ":".join(map(str, cuts.positions))


def _are_cuts(cuts: Any) -> bool:
    if not isinstance(cuts, Cuts) or not all(type(at) is int for at in cuts.positions):
        return False
    ascending = sorted({0, *cuts.positions})
    return bool(cuts.positions) and [0, *cuts.positions] == ascending and ascending[-1] <= _LARGEST


_KINDS: dict[Any, _Kind] = {
    bool: _Kind("on or off", (bool,), _parse_bool, lambda value: "on" if value else "off"),
    int: _Kind("a whole number", (int,), _parse_int, str, -_LARGEST, _LARGEST),
    float: _Kind("a number", (float, int), _parse_float, repr),
    Bytes: _Kind(
        "a size in bytes such as 4KiB or 60GiB", (int,), parse_bytes, print_bytes, 0, _LARGEST
    ),
    Duration: _Kind(
        "a time such as 60s or 500ms", (int,), _parse_duration, _print_duration, 0, _LARGEST
    ),
    Budget: _Kind(
        "a size such as 60GiB, a share such as 50%, fit, or min",
        (Budget,),
        _parse_budget,
        _print_budget,
    ),
    Axes: _Kind(
        "arguments with axes, such as tokens, batch['x']:1 or 7, parted by ';'",
        (Axes,),
        _parse_axes,
        _print_axes,
    ),
    Cuts: _Kind(
        "ascending numbers from 1, parted by ':', such as 4 or 4:8",
        (Cuts,),
        _parse_cuts,
        _print_cuts,
    ),
}

"""The spellings of options' values in specs: reading a text, and printing a value."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, NewType

from .errors import did_you_mean

Bytes = NewType("Bytes", int)
"""A size in bytes."""

Duration = NewType("Duration", int)
"""A time in milliseconds."""

Words = NewType("Words", tuple[str, ...])
"""Some of an option's choices, at least one, each once and in their order."""

AxisName = NewType("AxisName", str)
"""The name of an axis of a mesh: a text without the characters of the spec grammar."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """A bound on memory: a size, a share, or, where both are None, the device's memory.

    Attributes:
      size_bytes: the bound itself, from 1 to 2**63 - 1.
      percent: the share that is allowed, from 0 to 100, of an amount that the pass defines.
      least: the least memory that the pass can reach is requested; `percent` is 0 then.
    """

    size_bytes: int | None = None
    percent: float | None = None
    least: bool = False

    @property
    def tolerance(self) -> float:
        """Returns the factor up to which a bound counts as held.

        One more compile, which takes minutes for a large program, is not made for half a percent of
        a share. A size has no tolerance: what takes more may be out of memory.
        """
        return 1.0 if self.percent is None or self.least else 1.005


@dataclasses.dataclass(frozen=True)
class Axes:
    """Axes of a program's arguments.

    Attributes:
      places: pairs of an argument, by its name or by its number in decimal digits, and an axis.
        A name has none of the characters of the spec grammar: spaces and any of `,;={}`.
    """

    places: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Cuts:
    """The numbers at which parts begin, the first part left out: at least one, ascending."""

    positions: tuple[int, ...]


_AXIS_NAME = re.compile(r"[^\s,;:={}]+")


class SpellingError(ValueError):
    """A value that is spelled wrongly; its text is a hint for the user, or empty."""


_BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = {"": 1, "B": 1, **_BINARY, **_DECIMAL}
_UNITS_LISTED = f" Units: B, {', '.join(_BINARY)}; {', '.join(_DECIMAL)} are powers of 1000."
LARGEST = 2**63 - 1
"""The largest size, time and whole number: that of XLA's 64-bit integers."""

# Without re.ASCII, \d is any digit of Unicode.
_SIZE = re.compile(r"(\d{1,40}(?:\.\d{1,40})?)([A-Za-z]*)", re.ASCII)
_TIME = re.compile(r"(\d{1,40}(?:\.\d{1,3})?)s|(\d{1,40})ms", re.ASCII)
_INT = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_PLACE = re.compile(r"([^\s,;={}]+?)(?::(\d{1,9}))?", re.ASCII)


_ON, _OFF = ("true", "yes", "1"), ("false", "no", "0", "none")


def parse_bool(text: str) -> bool:
    if text not in ("on", "off"):
        meant = text.lower()
        word = "on" if meant in (*_ON, "on") else "off" if meant in (*_OFF, "off") else ""
        raise SpellingError(f" Did you mean '{word}'?" if word else "")
    return text == "on"


def parse_int(text: str) -> int:
    if not _INT.fullmatch(text):
        raise SpellingError
    return int(text)


def parse_float(text: str) -> float:
    if not _FLOAT.fullmatch(text) or not math.isfinite(value := float(text)):
        raise SpellingError
    return value


def unit_hint(text: str) -> str:
    """Returns a hint for a number with a unit, as it may have been meant; empty for others."""
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
    """Returns the bytes that "4KiB", "1.5GiB", "60GB" or "4096" spell, without a part of a byte.

    Raises SpellingError for another spelling, and for a part of a byte alone.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        raise SpellingError(unit_hint(text) or _UNITS_LISTED)
    # Decimal digits against a power of two, in integers: exact where floats would round.
    whole, _, fraction = match[1].partition(".")
    scaled = int(whole + fraction) * _UNITS[match[2]]
    size_bytes, rest = divmod(scaled, 10 ** len(fraction))
    if rest and (size_bytes == 0 or _UNITS[match[2]] == 1):
        raise SpellingError(" That is no whole number of bytes.")
    return Bytes(size_bytes)


def print_bytes(size_bytes: int) -> str:
    """Returns the shortest spelling that reads back as a size, of equals that in the largest unit:
    1.5GiB, 93.75MiB, 60GB, 1001."""
    exact = [unit for unit, scale in _UNITS.items() if unit != "B" and size_bytes % scale == 0]
    unit = max(exact, key=_UNITS.__getitem__) if size_bytes else ""
    found = [f"{size_bytes // _UNITS[unit]}{unit}"]
    for unit, scale in _BINARY.items():
        if size_bytes >= scale:
            texts = (f"{_decimal(size_bytes, scale, digits)}{unit}" for digits in _DIGITS)
            found += [text for text in texts if parse_bytes(text) == size_bytes]
    return min(reversed(found), key=len)


_DIGITS = range(3)
"""The numbers of digits behind the point of a printed size."""


def _decimal(size_bytes: int, scale: int, digits: int) -> str:
    """Returns a size in a unit with so many digits behind the point, rounded up."""
    tens = 10**digits
    whole, part = divmod(-(-size_bytes * tens // scale), tens)
    return f"{whole}.{part:0{digits}}" if digits else str(whole)


def rounded_up(size_bytes: int, grain_bytes: int) -> int:
    """Returns a size that is short to spell, at most `grain_bytes` larger: a number of a binary
    unit with at most two digits behind the point."""
    for unit, scale in reversed(_BINARY.items()):
        for digits in _DIGITS:
            if size_bytes >= scale and scale <= grain_bytes * 10**digits:
                return parse_bytes(f"{_decimal(size_bytes, scale, digits)}{unit}")
    return size_bytes


def is_duration(text: str) -> bool:
    """Whether the text is a time with its unit."""
    return _TIME.fullmatch(text) is not None


def parse_duration(text: str) -> Duration:
    match = _TIME.fullmatch(text)
    if match is None:
        raise SpellingError
    if match[2]:
        return Duration(int(match[2]))
    seconds, _, fraction = match[1].partition(".")
    return Duration(int(seconds) * 1000 + int(fraction.ljust(3, "0") or 0))


def print_duration(duration_ms: int) -> str:
    return f"{duration_ms}ms" if duration_ms % 1000 else f"{duration_ms // 1000}s"


def parse_budget(text: str) -> Budget:
    if text == "fit":
        return Budget()
    if text == "min":
        return Budget(percent=0.0, least=True)
    if text.endswith("%"):
        return Budget(percent=parse_float(text[:-1]))
    if not text[:1].isdigit():
        raise SpellingError(did_you_mean(text.lower(), ("fit", "min")))
    if _FLOAT.fullmatch(text) and (hint := _hint_for_number(text)):
        raise SpellingError(hint)
    return Budget(size_bytes=parse_bytes(text))


_LEAST_PLAIN_BYTES = 2**20
"""A plain number from here on is bytes, as a script computes them. A smaller one may be meant as
GiB, as a share, or as MiB, the unit in which `nvidia-smi` reports a device's memory."""


def _hint_for_number(text: str) -> str:
    """Returns a hint on the unit that a budget lacks; empty where the number is bytes."""
    value = float(text)
    if value == 0:
        return " Did you mean 'min'?"
    if value < 1:
        return f" Did you mean '{value * 100:g}%'?"
    if text.isdigit() and value >= _LEAST_PLAIN_BYTES:
        return ""
    meant = f"{value:g}GiB" if value <= 1024 else f"{value:.0f}MiB"
    share = f" or '{value:g}%'" if value <= 100 else ""
    of_what = f" {text} of what? Did you mean '{meant}'{share}?"
    return of_what if "." in text else f"{of_what} Bytes are '{text}B'."


def print_budget(budget: Budget) -> str:
    if budget.size_bytes is not None:
        text = print_bytes(budget.size_bytes)
        return f"{text}B" if text.isdigit() else text
    if budget.least:
        return "min"
    if budget.percent is not None:
        return f"{repr(float(budget.percent)).removesuffix('.0')}%"
    return "fit"


def is_possible_budget(budget: Budget) -> bool:
    if budget.least:
        return budget.size_bytes is None and budget.percent == 0
    if budget.size_bytes is not None:
        is_size = type(budget.size_bytes) is int and 0 < budget.size_bytes <= LARGEST
        return budget.percent is None and is_size
    if budget.percent is not None:
        return type(budget.percent) in (int, float) and 0 <= budget.percent <= 100
    return True


def parse_axis_name(text: str) -> str:
    if not is_axis_name(text):
        raise SpellingError("")
    return text


def is_axis_name(value: Any) -> bool:
    """Whether a value is a name that a spec can hold."""
    return isinstance(value, str) and bool(_AXIS_NAME.fullmatch(value))


def parse_axes(text: str) -> Axes:
    places = []
    for word in text.split(";"):
        match = _PLACE.fullmatch(word)
        if match is None:
            raise SpellingError(" Several are parted by ';'.")
        places.append((match[1], int(match[2] or 0)))
    return Axes(tuple(places))


def print_axes(axes: Axes) -> str:
    return ";".join(f"{name}:{axis}" if axis else name for name, axis in axes.places)


def are_axes(axes: Any) -> bool:
    """Whether they are spelled in a spec, and read back."""
    try:
        return isinstance(axes, Axes) and parse_axes(print_axes(axes)) == axes
    except (SpellingError, TypeError, ValueError):
        return False


def parse_cuts(text: str) -> Cuts:
    return Cuts(tuple(map(parse_int, text.split(":"))))


def print_cuts(cuts: Cuts) -> str:
    return ":".join(map(str, cuts.positions))


def are_cuts(cuts: Any) -> bool:
    """Whether they are spelled in a spec, and read back."""
    if not isinstance(cuts, Cuts) or not all(type(at) is int for at in cuts.positions):
        return False
    ascending = sorted({0, *cuts.positions})
    return bool(cuts.positions) and [0, *cuts.positions] == ascending and ascending[-1] <= LARGEST


_OTHER_WORDS = {"remat": "recompute"}
"""The choices that users mean by the names of passes."""


def parse_words(text: str, choices: tuple[str, ...]) -> Words:
    """Returns the choices that "a+b" spells. Raises SpellingError for another word."""
    words = text.split("+")
    for word in words:
        if word not in choices:
            other = _OTHER_WORDS.get(word)
            meant = f" Did you mean '{other}'?" if other in choices else ""
            raise SpellingError(meant or did_you_mean(word, choices))
    return Words(tuple(choice for choice in choices if choice in words))

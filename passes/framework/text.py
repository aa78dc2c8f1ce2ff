"""Wording of messages: counts, sizes, times and types."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TENSOR = re.compile(r"tensor<(?:([0-9?x]+)x)?([a-z]\w*)>")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def pluralize(number: int, thing: str) -> str:
    """Returns a count with its noun, whose plural ends in s: "1 byte", "2 bytes", "0 bytes"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def size(size_bytes: float) -> str:
    """Returns a size with three digits or so, e.g. "143 MiB", "1.50 GiB", "12 B"."""
    return scaled(size_bytes, 1024, _SIZES)


def scaled(number: float, step: int, units: Sequence[str]) -> str:
    """Returns a number in the largest unit of which it is one or more, each `step` of the last."""
    for power in range(len(units) - 1, 0, -1):
        if abs(number) >= step**power:
            return f"{three_digits(number / step**power)} {units[power]}"
    return f"{number:.0f} {units[0]}"


def three_digits(number: float) -> str:
    """Returns a number of one or more: "1.50", "24.3", "143", "1023"."""
    digits = 2 if round(abs(number), 2) < 10 else 1 if round(abs(number), 1) < 100 else 0
    return f"{number:.{digits}f}"


def short_type(text: str) -> str:
    """Returns a type as JAX prints it: "f32[8,256]" for "tensor<8x256xf32>"; others as they are."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return text
    dimensions = (match[1] or "").replace("x", ",")
    return f"{match[2]}[{dimensions}]"


def seconds(time_s: float) -> str:
    """Returns a time with three digits or so, e.g. "43 ms", "1.32 s", "4 min 10 s", "-43 ms"."""
    if time_s < 0:
        return f"-{seconds(-time_s)}"
    if time_s >= 99.5:
        return f"{round(time_s) // 60} min {round(time_s) % 60} s"
    if time_s >= 1:
        return f"{three_digits(time_s)} s"
    if time_s >= 1e-3:
        return f"{three_digits(time_s * 1e3)} ms"
    return f"{time_s * 1e6:.0f} µs"


def flops(count: float) -> str:
    """Returns a number of floating-point operations, e.g. "8.12 GFLOP"."""
    return scaled(count, 1000, _FLOPS)


def percent(share: float) -> str:
    """Returns a share of 1, e.g. "91 %"; only all of it is "100 %", and only nothing "0 %"."""
    shown = round(share * 100)
    if shown in (0, 100) and share not in (0, 1):
        return "< 1 %" if share < 0.5 else "> 99 %"
    return f"{shown} %"


def lower_first(text: str) -> str:
    """Returns a sentence's beginning as it is within another sentence."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Returns a part of a sentence as it is at the beginning of one."""
    return text[:1].upper() + text[1:]

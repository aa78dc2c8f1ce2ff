"""Formats sizes, times, types and changes for people."""

from __future__ import annotations

from hloom.passes.framework.text import scaled, three_digits
from hloom.passes.framework.text import short_type as short_type
from hloom.passes.framework.text import size as size

_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def sizes(before_bytes: float, after_bytes: float) -> str:
    """Two sizes, e.g. "24.3 → 12.6 MiB", "1.20 GiB → 310 MiB"."""
    before, after = size(before_bytes), size(after_bytes)
    number, _, unit = before.partition(" ")
    return f"{number if after.endswith(f' {unit}') else before} → {after}"


def refused(used_bytes: float, limit_bytes: float) -> str:
    """How a program is refused, e.g. "refused: 17.2 GiB of 15.8 GiB"."""
    return f"refused: {size(used_bytes)} of {size(limit_bytes)}"


def seconds(time_s: float) -> str:
    """A time with three digits or so, e.g. "43 ms", "1.32 s", "4 min 10 s", "-43 ms"."""
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
    """A number of floating-point operations, e.g. "8.12 GFLOP"."""
    return scaled(count, 1000, _FLOPS)


def change(before: float, after: float) -> str:
    """A change in percent with its sign, e.g. "-73 %"; empty where there is none to tell."""
    percent = (after - before) / before * 100 if before else 0.0
    if abs(percent) < 0.05:
        return ""
    digits = 0 if abs(percent) >= 10 else 1
    return f"{percent:+.{digits}f} %"


def percent(share: float) -> str:
    """A share of 1, e.g. "91 %"; only all of it is "100 %", and only nothing "0 %"."""
    shown = round(share * 100)
    if shown in (0, 100) and share not in (0, 1):
        return "< 1 %" if share < 0.5 else "> 99 %"
    return f"{shown} %"


def lower_first(text: str) -> str:
    """A sentence's beginning as it is within another sentence."""
    return text[:1].lower() + text[1:]

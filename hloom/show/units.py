"""Formats sizes, times, types and changes."""

from __future__ import annotations

from hloom.passes.framework.text import flops as flops
from hloom.passes.framework.text import lower_first as lower_first
from hloom.passes.framework.text import percent as percent
from hloom.passes.framework.text import seconds as seconds
from hloom.passes.framework.text import short_type as short_type
from hloom.passes.framework.text import size as size


def sizes(before_bytes: float, after_bytes: float) -> str:
    """Formats two sizes, e.g. "24.3 → 12.6 MiB", "1.20 GiB → 310 MiB"."""
    return _arrow(size(before_bytes), size(after_bytes))


def times(before_s: float, after_s: float) -> str:
    """Formats two times, e.g. "32.7 → 23.9 ms"."""
    return _arrow(seconds(before_s), seconds(after_s))


def span(least_s: float, most_s: float) -> str:
    """Formats the span of some times, e.g. "32.7 to 40.1 ms"."""
    return _arrow(seconds(least_s), seconds(most_s)).replace("→", "to")


def _arrow(before: str, after: str) -> str:
    number, _, unit = before.partition(" ")
    return f"{number if after.endswith(f' {unit}') else before} → {after}"


def of_limit(used_bytes: float, limit_bytes: float) -> str:
    """Formats a size and its limit, e.g. "1.55 of 63.3 GiB", "310 MiB of 1.20 GiB"."""
    used, limit = size(used_bytes), size(limit_bytes)
    number, _, unit = used.partition(" ")
    return f"{number if limit.endswith(f' {unit}') else used} of {limit}"


def refused(used_bytes: float, limit_bytes: float) -> str:
    """Formats the refusal of a program, e.g. "refused: 17.2 GiB of 15.8 GiB"."""
    return f"refused: {size(used_bytes)} of {size(limit_bytes)}"


def change(before: float, after: float) -> str:
    """Formats a change in percent with its sign, e.g. "-73 %"; empty where it is undefined."""
    percent = (after - before) / before * 100 if before else 0.0
    if abs(percent) < 0.05:
        return ""
    digits = 0 if abs(percent) >= 10 else 1
    return f"{percent:+.{digits}f} %"

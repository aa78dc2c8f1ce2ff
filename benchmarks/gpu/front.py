"""What an H200 measured, for README.md: a sentence, three programs, a picture.

python -m benchmarks.gpu.front        (writes the picture; benchmarks.readme writes the rest)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.subjects import HARD_SUBJECTS, SUBJECTS
from benchmarks.gpu.items import Known, result_of
from benchmarks.gpu.parts.part2_steps import MATCHED, matched
from benchmarks.gpu.tables import MEBI_BYTES, STEP, programs_of, step_seconds, table_lines
from hloom_tools.document.pictures import COLORS_CSS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu_nvidia_h200.json"
PICTURE = ROOT / "docs" / "h200.svg"
SHOWN = DRAWN, *_ = "gpt_scanned", "gpt_131072", "llama"

Point = tuple[float, float]
"""A step's seconds and bytes."""


def front_page() -> Iterator[str]:
    """What `fit` alone gives, in a sentence, and a row for each of three programs."""
    version, items = _newest()
    ratios = [
        (fit[0] / off[0], fit[1] / off[1])
        for program in programs_of(items)
        if (fit := _point(items, program, "fit")) and (off := _point(items, program, "off"))
    ]
    time, memory = (
        f"{100 * min(of):.0f} to {100 * max(of):.0f} %" for of in zip(*ratios, strict=True)
    )
    yield f"**On an H200 one flag, `JAX_HLOOM=fit`, took {len(ratios)} training steps with scans"
    yield f"to {time} of their time and {memory} of their memory, with no change to the code.**"
    yield ""
    columns = [f"a step on an H200, jax {version}", "off", "fastest policy of `jax.checkpoint`"]
    rows = [[_title(program), *map(_cost, _row(items, program))] for program in SHOWN]
    yield from table_lines([*columns, "`fit`", "`fit` at that policy's memory"], rows)


def _title(program: str) -> str:
    return (SUBJECTS | HARD_SUBJECTS)[program].title


def _newest() -> tuple[str, Known]:
    *_, (version, entry) = json.loads(RESULTS.read_text(encoding="utf-8")).items()
    return version, entry["items"]


def _point(items: Known, program: str, label: str) -> Point | None:
    """None where it was not timed."""
    found = result_of(items, f"{STEP}{program}/{label}")
    seconds = step_seconds(items, program, label)
    return None if found is None or seconds is None else (seconds, found["step_bytes"])


def _row(items: Known, program: str) -> Iterator[Point | None]:
    """Off, the fastest policy, `fit` as it is and with that policy's memory."""
    policy = min(MATCHED, key=lambda each: step_seconds(items, program, each) or math.inf)
    yield from (_point(items, program, each) for each in ("off", policy, "fit", matched(policy)))


def _cost(point: Point | None) -> str:
    return "" if point is None else f"{point[0] * 1e3:.1f} ms, {point[1] / MEBI_BYTES:.0f} MiB"


_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 36, 48, 52
_MOST_GIB = 12
_MS = range(20, 36, 2)


def picture() -> str:
    """The SVG of a program's time over its memory; it has its own background, light or dark."""
    version, items = _newest()
    found = {
        label: _point(items, DRAWN, label)
        for label in ("off", "fit", *MATCHED, *map(matched, MATCHED))
    }
    points = {label: point for label, point in found.items() if point is not None}
    fitted = sorted((points["fit"], *(points[matched(each)] for each in MATCHED)), key=_bytes)
    title = f"{_title(DRAWN)}: a step on an H200 (jax {version})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}" font-family="system-ui, sans-serif" font-size="14">',
        f"<style>{COLORS_CSS}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="var(--surface)"/>',
        f'<text x="{_LEFT}" y="28" font-size="16" font-weight="600" fill="var(--text)">{title}'
        "</text>",
        *_axes(),
        f'<polyline points="{" ".join(map(_place, fitted))}" fill="none" '
        'stroke="var(--after)" stroke-width="2"/>',
        *(_circle(point, "after") for point in fitted),
        _named(fitted[-1], "hloom: fit as it is, and at the memory of each policy", "after"),
        *(_circle(points[each], "before") + _named(points[each], each) for each in MATCHED),
        _circle(points["off"], "muted") + _named(points["off"], "off", anchor="end"),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _bytes(point: Point) -> float:
    return point[1]


def _x(gib: float) -> float:
    return _LEFT + gib / _MOST_GIB * (_WIDTH - _LEFT - _RIGHT)


def _y(ms: float) -> float:
    share = (ms - _MS[0]) / (_MS[-1] - _MS[0])
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _xy(point: Point) -> tuple[float, float]:
    return _x(point[1] / MEBI_BYTES / 1024), _y(point[0] * 1e3)


def _place(point: Point) -> str:
    x, y = _xy(point)
    return f"{x:.1f},{y:.1f}"


def _circle(point: Point, color: str) -> str:
    x, y = _xy(point)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="var(--{color})"/>'


def _named(point: Point, name: str, color: str = "text", anchor: str = "start") -> str:
    x, y = _xy(point)
    x += 10 if anchor == "start" else -10
    return (
        f'<text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="{anchor}" fill="var(--{color})">'
        f"{name}</text>"
    )


def _axes() -> Sequence[str]:
    lines = [
        f'<path d="M{_LEFT} {_y(ms):.1f}H{_WIDTH - _RIGHT}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 8}" y="{_y(ms) + 5:.1f}" text-anchor="end" fill="var(--muted)">'
        f"{ms} ms</text>"
        for ms in _MS
    ]
    lines += [
        f'<text x="{_x(gib):.1f}" y="{_HEIGHT - _BOTTOM + 22}" text-anchor="middle" '
        f'fill="var(--muted)">{gib} GiB</text>'
        for gib in range(0, _MOST_GIB + 1, 2)
    ]
    return [
        *lines,
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end" fill="var(--muted)">'
        "memory of a step, and its time</text>",
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}" fill="var(--before)">'
        "jax.checkpoint, by policy</text>",
    ]


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE)

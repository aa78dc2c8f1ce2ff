"""The picture in the README: the memory of a step over its schedule, before and after `remat`.

    python -m benchmarks.step_memory      (needs the extra cuda13; no GPU; a minute)
    python -m benchmarks.step_memory --draw       (draws what was measured)

Compiles the unrolled GPT for an H100 and reads from XLA's own buffer assignment what is live at
each instruction. Writes benchmarks/results/step_memory_h100.json, which keeps one entry for each
version of JAX, and docs/memory.svg from the entry of the oldest.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.common.h100 import placement
from benchmarks.common.measure import Benchmark, Columns, code, mebi, section, titled
from benchmarks.common.subjects import SUBJECTS
from benchmarks.common.tables import RESULTS
from hloom.xla.live_ranges import live_ranges
from hloom_tools.document.pictures import COLORS_CSS

PICTURE = RESULTS.parents[1] / "docs" / "memory.svg"
PROGRAM = "gpt_unrolled"
SPECS = ("off", "remat", "remat{budget=2GiB}")

_POINTS = 300
"""Of a curve: each is the most that is live in its part of the schedule."""

_DUMPED = (
    "_after_optimizations-buffer-assignment.txt",
    "_after_optimizations-live-range.txt",
    "_after_optimizations.txt",
)
"""How the names of the files end that XLA writes of each module it compiles."""

_GIBI_BYTES = 2**30
_COLORS = dict(zip(SPECS, ("before", "after", "budget"), strict=True))
_LABELS = {"off": "without hloom"}

_WIDTH, _HEIGHT = 860, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 46, 44
_LINE_GIB = 2


def main(words: Sequence[str]) -> None:
    """Measures with the JAX that runs this, unless it is to draw only, and draws."""
    if "--draw" not in words:
        print(BENCHMARK.write(**measured()))
    file = (RESULTS / f"{BENCHMARK.name}.json").read_text(encoding="utf-8")
    PICTURE.write_text(picture(json.loads(file)), encoding="utf-8")
    print(PICTURE)


def measured() -> dict[str, Any]:
    """The entry of a version: each spec's peak and curve, in bytes."""
    lowered = SUBJECTS[PROGRAM].lower(None, placement())
    return {
        "program": SUBJECTS[PROGRAM].title,
        "specs": {spec: _compiled(lowered, spec) for spec in SPECS},
    }


def _compiled(lowered: Any, spec: str) -> dict[str, Any]:
    jax.clear_caches()
    with tempfile.TemporaryDirectory(prefix="hloom-benchmark-") as folder:
        options = {"hloom": spec, "xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        compiled = lowered.compile(compiler_options=options)
        # A budget may take several compiles; the last or an earlier one is the one in use.
        assignments, ranges, modules = (
            [file.read_text(encoding="utf-8") for file in sorted(Path(folder).glob(f"*{ending}"))]
            for ending in _DUMPED
        )
    texts = zip(assignments, ranges, modules, strict=True)
    figures = compiled.memory_analysis()
    temp_bytes = figures.temp_size_in_bytes
    found = (live_ranges(*each) for each in reversed(list(texts)))
    live: Any = next(each for each in found if each["temp_bytes"] == temp_bytes)
    given = figures.argument_size_in_bytes + figures.output_size_in_bytes
    base_bytes = given - figures.alias_size_in_bytes
    return {
        "base_bytes": base_bytes,
        "temp_bytes": temp_bytes,
        "step_bytes": base_bytes + temp_bytes,
        "instructions": live["instructions"],
        "temp_bytes_over_schedule": _thinned(live["curve"], live["instructions"]),
    }


def _thinned(curve: Sequence[tuple[int, int]], instructions: int) -> list[int]:
    """The most that is live in each of so many equal parts of the schedule."""
    changes = dict(curve)
    live = [0]
    for time in range(instructions):
        live.append(changes.get(time, live[-1]))
    del live[0]
    ends = [part * instructions // _POINTS for part in range(_POINTS + 1)]
    return [max(live[first : max(first + 1, end)]) for first, end in itertools.pairwise(ends)]


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        f"{entry['program']}, jax {version}, MiB": code("spec"),
        "arguments and results": mebi("base_bytes"),
        "temporaries": mebi("temp_bytes"),
        "step": mebi("step_bytes"),
    }
    return section("", columns, titled(entry["specs"], "spec"))


BENCHMARK = Benchmark(
    "step_memory_h100",
    "step_memory",
    "Memory of a step over its schedule, H100",
    "![memory over the schedule](../../docs/memory.svg)",
    _tables,
)


def picture(report: dict[str, dict[str, Any]]) -> str:
    """The SVG of the oldest JAX that was measured; it has its own background, light or dark."""
    version, entry = next(iter(report.items()))
    specs = entry["specs"]
    most_gib = max(one["step_bytes"] for one in specs.values()) / _GIBI_BYTES * 1.04
    title = f"{entry['program']}: loss and gradients, compiled for an H100 (jax {version})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}" font-family="system-ui, sans-serif" font-size="13">',
        f"<style>{COLORS_CSS}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="var(--surface)"/>',
        f'<text x="{_LEFT}" y="26" font-size="15" font-weight="600" fill="var(--text)">{title}'
        "</text>",
        *_axes(most_gib),
    ]
    parts += [_curve(spec, one, most_gib) for spec, one in specs.items()]
    parts += [_label(row, spec, one) for row, (spec, one) in enumerate(specs.items())]
    return "\n".join([*parts, "</svg>", ""])


def _axes(most_gib: float) -> list[str]:
    lines = []
    for gib in range(0, int(most_gib) + 1, _LINE_GIB):
        y = _y(gib, most_gib)
        lines.append(
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="var(--line)"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="var(--muted)">'
            f"{f'{gib} GiB' if gib else '0'}</text>"
        )
    y = _HEIGHT - 16
    muted = 'fill="var(--muted)"'
    lines.append(f'<text x="{_LEFT}" y="{y}" {muted}>start of the step</text>')
    lines.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end" {muted}>'
        "end, in the order of XLA's schedule</text>"
    )
    return lines


def _curve(spec: str, one: dict[str, Any], most_gib: float) -> str:
    sizes = [one["base_bytes"] + size for size in one["temp_bytes_over_schedule"]]
    step = (_WIDTH - _LEFT - _RIGHT) / len(sizes)
    drawn = f"M{_LEFT} {_y(0, most_gib):.1f}"
    for place, size_bytes in enumerate(sizes, start=1):
        drawn += f"V{_y(size_bytes / _GIBI_BYTES, most_gib):.1f}H{_LEFT + place * step:.1f}"
    color = f"var(--{_COLORS[spec]})"
    return (
        f'<path d="{drawn}V{_y(0, most_gib):.1f}Z" fill="{color}" fill-opacity="0.16" '
        f'stroke="{color}" stroke-width="1.4" stroke-linejoin="round"/>'
    )


def _label(row: int, spec: str, one: dict[str, Any]) -> str:
    """A spec with its peak, top left, where no curve is: memory grows along the forward pass."""
    y = _TOP + 22 + row * 21
    color = f"var(--{_COLORS[spec]})"
    name = _LABELS.get(spec, spec)
    return (
        f'<rect x="{_LEFT + 14}" y="{y - 10}" width="11" height="11" rx="2" fill="{color}"/>'
        f'<text x="{_LEFT + 32}" y="{y}" font-weight="600" fill="{color}">'
        f"{name}: {one['step_bytes'] / _GIBI_BYTES:.1f} GiB</text>"
    )


def _y(gib: float, most_gib: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * gib / most_gib


if __name__ == "__main__":
    main(sys.argv[1:])

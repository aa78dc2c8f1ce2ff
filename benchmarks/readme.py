"""Writes the figures and the table of passes into README.md.

    python -m benchmarks.readme

They stand between marker comments. The figures come from benchmarks/results and from nowhere
else, the passes from the registry; a test holds README.md to what this writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.h100 import MEBI_BYTES
from hloom.passes import registry

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def main() -> None:
    """Rewrites README.md in place."""
    readme = ROOT / "README.md"
    readme.write_text(filled_in(readme.read_text(encoding="utf-8")), encoding="utf-8")


def filled_in(text: str) -> str:
    """README.md's text with every section between markers written anew.

    Raises ValueError where a marker is missing.
    """
    for name, lines in (("passes", _passes()), ("demo", _demo()), ("h100", _h100())):
        pattern = rf"(<!-- begin {name} [^\n]*-->\n).*?(<!-- end {name} -->\n)"
        body = "\n".join(lines) + "\n"
        text, found = re.subn(
            pattern, lambda match, body=body: match[1] + body + match[2], text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"README.md has {found} sections between markers '{name}', wanted 1")
    return text


def _passes() -> Iterator[str]:
    yield "| pass | what it does | example |"
    yield "| --- | --- | --- |"
    for cls in registry.all_passes():
        yield f"| [`{cls.name}`](docs/passes.md#{cls.name}) | {cls.summary} | `{cls.example}` |"


def _demo() -> Iterator[str]:
    report = _read("demo_cpu.json")
    off, on = report["off"], report["on"]
    sizes = report["sizes"]
    yield (
        f"`make demo` ({sizes['layers']} layers, width {sizes['width']}, batch {sizes['batch']}, "
        f"sequence {sizes['sequence']}, float32; jax {report['jax']}, Python {report['python']}, "
        f"CPU with 2 cores): over {report['steps']} steps the losses differ by at most "
        f"{report['largest_relative_difference']:.1e}, relative."
    )
    yield ""
    yield "| | hloom off | hloom on |"
    yield "| --- | ---: | ---: |"
    yield from (
        f"| XLA's {name} memory, MiB | {_mebi(off['memory'][key])} | {_mebi(on['memory'][key])} |"
        for name, key in (("temporary", "temp_bytes"), ("argument", "argument_bytes"))
    )
    yield f"| passes, s | {off['pass_s']:.2f} | {on['pass_s']:.2f} |"
    yield f"| XLA's compile, s | {off['compile_s']:.2f} | {on['compile_s']:.2f} |"
    steps_ms = [one["median_step_s"] * 1000 for one in (off, on)]
    yield f"| a training step, ms, median | {steps_ms[0]:.0f} | {steps_ms[1]:.0f} |"


def _h100() -> Iterator[str]:
    yield "| jax | layers | model | without | `remat` | `dots_saveable` by hand | passes / XLA |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    report = _read("remat_cheap_h100.json")
    for version in sorted(report, key=lambda text: [int(part) for part in text.split(".")]):
        for row in report[version]["programs"]:
            memory = [row["off"], row["on"], row["checkpoint"]["dots_saveable"]]
            cells = [version, row["layers"], row["model"]]
            cells += [_mebi(one["temp_bytes"]) for one in memory]
            yield f"| {' | '.join(cells)} | {row['pass_share'] * 100:.1f} % |"


def _mebi(size_bytes: int) -> str:
    return f"{size_bytes / MEBI_BYTES:.0f}"


def _read(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return report


if __name__ == "__main__":
    main()

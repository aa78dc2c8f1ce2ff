"""What `remat` does to programs of several kinds compiled for an H100, beside `jax.checkpoint`.

    python -m benchmarks.remat_programs       (needs the extra cuda13; no GPU; about 5 minutes)

Writes benchmarks/results/remat_programs_h100.json, which keeps one entry for each version of JAX
it was run with, and remat_programs_h100.md, the same as tables.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import hloom
from benchmarks.h100 import MEBI_BYTES, measure, placement
from benchmarks.report import Report, table, update_report
from benchmarks.subjects import SUBJECTS

SPEC = "remat"
POLICIES = ("dots_saveable", "nothing_saveable")


PROGRAMS = ("llama", "mixture_of_experts", "lstm", "resnet", "unet")


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    programs = {SUBJECTS[name].title: _measure(name, sharding) for name in PROGRAMS}
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "spec": SPEC,
        "programs": programs,
    }
    print(update_report("remat_programs_h100", entry, _markdown))


def _measure(name: str, sharding: Any) -> dict[str, Any]:
    print(f"measuring: {name}", flush=True)
    plain = SUBJECTS[name].lower(None, sharding)
    found = {"off": measure(plain, "off"), "on": measure(plain, SPEC)}
    for policy in POLICIES:
        found[policy] = measure(SUBJECTS[name].lower(policy, sharding), "off")
    return {
        label: {"temp_bytes": one.temp_bytes, "products": one.products, "summaries": one.summaries}
        for label, one in found.items()
    }


def _markdown(report: Report) -> Iterator[str]:
    yield "# `remat` on programs compiled for an H100"
    yield ""
    yield "<!-- Written by `python -m benchmarks.remat_programs`. -->"
    yield ""
    yield (
        "`value_and_grad` of a loss (`benchmarks/programs/`). XLA's temporary memory in MiB, and "
        "in brackets the matrix products and convolutions that run, loops included. ResNet-50 and "
        "the U-Net are unrolled, the others are scans. The figures are of a compile without a "
        "GPU: they hold for memory and not for speed."
    )
    for version, entry in report.items():
        yield ""
        yield f"## jax {version}, Python {entry['python']}"
        yield ""
        columns = ["program", "no checkpoint", f"`{entry['spec']}`"]
        columns += [f"`jax.checkpoint`, {policy}" for policy in POLICIES]
        rows = []
        for name, found in entry["programs"].items():
            off, on, *others = (
                f"{found[key]['temp_bytes'] / MEBI_BYTES:.0f} ({found[key]['products']})"
                for key in ("off", "on", *POLICIES)
            )
            rows.append([name, off, f"**{on}**", *others])
        yield from table(columns, rows)


if __name__ == "__main__":
    main()

"""What `remat` does to programs of several kinds compiled for an H100, beside `jax.checkpoint`.

    python -m benchmarks.remat_programs       (needs the extra cuda13; no GPU; about 5 minutes)

Writes benchmarks/results/remat_programs_h100.json, which keeps one entry for each version of JAX
it was run with, and remat_programs_h100.md, the same as tables.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax

import hloom
from benchmarks.h100 import MEBI_BYTES, measure, placement
from benchmarks.programs import llama, lstm, mixture_of_experts, resnet, unet
from benchmarks.programs.common import checkpoint_with
from benchmarks.report import Report, table, update_report

SPEC = "remat"
POLICIES = ("dots_saveable", "nothing_saveable")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program, and whether its blocks stand in a scan, where `prevent_cse` only costs."""

    module: ModuleType
    scanned: bool


SUBJECTS = {
    "Llama-style, 8 layers": Subject(llama, scanned=True),
    "mixture of experts, 6 layers": Subject(mixture_of_experts, scanned=True),
    "LSTM, 2 layers of 256 steps": Subject(lstm, scanned=True),
    "ResNet-50": Subject(resnet, scanned=False),
    "U-Net": Subject(unet, scanned=False),
}


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    programs = {name: _measure(subject, sharding) for name, subject in SUBJECTS.items()}
    entry = {
        "hloom": hloom.__version__,
        "python": platform.python_version(),
        "spec": SPEC,
        "programs": programs,
    }
    print(update_report("remat_programs_h100", entry, _markdown))


def _measure(subject: Subject, sharding: Any) -> dict[str, Any]:
    print(f"measuring: {subject.module.__name__}", flush=True)
    plain = lower(subject, None, sharding)
    found = {"off": measure(plain, "off"), "on": measure(plain, SPEC)}
    for policy in POLICIES:
        found[policy] = measure(lower(subject, policy, sharding), "off")
    return {name: dataclasses.asdict(one) for name, one in found.items()}


def lower(subject: Subject, policy: str | None, sharding: Any) -> Any:
    """The program with a checkpoint policy on its blocks, or none, lowered for a device."""
    checkpoint = checkpoint_with(policy, prevent_cse=not subject.scanned)
    function, arguments = subject.module.program(checkpoint)
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    return jax.jit(function).lower(*placed)


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

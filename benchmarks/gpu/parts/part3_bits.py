"""Part 3: 1,000 steps with and without `capture`, twice each: are all bits equal?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu.items import Item, Known, Settings

PROGRAMS = ("perceptron", "lstm", "gpt_scanned", "two_level_scan")
STEPS = 1000
DRY_STEPS = 20


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """XLA's own choice of kernels first; then deterministic ones, where XLA's own may differ."""
    yield [
        Item(
            f"bits/{program}{', deterministic' if deterministic else ''}",
            "benchmarks.gpu.parts.bits:compare",
            {
                "program": program,
                "tiny": settings.dry_run,
                "steps": DRY_STEPS if settings.dry_run else STEPS,
                "deterministic": deterministic,
            },
            limit_s=200,
            needs_s=60,
        )
        for deterministic in ((False,) if settings.dry_run else (False, True))
        for program in (PROGRAMS[:2] if settings.dry_run else PROGRAMS)
    ]

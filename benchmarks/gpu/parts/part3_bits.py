"""Part 3: many steps with and without `capture`, twice each: are all bits equal?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu.items import Item, Known, Settings, result_of

STEPS = {"perceptron": 1000, "lstm": 1000, "gpt_scanned": 250, "two_level_scan": 250}
"""By program. The last two take tens of milliseconds a step."""

_DRY = {"perceptron": 20, "lstm": 20}


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """XLA's own choice of kernels first; then deterministic ones, where its own differ."""
    programs = _DRY if settings.dry_run else STEPS
    yield [_item(program, steps, settings, False) for program, steps in programs.items()]
    yield [
        _item(program, steps, settings, True)
        for program, steps in programs.items()
        if (result_of(known, _name(program, False)) or {}).get("equal") is False
    ]


def _name(program: str, deterministic: bool) -> str:
    return f"bits/{program}{', deterministic' if deterministic else ''}"


def _item(program: str, steps: int, settings: Settings, deterministic: bool) -> Item:
    return Item(
        _name(program, deterministic),
        "benchmarks.gpu.parts.bits:compare",
        {
            "program": program,
            "tiny": settings.dry_run,
            "steps": steps,
            "deterministic": deterministic,
        },
        limit_s=200,
        needs_s=60,
    )

"""Part 5: `attention` by cuDNN's kernels: rounding, masks, bits, scratch memory, and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.items import Item, Known, Settings, result_of
from benchmarks.gpu.parts.part2_steps import OFF, Configuration, measured, timed

WAYS = "ways to write attention"
KERNEL = "attention"
BY_HAND: Configuration = {"label": "by hand", "spec": "off", "policy": "cudnn"}
"""The same model written with JAX's own function for cuDNN."""

KEYS = (64, 128, 256, 512, 1024, 4096)
HEADS = (64, 96, 128, 256)
GROUPS = (1, 2, 8)

TIMED = (
    *(f"attention, {keys} keys" for keys in KEYS),
    *(f"attention, heads of {head}" for head in HEADS),
    *(f"attention, {group} heads a head of keys" for group in GROUPS),
)
"""Decoders of four layers, of 8,192 tokens in all; `benchmarks.gpu.parts.programs` has them."""

SINGLE = ("rows without a key", "added rows without a key", "a bias with a gradient")

_STEPS = 20
_BITS = "attention, 512 keys"


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """Ways to write attention beside float64; single attentions; the same bits; times."""
    kernel = "emulated" if settings.dry_run else "cudnn"
    spec = f"attention{{kernel={kernel} min_keys=1}}"
    first = [_item(WAYS, "list_ways", limit_s=200)]
    if settings.dry_run:
        first.append(_item("compile attention for H200", "compile_for_h200", limit_s=240))
    yield first
    ways = result_of(known, WAYS) or []
    yield [
        *(
            _item(f"attention/way/{way}", "way", written=way, spec=spec)
            for way in (ways[:1] if settings.dry_run else ways)
        ),
        *(
            _item(f"attention/{each}", "single", masked=each, spec=spec, tiny=settings.dry_run)
            for each in SINGLE
        ),
    ]
    kernels = {"label": KERNEL, "spec": spec}
    programs = (_BITS,) if settings.dry_run else TIMED
    # On the CPU JAX writes no call of cuDNN's.
    configurations = [OFF, kernels] if settings.dry_run else [OFF, kernels, BY_HAND]
    yield [
        Item(
            f"bits/{_BITS}, deterministic",
            "benchmarks.gpu.parts.bits:compare",
            {
                "program": _BITS,
                "tiny": settings.dry_run,
                "steps": _STEPS,
                "deterministic": True,
                "specs": [spec, f"{spec},capture"],
            },
            limit_s=200,
        )
    ]
    for program in programs:
        yield [measured(program, each, settings) for each in configurations]
        yield timed(program, configurations, known, settings)


def _item(name: str, function: str, limit_s: float = 120, **arguments: Any) -> Item:
    called = f"benchmarks.gpu.parts.attention:{function}"
    return Item(name, called, arguments, limit_s, alone=False)


def least_keys(known: Known) -> int | None:
    """The fewest keys from which on the kernels take less time in every step that was timed; None
    where they do in none: what `min_keys` is for."""
    faster = {}
    for keys in KEYS:
        found = (result_of(known, f"time/attention, {keys} keys") or {}).get("configurations", {})
        if KERNEL in found:
            faster[keys] = found[KERNEL]["ratio"][1] < 1
    slower = max((keys for keys, is_faster in faster.items() if not is_faster), default=0)
    return min((keys for keys in faster if keys > slower), default=None)

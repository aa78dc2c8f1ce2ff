"""The largest batch of a 1.1 G-parameter decoder that fits five GPUs, beside XLA's own compiles.

    python -m benchmarks.fits      (needs the extra cuda13; no GPU; about 30 minutes)

`hloom.fits` tells it of each card, nothing compiled. Then XLA compiles the step for that card: as
it is with the batch that is said to fit and with one more, and under `fit` with the batch that is
said to fit with it. Writes benchmarks/results/fits.json, which keeps one entry for each version of
JAX it was run with, and fits.md, the same as tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.h100 import compile_recorded
from benchmarks.common.measure import Benchmark, Columns, Row, section, text, without_cache
from benchmarks.programs.decoder import Decoder
from hloom._jax.executables import memory_figures
from hloom.targets import deviceless
from hloom.targets.figures import FRACTION
from hloom_tools.estimates.sizes import LargestSize

CARDS = ("rtx_4090", "a100_sxm_40", "l40s", "a100_sxm_80", "h100_sxm")
DECODERS = {
    "a key and a value for each head": (Decoder(), CARDS),
    "8 heads share a key and a value": (Decoder(layers=22, groups=4), CARDS[:2]),
}
"""By title; the second's attention is where the model of memory is known to be off."""

REMARKS = {
    "8 heads share a key and a value": (
        "A budget near the least that this one can have is missed. Where heads share a key, the "
        "softmax of a layer is read by two products that each merge its axes of heads and tokens "
        "into one, in another order: to the values (`bf16[16,4,2048,8,2048]`) and to their "
        "gradient (`bf16[16,4,8,2048,2048]`). Recomputed in the backward pass, XLA writes it "
        "once for each, and both are alive: with batch 16 that is 4.0 GiB more, which the model "
        "counts once. Three layers of it, under `fit{budget=14GiB compiles=1}` for an A100, are "
        "predicted with 16.6 GiB and take 20.9. With a key for each head both orders are the same."
    )
}
"""What there is to say below a table."""

SEQUENCE = 2048
SHARE = "0.8"
"""Of a card's memory, what JAX is to take: more than by default, as a job that needs it sets it."""
_GIBI_BYTES = 2**30


def main() -> None:
    """Measures with the JAX that runs this, and writes the files."""
    os.environ[FRACTION] = SHARE
    deviceless.prepare()
    without_cache()
    entry: dict[str, Any] = {}
    for title, (decoder, cards) in DECODERS.items():
        found = hloom.fits(decoder.step(), *decoder.arguments(1, SEQUENCE), targets=cards)
        print(found, flush=True)
        rows = entry[title] = []
        for card in found.rows:
            for row in _rows(decoder, card):
                rows.append(row)
                print(row, flush=True)
                written = BENCHMARK.write(**entry)
    print(written)


def _rows(decoder: Decoder, card: LargestSize) -> Iterator[dict[str, Any]]:
    fits = card.as_it_is.size if card.as_it_is is not None else 0
    for batch in (fits, fits + 1):
        if batch:
            [step] = hloom.estimate(
                decoder.step(), *decoder.arguments(1, SEQUENCE), sizes=[batch], target=card.target
            ).rows
            yield _row(decoder, card, batch, "off", step.step_bytes)
    if card.with_fit is not None:
        yield _row(decoder, card, card.with_fit.size, "fit", card.with_fit.fit_bytes or 0)


def _row(
    decoder: Decoder, card: LargestSize, batch: int, spec: str, predicted_bytes: int
) -> dict[str, Any]:
    """What a compile gave, beside what was predicted of it."""
    sharding = deviceless.placement(card.target)
    arguments = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        decoder.arguments(batch, SEQUENCE),
    )
    compiled, record = compile_recorded(decoder.step().lower(*arguments), spec)
    step_bytes = memory_figures(compiled.runtime_executable()).step_bytes
    assert step_bytes is not None
    return {
        "card": card.target,
        "limit_bytes": card.limit_bytes,
        "batch": batch,
        "spec": spec,
        "predicted_bytes": predicted_bytes,
        "step_bytes": step_bytes,
        "compiles": 1 if record is None else record.compiles,
    }


def _gibi(key: str) -> Any:
    return lambda row: f"{row[key] / _GIBI_BYTES:.1f}"


def _error(row: Row) -> str:
    return f"{row['predicted_bytes'] / row['step_bytes'] - 1:+.1%}".replace("%", " %")


def _fits(key: str) -> Any:
    return lambda row: "yes" if row[key] <= row["limit_bytes"] else "no"


_COLUMNS: Columns = {
    "card": text("card"),
    "for a step, GiB": _gibi("limit_bytes"),
    "batch": text("batch"),
    "spec": text("spec"),
    "predicted, GiB": _gibi("predicted_bytes"),
    "XLA, GiB": _gibi("step_bytes"),
    "error": _error,
    "predicted to fit": _fits("predicted_bytes"),
    "fits by XLA": _fits("step_bytes"),
    "compiles": text("compiles"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    for title in DECODERS:
        if title in entry:
            yield from section(f"## jax {version}: {title}", _COLUMNS, entry[title])
            if title in REMARKS:
                yield from ("", REMARKS[title])


BENCHMARK = Benchmark(
    "fits",
    "fits",
    "The largest batch that fits a card",
    f"A decoder of 1.1 G parameters in float32 with AdamW, bfloat16 products, {SEQUENCE} tokens, "
    "its attention scores written out. A step may take 80 % of a card, as with "
    f"`{FRACTION}={SHARE}`; by default JAX gives 75 %. Predicted by "
    "`hloom.fits`, nothing compiled: the largest "
    "batch as the step is, one more, and the largest with `fit`. XLA's figure is that of a compile "
    "for the card, without one. Under `fit` it is that of its last plan: `fit` compiles and "
    "corrects itself.",
    _tables,
)


if __name__ == "__main__":
    main()

"""Schedules of `recursive-checkpoint` beside the optimum: how often an iteration is repeated.

    python -m benchmarks.schedules    (half a minute; compiles nothing)

Each iteration costs one, a state at a border and an iteration's residuals cost bytes. The optimum
is that of a dynamic program, which frees each state and residual on the way back; the binomial
schedule, which keeps states alone, repeats t(T, s) iterations for T of them and s states. Writes
benchmarks/results/schedules.json and schedules.md.

Source: A. Griewank and A. Walther, Algorithm 799: revolve, 2000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.common.measure import Benchmark, Columns, figure, section
from hloom.passes.recursive_checkpoint.schedule import choose

TRIPS = (64, 1024)
"""Iterations for which the optimum is computed, too."""

LONG = (4096, 100_000)

RESIDUALS = (1, 8)
"""Bytes of an iteration's residuals, in those of the carry."""

SHARES = (0.5, 0.25, 0.1, 0.05, 0.02)
"""Shares of the bytes that all residuals take."""

LEVELS = (1, 2, 3, 4)


def binomial(trips: int, states: int) -> int:
    """Returns how many iterations the binomial schedule repeats: t(T, s), the first state counted.

    It computes each iteration once more for its residuals, which counts as the first time here.
    """
    if trips <= 1:
        return 0
    times = 0
    while math.comb(states + times, states) < trips:
        times += 1
    return times * trips - math.comb(states + times, times - 1)


def optimum(trips: int, most: int, residual: int) -> np.ndarray:
    """Returns the fewest repeated iterations of a loop in so many bytes, 0 to ``most``, a carry
    counted as one; infinite where none is possible.

    A part of the loop keeps its residuals, or advances to a border, goes back through what is
    behind it, frees the border, and goes back through what is before it.
    """
    found = np.full((most + 1, trips + 1), np.inf)
    found[:, 0] = 0
    for bytes_ in range(most + 1):
        kept = min(bytes_ // residual, trips)
        found[bytes_, : kept + 1] = 0
        for part in range(kept + 1, trips + 1):
            if not kept or not bytes_:
                break
            before = np.arange(1, part)
            behind = found[bytes_ - 1, part - before]
            found[bytes_, part] = (before + behind + found[bytes_, before]).min()
    repeated: np.ndarray = found[:, trips]
    return repeated


def main() -> None:
    """Computes all rows, and writes the files."""
    rows = [*_rows()]
    print(BENCHMARK.write(rows=rows))


def _rows() -> Iterator[dict[str, Any]]:
    for trips in (*TRIPS, *LONG):
        for residual in RESIDUALS:
            sizes = [int(share * trips * residual) for share in SHARES]
            best = optimum(trips, max(sizes), residual) if trips in TRIPS else None
            floors = [_schedule(trips, residual, levels, None) for levels in LEVELS]
            for bytes_ in (*sizes, *(each["bytes"] for each in floors if each)):
                made = [_schedule(trips, residual, levels, bytes_) for levels in LEVELS]
                known = None if best is None or bytes_ >= len(best) else float(best[bytes_]) / trips
                yield {
                    "trips": trips,
                    "residual": residual,
                    "bytes": bytes_,
                    "levels": [each and each["repeats"] for each in made],
                    "optimum": known,
                    "binomial": binomial(trips, bytes_ - residual + 1) / trips,
                }


def _schedule(
    trips: int, residual: int, levels: int, most_bytes: int | None
) -> dict[str, Any] | None:
    found = choose(trips, 1, residual, levels=levels, most_bytes=most_bytes)
    if found is None:
        return None
    return {"bytes": found.kept_bytes(1, residual), "repeats": found.repeated / trips}


def _of_levels(number: int) -> Any:
    return lambda row: figure("at", ".2f")({"at": row["levels"][number]})


COLUMNS: Columns = {
    "iterations": figure("trips", "d"),
    "residuals": figure("residual", "d"),
    "bytes": figure("bytes", "d"),
    **{f"{levels} levels": _of_levels(n) for n, levels in enumerate(LEVELS)},
    "optimum": figure("optimum", ".2f"),
    "binomial": figure("binomial", ".2f"),
}


def _tables(_: str, entry: dict[str, Sequence[Any]]) -> Iterator[str]:
    yield from section("", COLUMNS, entry["rows"], names=0)


BENCHMARK = Benchmark(
    "schedules",
    "schedules",
    "Schedules of recursive-checkpoint beside the optimum",
    "How often an iteration is computed again, on average, in so many bytes; a carry counts as one "
    "byte, residuals are those of an iteration. The last rows of each kind are the least bytes of "
    "one to four levels. Binomial is Griewank and Walther's schedule, which keeps states alone and "
    "one iteration's residuals; the optimum keeps residuals, too, and frees both on the way back.",
    _tables,
)

if __name__ == "__main__":
    main()

"""Runs random programs and mutants; prints those that are wrong, and how many became what."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from .outcomes import mutant_outcome, program_outcome


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    asked = parser.parse_args(given)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for seed in range(asked.start, asked.start + asked.programs):
        program, outcome = program_outcome(seed)
        counts[f"program {outcome.kind}"] += 1
        if outcome.kind == "left":
            reasons[outcome.summary] += 1
        if outcome.kind in ("wrong", "failed"):
            print(f"{seed} {outcome} {program}", flush=True)
    seed, done = asked.start, 0
    while done < asked.mutants:
        seed += 1
        found = mutant_outcome(seed)
        if found is None:
            continue
        done += 1
        program, said, outcome = found
        counts[f"mutant {outcome.kind}"] += 1
        if outcome.kind in ("wrong", "failed"):
            print(f"mutant {seed} {outcome} {said} {program}", flush=True)
    for kind, count in sorted({**counts, **reasons}.items()):
        print(f"{count:6d} {kind}")
    return sum(count for kind, count in counts.items() if kind.endswith(("wrong", "failed")))


if __name__ == "__main__":
    sys.exit(main() != 0)

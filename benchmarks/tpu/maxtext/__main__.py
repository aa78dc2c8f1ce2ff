"""MaxText's step for four TPUs v5p, without one: its own policies, and hloom at their memory.

    python -m benchmarks.tpu.maxtext    (needs `pip install 'maxtext[tpu]==0.2.5'`; hours)
    python -m benchmarks.tpu.maxtext dense FSDP full custom 'fit{budget=1738MiB}'
    python -m benchmarks.tpu.maxtext dense FSDP budgets    (of each policy's memory)
    python -m benchmarks.tpu.maxtext plans    (a minute, the newest JAX, no MaxText)

MaxText lowers the step (`programs.py`); what XLA and hloom make of it is measured as other
frontiers are (`benchmarks/frontier`), by specs on the policy that recomputes least. XLA's figures
of each module are kept in build/maxtext/: a run that was cut short compiles nothing of it again.
Writes benchmarks/results/maxtext.json after each point, with one entry for each version of JAX it
was run with and in it what was measured before, the same as tables in maxtext.md, and a plot.

What hloom plans is also known without MaxText: `lowered/` has the steps over FSDP as MaxText lowers
them. Each point of hloom is kept with the plan of that day, and a test compares that of today with
the one that the file states; `plans` states it anew, and the table says which are of another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.tpu.maxtext.measure import Run, state_plans
from benchmarks.tpu.maxtext.programs import DECODERS, MESHES, POLICIES

BUDGETS = "budgets"


def main(arguments: Sequence[str]) -> None:
    """Compiles ways with the JAX that runs this, and writes the files after each."""
    if list(arguments) == ["plans"]:
        state_plans()
    elif arguments:
        decoder, mesh, *named = arguments
        _measure(Run(decoder, mesh), named)
    else:
        for decoder in DECODERS:
            for mesh in MESHES:
                _measure(Run(decoder, mesh), [*POLICIES, BUDGETS])


def _measure(run: Run, named: Sequence[str]) -> None:
    """Measures what is named: policies, specs, or the budgets of the policies that are known."""
    for name in named:
        if name in POLICIES:
            run.policy(name)
        else:
            for spec in run.budgets() if name == BUDGETS else [name]:
                run.spec(spec)


if __name__ == "__main__":
    main(sys.argv[1:])

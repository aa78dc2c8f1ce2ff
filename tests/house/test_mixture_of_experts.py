"""The example with ragged exchanges and ragged products, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from support import ROOT

pytestmark = pytest.mark.long

SCRIPT = ROOT / "examples" / "mixture_of_experts.py"


@dataclass(frozen=True)
class Output:
    losses: list[float]
    tokens: list[int]
    log: str


def run_example(*arguments: str, **environment: str) -> Output:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]
    [tokens] = re.findall(r"tokens of each expert in the last step: (.*)", result.stdout)
    return Output(losses, [int(count) for count in tokens.split()], result.stderr)


# On the newest version tests/lowering/test_ragged.py and tests/passes/ragged have what the example
# is made of.
@pytest.mark.once
def test_trains_as_a_dense_mixture_does() -> None:
    dense = run_example("--dense", "--experts=2")
    in_loops = run_example("--experts=2", JAX_HLOOM="barriers,ragged{loops=all}")
    assert in_loops.losses == pytest.approx(dense.losses, rel=1e-3)
    assert len(dense.losses) == 20
    assert dense.losses[-1] < 0.7 * dense.losses[0]
    assert "6 ragged products in loops" in in_loops.log
    assert sum(in_loops.tokens) == 8 * 128
    # Experts get tokens of many devices, unevenly: no dense exchange without padding would do.
    assert np.count_nonzero(in_loops.tokens) > 4
    assert max(in_loops.tokens) > 2 * np.median(in_loops.tokens)

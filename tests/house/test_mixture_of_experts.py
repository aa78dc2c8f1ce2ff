"""The example that sends its tokens by `jax.lax.ragged_all_to_all`, as a user runs it."""

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
    return Output(losses, [int(count) for count in tokens.split()])


# On the newest version tests/lowering/test_ragged.py has what the example is made of.
@pytest.mark.once
def test_trains_as_a_dense_mixture_does() -> None:
    dense = run_example("--dense")
    ragged = run_example(JAX_HLOOM="barriers")
    assert ragged.losses == pytest.approx(dense.losses, rel=1e-3)
    assert len(ragged.losses) == 20
    assert ragged.losses[-1] < 0.7 * ragged.losses[0]
    assert sum(ragged.tokens) == 8 * 64
    # Experts get tokens of many devices, unevenly: no dense exchange without padding would do.
    assert np.count_nonzero(ragged.tokens) > 4
    assert max(ragged.tokens) > 2 * min(ragged.tokens)

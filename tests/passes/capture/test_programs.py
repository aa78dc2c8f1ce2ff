"""`capture` and `unroll` on programs of every kind: XLA:CPU has the same results up to the rounding
of what it fuses.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from support.programs import PROGRAMS
from support.remat_runs import plain

import hloom
from hloom.passes.framework.target import Target

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "name",
    [
        # On the newest version a third of them shows what depends on it: bindings, and XLA.
        pytest.param(name, marks=[pytest.mark.once] * (number % 3 > 0))
        for number, name in enumerate(PROGRAMS)
    ],
)
def test_compiled_programs_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned as if for a GPU, run on the CPU."""
    from hloom.targets import devices

    as_if_on_cuda = dataclasses.replace(Target(), platform="cuda")
    monkeypatch.setattr(devices, "target_of", lambda *_: as_if_on_cuda)
    off = plain(PROGRAMS[name])
    got: Any = None
    for spec in ("capture{min_ops=1}", "unroll{loops=all},capture{min_ops=1 loops=off}"):
        got = off.lowered.compile(compiler_options={"hloom": spec})(*off.arguments)
        assert hloom.records()[-1].fell_back is None
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(off.results), strict=True):
            np.testing.assert_allclose(
                np.asarray(one, "complex64"), np.asarray(other, "complex64"), rtol=1e-2, atol=1e-3
            )
    jax.effects_barrier()

"""`hloom replay` and `hloom bisect` of steps that ran in chunks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.dumps.samples import capture, execution

from hloom.dumps.write.writer import write_step
from hloom.passes.chunk import Chunk
from hloom.passes.ir import walk
from hloom_cli import main

pytestmark = pytest.mark.once

WORDS = 24


def step(weights: jax.Array, hidden: jax.Array, labels: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        values = jax.nn.log_softmax(hidden @ w)
        return -jnp.take_along_axis(values, labels[:, None], axis=1).mean()

    return jax.value_and_grad(loss)(weights)


def arguments() -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    weights, hidden = random.normal(size=(8, WORDS)), random.normal(size=(12, 8))
    labels = random.integers(0, WORDS, 12)
    return jnp.float32(weights), jnp.float32(hidden), jnp.int32(labels)


def dumped(to: Path, spec: str) -> str:
    return str(write_step(capture(to, [execution(step, arguments(), spec=spec)])).parent)


def words_of(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join("".join(capfd.readouterr()).split())


@pytest.mark.parametrize(
    "spec",
    ["chunk{chunks=3 min_bytes=0}", "accumulate{microbatches=3}"],
    ids=["chunk", "accumulate"],
)
def test_a_step_in_chunks_is_equal(
    spec: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = dumped(tmp_path, spec)
    assert main(["replay", folder, "--repeat", "0"]) == 0
    assert f"EQUAL: {spec} and off agree" in words_of(capfd)


def test_bisect_finds_the_region_that_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dumped(tmp_path, "chunk{chunks=3 min_bytes=0}")
    original = Chunk.apply

    def apply(self: Chunk, plan: Any) -> None:
        """As it is, and then all logarithms are exponentials."""
        module = walk.module_of(plan.regions[0].value.owner) if plan.regions else None
        original(self, plan)
        for op in list(walk.operations(module)) if module is not None else []:
            if op.name == "stablehlo.log":
                with ir.InsertionPoint(op), op.location:
                    made = ir.Operation.create(
                        "stablehlo.exponential", [op.results[0].type], list(op.operands)
                    )
                op.results[0].replace_all_uses_with(made.results[0])
                op.erase()

    monkeypatch.setattr(Chunk, "apply", apply)
    assert main(["bisect", folder]) == 1
    text = words_of(capfd)
    assert re.search(r"--decision \d+-chunk/region-0\b", text), text

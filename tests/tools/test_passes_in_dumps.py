"""Passes in dumps: the step of each is replayed, shown in a report, and found by bisect when wrong.

A pass that can be divided has its decisions; that the wrong one is found, and named by its line,
stands with those whose decisions are told apart: replay/test_fit and bisect/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support.commands import Command
from support.dumps.samples import capture, execution

from hloom.dumps.read.dump import open_dump
from hloom.dumps.write.writer import write_step
from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom_tools.report.command import write_page
from hloom_tools.report.gather import gather

pytestmark = pytest.mark.once

WORDS, ROWS, WIDTH, LAYERS = 24, 12, 8, 4


def step(weights: dict[str, jax.Array], hidden: jax.Array, labels: jax.Array) -> Any:
    """The loss and gradients of layers in a scan, each with a checkpoint, and a loss head."""

    @jax.checkpoint
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(jnp.sin(x @ w) @ w.T), None

    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        x = jax.lax.scan(layer, hidden, weights["layers"])[0]
        values = jax.nn.log_softmax(x @ weights["head"])
        return -values[jnp.arange(ROWS), labels].mean()

    return jax.value_and_grad(loss)(weights)


def arguments() -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    weights = {
        "layers": jnp.float32(random.normal(size=(LAYERS, WIDTH, WIDTH)) / 4),
        "head": jnp.float32(random.normal(size=(WIDTH, WORDS))),
    }
    hidden = jnp.float32(random.normal(size=(ROWS, WIDTH)))
    return weights, hidden, jnp.int32(random.integers(0, WORDS, ROWS))


SPECS = (
    "accumulate{microbatches=3}",
    "chunk{chunks=3 min_bytes=0}",
    "cse",
    "one-hot",
    "remat{min_bytes=0}",
    "split-loop",
    "undo-checkpoint",
    "unroll{loops=all}",
)


@pytest.fixture(scope="module", params=SPECS)
def dumped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A spec, and the dump of the step with it."""
    found = execution(step, arguments(), spec=request.param)
    *_, last = found.kept.facts.manifest["compile"]["runs"]
    assert not last["empty"], last["summary"]
    return request.param, write_step(capture(tmp_path_factory.mktemp("step"), [found])).parent


def test_it_is_replayed(dumped: tuple[str, Path], command: Command) -> None:
    spec, folder = dumped
    status, text = command("replay", folder, "--repeat", "0").both
    assert status == 0, text
    assert f"EQUAL: {spec} and off agree" in " ".join(text.split())


def test_it_is_shown(dumped: tuple[str, Path], tmp_path: Path) -> None:
    spec, folder = dumped
    report = gather(open_dump(folder))
    [module] = report.modules
    assert not module.missing
    page = tmp_path / "report.html"
    write_page(report, page)
    assert spec.partition("{")[0] in page.read_text("utf-8")


def test_it_is_found_where_it_is_wrong(
    dumped: tuple[str, Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, folder = dumped
    name = spec.partition("{")[0]
    broken = registry.lookup(name)
    plan_, apply_ = broken.plan, broken.apply
    planned: list[ir.Module] = []

    def plan(self: Pass, module: ir.Module, target: Target) -> Any:
        planned.append(module)
        return plan_(self, module, target)

    def apply(self: Pass, plan: Any) -> None:
        """As it is, and then the first result is negated."""
        apply_(self, plan)
        function = walk.entry_function(planned[-1])
        *_, returns = function.regions[0].blocks[0].operations
        with ir.InsertionPoint(returns), returns.location:
            returns.operands[0] = stablehlo.negate(returns.operands[0])

    monkeypatch.setattr(broken, "plan", plan)
    monkeypatch.setattr(broken, "apply", apply)
    status, text = command("bisect", folder).both
    assert status == 1, text
    assert f"It is '{name}'" in " ".join(text.split())

"""Pages that answer a newcomer's question: what they say to type works; no pass is left out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support import ROOT, RunPython

from hloom.passes.framework import registry
from hloom.passes.framework.pipeline import Pipeline

pytestmark = pytest.mark.once


def blocks(page: str, language: str, section: str = "") -> list[str]:
    """The blocks of a page in a language, or of one section of it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_every_pass_says_what_it_may_change() -> None:
    text = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| \S", text, re.M)
    assert tuple(rows) == registry.names()


def test_specs_arrive_as_they_are_quoted(tmp_path: Path) -> None:
    """Each line that a shell is given hands the whole spec on to the program."""
    for name in ("python", "docker", "srun"):
        program = tmp_path / name
        # Docker is told the variable by an option; the others inherit it.
        program.write_text(
            '#!/bin/sh\ntest "$1" = run && export "$3"\nprintf "%s\\n" "$JAX_HLOOM"\n'
        )
        program.chmod(0o755)
    found: list[str] = []
    for block in blocks("use.md", "bash", "Quoting"):
        script = f'PATH={tmp_path}:"$PATH"\n{block}'
        done = subprocess.run(
            ["bash", "-e", "-c", script], capture_output=True, text=True, check=False
        )
        found += done.stdout.split("\n")[:-1]
    told = [spec for spec in found if spec]
    assert [str(Pipeline.parse(spec)) for spec in told] == told
    assert told == [
        "fit{budget=60GiB compiles=2}",
        "accumulate{microbatches=8},chunk",
        "fit{budget=60GiB}",
        "accumulate{microbatches=8},fit{budget=60GiB}",
    ]


def test_specs_in_yaml() -> None:
    yaml = pytest.importorskip("yaml")  # Flax brings it
    (block,) = blocks("use.md", "yaml")
    [variable] = yaml.safe_load(block)["env"]
    assert Pipeline.parse(variable["value"]).passes


@pytest.mark.h100
def test_a_users_step_is_compiled_for_an_h100_as_the_page_has_it(run_python: RunPython) -> None:
    (code,) = (block for block in blocks("targets.md", "python") if "deviceless" in block)
    imports, _, rest = code.partition("shapes =")
    step = """
import jax.numpy as jnp
def loss(ws, x):
    for w in ws: x = jnp.tanh(x @ w)
    return (x ** 2).sum()
step = jax.jit(lambda ws, x: jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws, x)))
state = [jax.ShapeDtypeStruct((512, 512), "float32")] * 4
batch = jax.ShapeDtypeStruct((64, 512), "float32")
"""
    printed = run_python(f"{imports}{step}shapes ={rest}").stdout
    assert "temp_size_in_bytes" in printed


def test_dropout_masks_are_kept() -> None:
    """What docs/numbers.md promises: a mask is the same, computed again or a part at a time."""

    def step(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        def layer(h: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            w, key = at
            kept = jax.random.bernoulli(key, 0.5, h.shape)
            return jnp.where(kept, jnp.tanh(h @ w), 0) * jnp.cos(h), None

        def loss(w: jax.Array) -> jax.Array:
            keys = jax.random.split(key, len(w))
            return (jax.lax.scan(layer, x, (w, keys))[0] ** 2).mean()

        return jax.grad(loss)(w)

    w = jax.random.normal(jax.random.key(1), (4, 64, 64)) / 8
    x = jax.random.normal(jax.random.key(2), (32, 64))
    results = [
        jax.jit(step, compiler_options={"hloom": spec})(w, x, jax.random.key(0))
        for spec in ("off", "remat", "accumulate{microbatches=4}")
    ]
    for result in results[1:]:
        assert jnp.allclose(results[0], result, rtol=1e-4, atol=1e-7)

"""Python blocks of the pages run as they are written, on a small step, in one process."""

from __future__ import annotations

import re

import pytest
from support import ROOT, RunPython

pytestmark = pytest.mark.once

STEP = """
import logging, math
from types import SimpleNamespace
import jax, jax.numpy as jnp
import hloom

def loss(params, batch):
    for w in params:
        batch = jnp.tanh(batch @ w)
    return (batch ** 2).mean()

def train_step(state, batch):
    return [w - 0.1 * g for w, g in zip(state, jax.grad(loss)(state, batch))]

stage = lambda weights, x: jnp.tanh(x @ weights[0])
params = state = weights = [jnp.eye(32)] * 3
x = cotangent = batch = jnp.ones((8, 16, 32))
step = jax.jit(train_step, compiler_options={"hloom": "remat"})
step(state, batch)
lowered = step.lower(state, batch)
my_handler, SummaryWriter = logging.NullHandler(), lambda folder: print
wandb, mlflow = SimpleNamespace(run=print), print
"""
RUN = ("budgets.md", "fit.md", "moments.md", "records.md", "split.md", "use.md")
LEFT_OUT = {
    "barriers.md": "a collective kernel of one's own",
    "graphs.md": "a CUDA GPU",
    "pipeline.md": "8 devices: examples/pipeline_train.py runs",
    "shardings.md": "several devices",
    "stages.md": "4 devices: examples/stages_train.py runs",
    "targets.md": "compiles for an H100: test_answers.py",
    "tpu.md": "libtpu",
    "write-a-pass.md": "test_write_a_pass.py",
}
"""Pages whose blocks need more, and what."""


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [each for each in found if not each.startswith(">>>")]


def test_every_page_with_python_is_run_or_has_its_reason() -> None:
    with_python = {page.name for page in (ROOT / "docs").glob("*.md") if blocks(page.name)}
    assert with_python == {*RUN, *LEFT_OUT}


def test_blocks_run_as_they_are_written(run_python: RunPython) -> None:
    pages = {page: blocks(page) for page in RUN}
    program = f"""
{STEP}
import os, tempfile
os.chdir(tempfile.mkdtemp())
for page, texts in {pages!r}.items():
    names = dict(globals())
    for text in texts:
        exec(compile(text, page, "exec"), names)
    jax.config.update("jax_hloom", None)
    print("ran", page)
"""
    printed = run_python(program).stdout
    assert re.findall(r"^ran (\S+)$", printed, re.M) == list(RUN)

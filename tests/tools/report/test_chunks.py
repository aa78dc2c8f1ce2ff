"""What a report tells of work in chunks: which dimension, why a loop ends, what stays whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console
from support.dumps.report_dumps import IN_CHUNKS, LOGITS, LOOPS
from support.dumps.samples import capture, execution
from support.losses import LOSSES, SMALL

from hloom.dumps.read.dump import open_dump
from hloom.dumps.write.writer import write_step
from hloom.tools.report.chunks import ChunksView, chunks_of
from hloom.tools.report.command import write_page
from hloom.tools.report.gather import Report, gather
from hloom.tools.report.sources import Sources
from hloom.tools.report.text import in_chunks

pytestmark = pytest.mark.once

NO_SOURCES = Sources({})


@pytest.fixture(scope="module")
def report(report_step: Path) -> Report:
    return gather(open_dump(report_step))


@pytest.fixture(scope="module")
def view(report: Report) -> ChunksView:
    found = report.modules[0].chunks
    assert found is not None, report.modules[0].missing
    return found


def test_a_region_has_its_line_its_dimension_and_its_bytes(view: ChunksView) -> None:
    [row] = view.rows
    assert row.value is not None
    assert row.value.place.short == "model.py:20"
    assert row.cut == "9 chunks of 1000, the last of 192, of 8192"
    assert (row.before_bytes, row.after_bytes) == (600 * 2**20, 90 * 2**20)
    assert row.in_loop
    first, second = row.loops
    assert "reads the whole of a partial max" in first.ends[0]
    assert second.ends == ()
    assert second.leaves == ("tensor<32768x768xbf16>, added up in f32",)


def test_what_stays_says_why(view: ChunksView) -> None:
    value, access = view.whole
    assert value.reasons == ("axis 1 takes 3 loops", "axis 0 is sharded")
    assert access.reasons == ("not every row has an element",)
    assert "reads all of the batch" in view.refusal


def test_accesses_of_one_line_that_became_the_same_are_one_row(view: ChunksView) -> None:
    assert [(row.count, row.what) for row in view.labels] == [
        (1, "gather has its rows as batching dimensions"),
        (2, "scatter is a select"),
    ]


def test_a_step_in_microbatches_is_a_row_of_its_own() -> None:
    plan = {"batch": "the first axis of tokens", "loops": LOOPS}
    [row] = chunks_of({"accumulate": plan}, NO_SOURCES).rows
    assert (row.by, row.value, row.dimension) == ("accumulate", None, "the first axis of tokens")
    assert row.before_bytes is None


def test_no_such_pass_means_no_such_section(report: Report) -> None:
    assert report.modules[1].chunks is None


def test_text_and_page_have_all_of_it(report: Report, view: ChunksView, tmp_path: Path) -> None:
    printed = io.StringIO()
    Console(width=200, file=printed).print(*in_chunks(view))
    page = write_page(report, tmp_path / "report.html").read_text(encoding="utf-8")
    for shown in (printed.getvalue(), page):
        for expected in (
            "What runs in chunks, and why",
            "600 MiB",
            "90.0 MiB",
            "model.py:20",
            "9 chunks of 1000, the last of 192, of 8192",
            "reads the whole of a partial max",
            "xis 1 takes 3 loops",
            "scatter is a select",
            "reads all of the batch",
        ):
            assert expected in shown
    assert "<script>" not in page
    assert "added up in f32" in page


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("chunk", {"regions": 3, "left": []}),
        ("chunk", {"regions": [LOGITS], "left": []}),
        (
            "chunk",
            IN_CHUNKS["chunk"] | {"regions": [LOGITS | LOOPS | {"dimension": 0, "size": -1}]},
        ),
        ("accumulate", {"loops": LOOPS}),
        ("one-hot", {"accesses": [LOGITS], "left": []}),
    ],
)
def test_a_damaged_plan_raises_what_a_report_expects(name: str, plan: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        chunks_of({name: plan}, NO_SOURCES)


def test_a_step_that_ran_in_microbatches_is_told_of(tmp_path: Path) -> None:
    """By the plan as `accumulate` writes it."""

    def step(weights: jax.Array, batch: jax.Array) -> Any:
        return jax.value_and_grad(lambda w: (jnp.tanh(batch @ w) ** 2).mean())(weights)

    arguments = jnp.ones((8, 3)), jnp.ones((4, 8))
    found = execution(step, arguments, spec="accumulate{microbatches=2}")
    [module] = gather(open_dump(write_step(capture(tmp_path, [found])).parent)).modules
    assert module.chunks is not None, module.missing
    [row] = module.chunks.rows
    assert (row.by, row.chunks, row.length, row.size) == ("accumulate", 2, 2, 4)
    assert "batch" in row.dimension
    assert sum(loop.share for loop in row.loops) == pytest.approx(1.0)


def test_a_loss_head_that_ran_in_chunks_is_told_of(tmp_path: Path) -> None:
    """By the plan as `chunk` writes it."""
    loss = LOSSES["log_softmax"]
    spec = "chunk{chunks=2 min_bytes=0}"
    found = execution(loss.step, loss.arguments(SMALL), spec=spec)
    [module] = gather(open_dump(write_step(capture(tmp_path, [found])).parent)).modules
    assert module.chunks is not None, module.missing
    row = module.chunks.rows[0]
    assert row.value is not None
    assert row.value.place.short.startswith("cross_entropies.py:")
    assert (row.by, row.chunks, row.length * row.chunks) == ("chunk", 2, row.size)
    assert row.before_bytes is not None
    assert row.after_bytes is not None
    assert row.after_bytes < row.before_bytes

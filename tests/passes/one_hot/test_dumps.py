"""`one-hot` in dumps and records: replayed, reported, bisected to the access that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support.dumps.samples import capture, execution
from support.losses import LOSSES, SMALL

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write.writer import write_step
from hloom.passes.one_hot import rewrite
from hloom.tools.report.gather import gather
from hloom_cli import main

LOSS = LOSSES["flat_arange"]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = execution(LOSS.step, LOSS.arguments(SMALL), spec="one-hot")
    return write_step(capture(tmp_path_factory.mktemp("labels"), [found])).parent


def test_a_replay_is_the_same_to_the_bit(dumped: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(dumped), "--tolerance", "0", "--repeat", "0"]) == 0
    out, _ = capfd.readouterr()
    assert "EQUAL: one-hot and off agree" in " ".join(out.split())


def test_bisect_finds_the_access_that_is_wrong(
    dumped: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rewrite._updated

    def negated(element: rewrite.RowElement) -> ir.Value:
        return stablehlo.negate(original(element))

    monkeypatch.setattr(rewrite, "_updated", negated)
    assert main(["bisect", str(dumped)]) == 1
    out, err = capfd.readouterr()
    text = " ".join((out + err).split())
    assert "It is 'one-hot'" in text
    assert re.search(r"scatter as a select, \S*cross_entropies\.py:\d+", text), text


def test_a_report_tells_what_became_of_labels(dumped: Path) -> None:
    [module] = gather(open_dump(dumped)).modules
    assert module.chunks is not None
    assert [row.what for row in module.chunks.labels] == [
        "gather has its rows as batching dimensions",
        "scatter is a select",
    ]
    assert {row.value.place.short for row in module.chunks.labels} == {
        module.chunks.labels[0].value.place.short
    }


def test_a_record_names_the_effect() -> None:
    jax.jit(LOSS.step, compiler_options={"hloom": "one-hot"})(*LOSS.arguments(SMALL))
    record = hloom.records()[-1]
    assert "1 gather with batching dimensions, 1 scatter as a select" in str(record)

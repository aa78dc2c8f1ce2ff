"""The benchmark of loss heads: its specs and shapes."""

from __future__ import annotations

import pytest

from benchmarks.loss_heads.__main__ import _exists
from benchmarks.loss_heads.head import HeadSize
from benchmarks.loss_heads.subjects import SPECS, SUBJECTS, WAY_SPECS
from benchmarks.loss_heads.ways import WAYS
from hloom.passes.framework.pipeline import Pipeline

pytestmark = pytest.mark.once


def test_specs_of_passes_that_are_not_there_are_left_out() -> None:
    assert _exists("off")
    assert _exists("one-hot,remat{budget=2GiB}")
    assert not _exists("one-hot,telepathy{chunks=8}")


def test_specs_that_exist_are_right() -> None:
    for spec in filter(_exists, {*SPECS, *WAY_SPECS} - {"off"}):
        Pipeline.parse(spec)
    for subject in SUBJECTS.values():
        assert set(subject.most_mebi) <= set(subject.specs)


def test_shapes_are_those_of_the_size() -> None:
    size = HeadSize(batch=2, sequence=3, width=4, vocabulary=5, weight_dtype="float32")
    parameters, batch = WAYS["mixture_of_softmaxes"].shapes(size)
    assert {name: (each.shape, str(each.dtype)) for name, each in parameters.items()} == {
        "x": ((2, 3, 4), "bfloat16"),
        "w": ((5, 4), "float32"),
        "v": ((5, 4), "float32"),
        "gate": ((4, 2), "float32"),
    }
    assert {name: str(each.dtype) for name, each in batch.items()} == {"labels": "int32"}

"""The benchmark of loss heads: its table tells what is missing and what failed, and of no more."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.loss_heads.__main__ import _exists, markdown
from benchmarks.loss_heads.head import HeadSize
from benchmarks.loss_heads.subjects import SPECS, SUBJECTS, WAY_SPECS
from benchmarks.loss_heads.ways import WAYS
from hloom.passes.framework.pipeline import Pipeline

pytestmark = pytest.mark.once


def test_a_table_has_the_aims_beside_the_figures_and_no_empty_columns() -> None:
    temp: dict[str, Any] = {"temp_bytes": 640 * 2**20}
    entry = {
        "subjects": {
            "head_131072": {"off": temp, "chunk{chunks=8}": temp},
            "llama3_bf16": {"off": {"failed": "no luck"}},
        },
        "ways": {"focal": {"off": temp}},
    }
    text = "\n".join(markdown({"0.10.2": entry}))
    assert "| program | `off` | `chunk{chunks=8}` |" in text
    assert "| head, D=768, V=131072 | 640 | 640 (at most 650) |" in text
    assert "| Llama-3's head, bf16 weights | failed |  |" in text
    assert "| `focal` | 640 |" in text


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

"""Random training programs: none is wrong, and a child that is ended is told of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import often

from benchmarks.training_soak import mesh_run
from benchmarks.training_soak.__main__ import TRAINING, note_ended, summary
from benchmarks.training_soak.run import TOLERANCE, difference, reason, results_of

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(often(8, 40)))
def test_a_program_is_the_same(seed: int) -> None:
    for found in results_of(seed, lambda spec: None):
        assert found["outcome"] in ("rewritten", "left alone", "refused"), found


@pytest.mark.parametrize("seed", range(often(3, 40)))
def test_a_program_over_a_mesh_is_the_same(seed: int) -> None:
    for found in mesh_run.results_of(seed, lambda spec: None):
        assert found["outcome"] in ("rewritten", "left alone", "refused"), found


@pytest.mark.once
def test_what_is_wrong_is_seen() -> None:
    """Also beside the words of a key, which are larger than any float."""
    words, w = np.asarray([4_000_000_000], np.uint32), np.asarray([0.5, 0.1], np.float32)
    assert difference([words, w], [words, w]) == 0
    assert difference([words, w * 1.01], [words, w]) > TOLERANCE
    assert difference([words + 1, w], [words, w]) > TOLERANCE
    assert difference([words, w * np.nan], [words, w]) == np.inf
    assert difference([w * 1e-9, w], [w * 2e-9, w]) < TOLERANCE  # zero but for rounding


@pytest.mark.once
def test_a_child_that_is_ended(tmp_path: Path) -> None:
    """It goes on behind the seed; one that does not come to its first seed is given up."""
    assert not note_ended(tmp_path, 50, -11)
    lines = [
        {"seed": 50, "spec": "chunk", "outcome": "rewritten", "text": ""},
        {"seed": 50, "outcome": "done"},
        {"seed": 51, "outcome": "begun"},
        {"seed": 51, "outcome": "at", "spec": "chunk"},
    ]
    (tmp_path / "50.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert note_ended(tmp_path, 50, -11)
    entry = summary(TRAINING, tmp_path)
    assert entry["programs"] == 2
    assert entry["outcomes"] == {"chunk": {"rewritten": 1, "ended": 1}}
    assert "| seed 51: status -11 | 1 |" in list(TRAINING.markdown({"0.10.2": entry}))


@pytest.mark.once
def test_reasons_are_counted_without_names() -> None:
    text = "of what is nearest, axis 0 of x, 6 elements: 97% are: while (jit(f)/jvp()/w, a:3)"
    assert reason(text) == "N% are: while"

"""`offload` on compiles for an H100 without one: what leaves the device, and what loads span."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common.h100 import placement
from benchmarks.offload.__main__ import measure
from benchmarks.offload.programs import perceptrons
from benchmarks.programs.gpt import Gpt

pytestmark = pytest.mark.h100

LAYERS = 48


@pytest.fixture(scope="module")
def perceptron() -> Any:
    return perceptrons(placement(), layers=LAYERS, width=2048)


def test_the_device_has_less_by_what_the_host_has(perceptron: Any) -> None:
    """But for two slices of each stack: the one in use, and the next."""
    off, on = measure(perceptron, "off"), measure(perceptron, "offload{exposed=1000}")
    assert off["host_bytes"] == 0 < on["host_bytes"]
    fall = off["temp_bytes"] - on["temp_bytes"]
    assert fall == pytest.approx(on["host_bytes"], rel=0.05)


def test_every_load_spans_products(perceptron: Any) -> None:
    found = measure(perceptron, "offload{exposed=1000}")
    assert len(found["loads"]) == len(found["stores"]) == 3
    assert min(found["loads"]) >= 2
    assert max(found["stores"]) >= 1


def test_a_gpt() -> None:
    """Small in layers and sequence; a load spans the products of a whole layer's backward pass."""
    gpt = Gpt(scanned=True, policy="dots_saveable", layers=4, sequence=256)
    lowered = gpt.lower(placement())
    off, on = measure(lowered, "off"), measure(lowered, "offload{min_bytes=1MiB exposed=1000}")
    assert len(on["loads"]) == 6
    assert min(on["loads"]) >= 8
    assert off["temp_bytes"] - on["temp_bytes"] >= on["host_bytes"] / 2
    with_remat = measure(lowered, "offload{min_bytes=1MiB exposed=1000},remat")
    assert with_remat["temp_bytes"] <= 1.02 * on["temp_bytes"]


def test_a_captured_step_keeps_its_loads(perceptron: Any) -> None:
    found = measure(perceptron, "offload{exposed=1000},capture")
    assert min(found["loads"]) >= 2

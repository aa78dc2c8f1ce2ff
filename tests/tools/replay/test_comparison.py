"""Comparing the results of two runs.

Whether a plan is the recorded one.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloom_tools.document.content import Document
from hloom_tools.document.terminal import as_text
from hloom_tools.replay import table
from hloom_tools.replay.comparison import Tolerance, ValueComparison, compare
from hloom_tools.replay.decisions import other_plans

pytestmark = pytest.mark.once


def one(got: Any, wanted: Any, relative: float | None = None) -> ValueComparison:
    tolerance = Tolerance(relative)
    [value] = compare([np.asarray(got)], [np.asarray(wanted)], ["loss"], tolerance).values
    return value


def floats(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def test_equal_bits_are_equal() -> None:
    value = one(floats(1, math.nan, math.inf), floats(1, math.nan, math.inf))
    assert value.equal
    assert value.bits_equal
    assert (value.nan_both, value.worst) == (1, None)


def test_noise_is_within_the_tolerance_of_its_dtype() -> None:
    value = one(floats(1, 2.00001), floats(1, 2))
    assert value.equal
    assert not value.bits_equal
    assert value.worst == (1,)
    assert value.max_absolute == pytest.approx(1e-5, rel=0.05)
    assert value.max_relative == pytest.approx(1e-5 / (2 + 1.5), rel=0.05)


def test_an_error_is_told_with_its_place() -> None:
    wanted = np.ones((3, 4), np.float32)
    got = wanted.copy()
    got[2, 1] = 1.5
    value = one(got, wanted)
    assert not value.equal
    assert (value.differing, value.worst, value.got, value.wanted) == (1, (2, 1), "1.5", "1.0")
    assert (value.max_absolute, value.max_relative) == (0.5, 0.25)


def test_what_large_terms_leave_is_noise() -> None:
    """1e-6 against 0 is an infinite error of the element, and nothing beside elements of 1."""
    assert one(floats(1e-6, 1), floats(0, 1)).equal
    assert not one(floats(1e-6, 0), floats(0, 0)).equal


def test_a_tolerance_can_be_given() -> None:
    assert not one(floats(1.01), floats(1)).equal
    assert one(floats(1.01), floats(1), relative=0.1).equal
    assert not one(np.nextafter(floats(1), floats(2)), floats(1), relative=0).equal


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [
        (np.float64, 1e-10, 1e-8),
        (np.float16, 0.01, 0.1),
        (ml_dtypes.bfloat16, 0.0625, 0.25),
        (ml_dtypes.float8_e4m3fn, 0.25, 1.0),
        (ml_dtypes.float8_e5m2, 0.5, 1.5),
        (np.complex64, 1e-5, 1e-2),
    ],
)
def test_each_dtype_has_a_tolerance(dtype: Any, within: float, beyond: float) -> None:
    assert one(floats(1 + within, dtype=dtype), floats(1, dtype=dtype)).equal
    assert not one(floats(1 + beyond, dtype=dtype), floats(1, dtype=dtype)).equal


def test_not_a_numbers_agree_whatever_their_bits() -> None:
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    value = one(floats(quiet, 1), floats(other, 1))
    assert value.equal
    assert not value.bits_equal
    assert value.nan_both == 1


def test_a_number_on_one_side_only_differs() -> None:
    value = one(floats(1, math.nan, 3), floats(1, 2, math.nan))
    assert (value.equal, value.differing, value.worst) == (False, 2, (1,))
    assert (value.nan_got, value.nan_wanted, value.nan_both) == (1, 1, 0)
    # The elements that are numbers on both sides agree.
    assert (value.max_absolute, value.max_relative) == (0.0, 0.0)


@pytest.mark.parametrize(("got", "equal"), [(math.inf, True), (-math.inf, False), (3e38, False)])
def test_infinities_of_one_sign_agree(got: float, equal: bool) -> None:
    value = one(floats(got, 1), floats(math.inf, 2 if not equal else 1.00001))
    assert value.equal is equal
    assert math.isinf(value.max_absolute) is not equal


def test_a_parted_infinity_is_no_scale_for_the_others() -> None:
    assert not one(floats(math.inf, 2), floats(math.inf, 1)).equal


def test_denormals_that_are_flushed_are_equal() -> None:
    assert one(floats(0), floats(1e-40)).equal


def test_large_values_do_not_hide_errors() -> None:
    """The sum of these overflows float64."""
    wanted = np.full(4, 1e308)
    assert not one(wanted * np.array([1, 1, 1, 1.5]), wanted).equal


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64, np.bool_, ml_dtypes.int4])
def test_integers_and_booleans_are_exact(dtype: Any) -> None:
    got, wanted = np.array([0, 1], dtype), np.array([0, 0], dtype)
    value = one(got, wanted, relative=100.0)
    assert (value.equal, value.differing, value.worst, value.tolerance) == (False, 1, (1,), 0.0)


def test_large_integers_are_not_rounded() -> None:
    value = one(np.array([2**53 + 1]), np.array([2**53]))
    assert (value.equal, value.differing, value.max_absolute) == (False, 1, 1.0)


@pytest.mark.parametrize(
    ("got", "mismatch"),
    [(np.zeros((2, 1), np.float32), "shape is (2, 1), not (2,)"),
     (np.zeros(2, np.float16), "dtype is float16, not float32")],
)  # fmt: skip
def test_values_of_other_kinds_are_told(got: np.ndarray, mismatch: str) -> None:
    value = one(got, np.zeros(2, np.float32))
    assert (value.equal, value.mismatch) == (False, mismatch)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_scalars_and_empty_values(shape: tuple[int, ...]) -> None:
    assert one(np.ones(shape), np.ones(shape)).bits_equal


def test_a_scalar_has_a_place_too() -> None:
    assert one(np.float32(2), np.float32(1)).worst == ()


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    wanted = random.normal(size=(5, 7)).astype(np.float32)
    got = wanted + random.normal(size=(5, 7)).astype(np.float32) * 1e-3
    got[3, 2] = math.nan
    at_once = one(got, wanted)
    monkeypatch.setattr("hloom_tools.replay.comparison._CHUNK_ELEMENTS", 4)
    in_chunks = one(got, wanted)
    assert at_once.worst == in_chunks.worst == (3, 2)
    assert at_once.differing == in_chunks.differing > 20
    assert at_once.max_relative == pytest.approx(in_chunks.max_relative)


def test_the_first_that_differs_is_known_and_json_can_tell_it() -> None:
    right, wrong = floats(1, 2), floats(1, math.inf)
    comparison = compare([right, wrong, wrong], [right] * 3, ["a", "b", "c"])
    assert not comparison.equal
    assert (comparison.first_differing.name, comparison.first_differing.index) == ("b", 1)
    told = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert [value["equal"] for value in told["values"]] == [True, False, False]
    assert told["values"][1]["max_absolute"] == "inf"


def printed(found: table.Verdict) -> str:
    return as_text(Document("", (table.opinion(found),)), 80)


def test_of_equal_results_the_largest_error_is_told_and_no_table() -> None:
    wanted = [np.float32([1, 2]), np.float32([1, 4]), np.float32([3])]
    got = [wanted[0] * np.float32(1 + 1e-7), wanted[1] * np.float32(1 + 5e-7), wanted[2]]
    text = printed(table.Verdict("remat", "off", compare(got, wanted, ["a", "b", "c"])))
    assert text.startswith("EQUAL: remat and off agree in 3 results within tolerance")
    assert "The largest error is in b float32[2]: " in text
    assert "2.93e-07 relative of 7e-05 allowed." in " ".join(text.split())
    assert len(text.splitlines()) <= 3
    assert "max abs" not in text


def test_of_unequal_results_the_worst_comes_first_and_names_stay_whole() -> None:
    names = [f"result[0].blocks[{n}].attn.query_proj.weight" for n in range(30)]
    wanted = [np.ones(4, np.float32) for _ in names]
    got = [value * np.float32(1 + 0.01 * n) for n, value in enumerate(wanted)]
    text = printed(table.Verdict("remat", "off", compare(got, wanted, names)))
    assert text.index("[29].att") < text.index("[28].att") < text.index("[12].att")
    assert "and 9 more" in text
    lines = [line.split()[0] for line in text.splitlines() if "blocks[29]" in line]
    assert lines[0] == names[29]


USERS, LIBRARY = "/home/user/train.py:41", "/v/site-packages/flax/linear.py:4"
VALUE = {"name": "jit(f)/mul", "source": {"line": USERS, "library": LIBRARY, "function": "f"}}


def others(made: dict[str, Any], recorded: dict[str, Any]) -> tuple[str, ...]:
    runs: Any = [SimpleNamespace(name="remat", plan={"kept": [made]})]
    dump: Any = SimpleNamespace(
        planned=[SimpleNamespace(index=1, name="remat", json={"kept": [recorded]})]
    )
    return other_plans(runs, dump)


@pytest.mark.parametrize(
    "made",
    [
        VALUE,
        VALUE | {"source": {"line": USERS}},
        # A place in the dumped text.
        {"source": {"line": "-:3:7"}},
    ],
)
def test_what_the_dumped_text_has_not_makes_no_other_plan(made: dict[str, Any]) -> None:
    assert others(made, VALUE) == ()


@pytest.mark.parametrize(
    "recorded",
    [
        VALUE | {"source": {"line": "/home/user/train.py:42"}},
        VALUE | {"name": "jit(f)/add"},
        VALUE | {"bytes": 4},
        {"name": "jit(f)/mul", "source": {"line": "/v/site-packages/flax/linear.py:5"}},
    ],
)
def test_another_value_makes_another_plan(recorded: dict[str, Any]) -> None:
    assert others(VALUE, recorded) == ("'remat' (kept)",)
    assert others(recorded, VALUE) == ("'remat' (kept)",)

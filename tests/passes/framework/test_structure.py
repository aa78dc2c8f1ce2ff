"""Dataclasses as JSON and back: what is of another type is refused in a line that says where."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from hloom.passes.framework.structure import (
    Amount,
    Condition,
    Count,
    Figure,
    Rate,
    StructureError,
    Whole,
    read,
    written,
)

pytestmark = pytest.mark.once


class Color(enum.StrEnum):
    """An enum of texts."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    """A part, for tests."""

    size: Whole
    color: Color = Color.RED
    note: str | None = None


_Even = Annotated[int, Condition("an even number", lambda number: number % 2 == 0)]


@dataclass(frozen=True)
class Thing:
    """Everything that a type may have."""

    name: str
    parts: tuple[Part, ...]
    pair: tuple[int, float] = (1, 2.0)
    by_name: Mapping[str, Part] = field(default_factory=dict)
    cell: str | int | float | Part | tuple[str, ...] | None = None
    even: _Even = 0
    is_large: bool = False
    anything: object = None

    def __post_init__(self) -> None:
        if len(self.parts) > 3:
            raise ValueError("it has more than three parts")


THING = Thing(
    "a", (Part(1), Part(2, Color.BLUE, "x")), (3, 0.5), {"b": Part(4)}, ("s", "t"), 2, True, [1]
)


def test_what_is_written_is_read_again() -> None:
    assert read(Thing, json.loads(json.dumps(written(THING)))) == THING
    assert read(Thing, written(Thing("b", ()))) == Thing("b", ())


def test_defaults_are_not_written() -> None:
    assert written(Thing("b", (Part(1), Part(2, Color.BLUE)))) == {
        "name": "b",
        "parts": [{"size": 1}, {"size": 2, "color": "blue"}],
    }


def test_what_a_dataclass_does_not_know_is_left_out() -> None:
    assert read(Part, {"size": 1, "later": 2}) == Part(1)


def test_pairs_are_a_mapping_in_their_order() -> None:
    found = read(dict[str, int], [["b", 1], ["a", 2]])
    assert list(found.items()) == [("b", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "name is 3, not a text"),
        ({"parts": {}}, "parts is an object of 0, not a list"),
        ({"parts": [{"size": 1}, 7]}, "parts[1] is 7, not an object with size, color, note"),
        ({"parts": [{}]}, "parts[0] has no 'size'"),
        ({"parts": [{"size": -1}]}, "parts[0].size is -1, not a whole number from 0 to 2^60"),
        ({"parts": [{"size": 1, "color": "x"}]}, "parts[0].color is 'x', not one of red, blue"),
        ({"parts": [{"size": 1, "note": 3}]}, "parts[0].note is 3, not a text"),
        ({"parts": [{"size": 1}] * 4}, "the value is no Thing: it has more than three parts"),
        ({"pair": [1]}, "pair is a list of 1, not a list of 2"),
        ({"pair": [1.5, 1]}, "pair[0] is 1.5, not a whole number"),
        ({"by_name": {"b": {"size": "1"}}}, "by_name['b'].size is '1', not a whole number"),
        ({"by_name": [["b"]]}, "[0] is a list of 1, not a list of 2"),
        ({"cell": {"size": True}}, "cell.size is True, not a whole number"),
        ({"even": 3}, "even is 3, not an even number"),
        ({"is_large": 1}, "is_large is 1, not true or false"),
        ({"name": 10**400}, "name is a number of very many digits, not a text"),
    ],
    ids=str,
)
def test_an_error_says_where_and_what(change: dict[str, Any], said: str) -> None:
    with pytest.raises(StructureError) as caught:
        read(Thing, written(THING) | change)
    assert said in str(caught.value)


def test_a_long_text_is_cut_in_an_error() -> None:
    with pytest.raises(StructureError) as caught:
        read(int, "\x1b" * 10_000)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


NUMBERS: list[tuple[Any, list[Any], list[Any]]] = [
    (Whole, [0, 2**60 - 1], [-1, 2**60, 0.0, True, "1", None]),
    (Count, [1], [0, 1.0, True]),
    (Figure, [-1, 0, 1.5, 9e29], [1e30, -1e30, math.nan, math.inf, 10**400, True, "1"]),
    (Amount, [0, 1.5], [-1e-9, math.nan, math.inf, True]),
    (Rate, [1e-9, 3], [0, -1, 1e30, math.nan]),
    (float, [0, -2.5], [math.nan, math.inf, 10**400, True]),
    (int, [-3, 2**70], [10**400, 1.0, True]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), NUMBERS, ids=range(len(NUMBERS)))
def test_numbers(kind: Any, good: list[Any], bad: list[Any]) -> None:
    for each in good:
        assert read(kind, each) == each
    for each in bad:
        with pytest.raises(StructureError):
            read(kind, each)
